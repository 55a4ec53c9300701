package main

import (
	"context"
	"time"

	"go.uber.org/zap"

	"dsmd/internal/memlimit"
	"dsmd/internal/settings"
	"dsmd/node"
)

// A daemon looks again at how much memory is left before half of that can be gone, if others take
// so many bytes a second, but not more often than lookLeast and not more seldom than lookMost. To
// look takes a dozen system calls or more.
const (
	takenASecond = 8 << 30
	lookLeast    = 100 * time.Millisecond
	lookMost     = 4 * time.Second
)

// follower has a node take less memory for pages while others leave it less.
type follower struct {
	node interface { // a *node.Node
		MemoryUsed() uint64
		SetMemory(bytes uint64)
	}
	share *memlimit.Share
	told  uint64 // bytes of pages that it may have
	left  func() (memlimit.Limit, error)
	log   *zap.Logger
	blind bool // how much is left could not be found, and that was logged
}

// followMemory has a node that may have so many bytes of pages take less while there is less, until
// ctx ends. 0: it has no bound, and takes what comes.
func followMemory(ctx context.Context, n *node.Node, bytes uint64, log *zap.Logger) {
	if bytes == 0 {
		return
	}
	f := &follower{node: n, share: memlimit.NewShare(bytes), told: bytes, left: memlimit.Left, log: log}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(f.look()):
		}
	}
}

// look looks once, and returns when to look again.
func (f *follower) look() (pause time.Duration) {
	left, err := f.left()
	if err != nil {
		if !f.blind {
			f.log.Warn("how much memory is left cannot be found, and the node takes as much as before, whatever others take; it is looked for again", zap.Error(err))
		}
		f.blind = true
		return lookMost
	}
	f.blind = false
	pause = min(max(time.Duration(left.Bytes/2*1000/takenASecond)*time.Millisecond, lookLeast), lookMost)
	wasFull := f.share.IsFull()
	now, changed := f.share.Next(f.node.MemoryUsed(), left.Bytes, node.MinMemoryBytes)
	if !changed {
		return pause
	}
	f.node.SetMemory(now)
	switch {
	case wasFull:
		f.log.Warn("memory runs out, and this node takes less for pages than it was told to (--memory), as long as that is so",
			zap.String("left", inMiB(left.Bytes)), zap.String("limit", left.From), zap.String("now", inMiB(now)), zap.String("told", inMiB(f.told)))
	case f.share.IsFull():
		f.log.Info("there is memory again, and this node takes what it was told to", zap.String("told", inMiB(f.told)))
	}
	return pause
}

func inMiB(bytes uint64) string { return settings.Bytes(bytes &^ (1<<20 - 1)).String() }
