package main

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"dsmd/internal/memlimit"
)

// resized is a node that has as much as it may.
type resized struct{ bytes uint64 }

func (r *resized) MemoryUsed() uint64     { return r.bytes }
func (r *resized) SetMemory(bytes uint64) { r.bytes = bytes }

// TestFollowMemory: a node parts with pages while memory runs out, and its log says so once, who
// sets the limit, and when it is over.
func TestFollowMemory(t *testing.T) {
	const mib = 1 << 20
	core, logs := observer.New(zapcore.InfoLevel)
	n, left := &resized{256 * mib}, uint64(0)
	var fails error
	f := &follower{node: n, share: memlimit.NewShare(256 * mib), told: 256 * mib, log: zap.New(core),
		left: func() (memlimit.Limit, error) { return memlimit.Limit{Bytes: left, From: "/the/limit"}, fails }}
	for _, step := range []struct{ left, want uint64 }{{100, 256}, {12, 236}, {22, 226}, {40, 226}, {600, 256}, {600, 256}} {
		left = step.left * mib
		if pause := f.look(); n.bytes != step.want*mib || pause != lookLeast {
			t.Errorf("with %d MiB left the node takes %d MiB, want %d, and looks again after %v", step.left, n.bytes/mib, step.want, pause)
		}
	}
	all := logs.TakeAll()
	if len(all) != 2 || all[0].Level != zapcore.WarnLevel || all[0].ContextMap()["limit"] != "/the/limit" || all[0].ContextMap()["left"] != "12MiB" || all[1].Level != zapcore.InfoLevel {
		t.Errorf("logged: %v", all)
	}
	for _, step := range []struct {
		left uint64
		want time.Duration
	}{{4 << 10, 250 * time.Millisecond}, {1 << 20, lookMost}, {0, lookLeast}} {
		left = step.left * mib
		if pause := f.look(); pause != step.want {
			t.Errorf("with %d MiB left the node looks again after %v, want %v", step.left, pause, step.want)
		}
	}
	logs.TakeAll()
	before := n.bytes
	fails = errors.New("no /proc")
	if pause := f.look(); pause != lookMost {
		t.Errorf("without knowing it looks again after %v, want %v", pause, lookMost)
	}
	if f.look(); n.bytes != before || logs.Len() != 1 {
		t.Errorf("without knowing it takes %d MiB, as before %d, and logs %v", n.bytes/mib, before/mib, logs.All())
	}
	left, fails = 600*mib, nil
	for range 20 {
		f.look()
	}
	if n.bytes != f.told {
		t.Errorf("when it knows again that there is enough it takes %d MiB", n.bytes/mib)
	}
}
