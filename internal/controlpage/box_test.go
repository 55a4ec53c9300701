package controlpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"testing"
)

// TestLifeOfABox: a frame gets to the other side while that looks, and only then.
func TestLifeOfABox(t *testing.T) {
	daemon, user := pair(t)
	in, out := user.Calls(), daemon.Calls()
	if in.Put([]byte("early")) || out.Full() || out.Watched() {
		t.Error("a frame is put into a box that nobody looks into")
	}
	if !out.Leave() {
		t.Error("who has never looked finds a frame when it leaves")
	}
	out.Watch()
	if out.Watch(); !in.Watched() {
		t.Error("the other side does not see that somebody looks")
	}
	if in.Put(make([]byte, BoxBytes+1)) {
		t.Error("a frame that is too long is put into the box")
	}
	longest := bytes.Repeat([]byte("x"), BoxBytes)
	if !in.Put(longest) || !out.Full() || in.Put([]byte("second")) {
		t.Error("a box does not hold one frame")
	}
	if out.Leave() {
		t.Error("who leaves does not notice that a frame has come")
	}
	got, took, err := out.Take([]byte("and "))
	if !took || err != nil || string(got) != "and "+string(longest) {
		t.Errorf("taken: %q, %v, %v", got, took, err)
	}
	if _, took, _ := out.Take(nil); took || in.Put([]byte("late")) {
		t.Error("a box that was emptied is still in use")
	}
	if out.Watch(); !in.Put(nil) || !out.Full() {
		t.Error("a box can't be used again")
	}
	if daemon.Replies().Full() || user.Replies().Full() {
		t.Error("a call lies in the box for replies")
	}
}

// TestHostileWriter: whatever the other side writes into a box, the reader gets at most a box full,
// and can leave.
func TestHostileWriter(t *testing.T) {
	daemon, user := pair(t)
	out, memory := daemon.Calls(), &user.table.calls
	memory.length.Store(1 << 31)
	memory.state.Store(full)
	if got, took, err := out.Take(nil); !took || !errors.Is(err, ErrLength) || len(got) > 0 {
		t.Errorf("a frame of 2 GiB: %d bytes, %v, %v", len(got), took, err)
	}
	memory.state.Store(77)
	if _, took, _ := out.Take(nil); took || !out.Leave() || out.Full() {
		t.Error("a box in a state that does not exist keeps its reader")
	}
}

// TestSentIsSeen: the program sees how much has gone by the socket.
func TestSentIsSeen(t *testing.T) {
	daemon, user := pair(t)
	if daemon.AddSent(); user.Sent() != 1 {
		t.Errorf("%d frames were sent, want 1", user.Sent())
	}
}

// TestRetiredBoxes: nothing can be put on a page that is retired.
func TestRetiredBoxes(t *testing.T) {
	daemon, user := pair(t)
	daemon.Calls().Watch()
	if err := user.Retire(); err != nil {
		t.Fatal(err)
	}
	if user.Calls().Put([]byte("late")) {
		t.Error("a call is put on a retired page")
	}
}

// TestNothingIsLost: of frames that go through the box when the reader looks, and else by a
// channel, each arrives once, and none that went by the channel arrives before an earlier one from
// the box.
func TestNothingIsLost(t *testing.T) {
	daemon, user := pair(t)
	const frames = 50_000
	socket := make(chan []byte, frames)
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range uint32(frames) {
			frame := binary.LittleEndian.AppendUint32(nil, i)
			if !user.Calls().Put(frame) {
				socket <- frame
			}
			if i%3 == 0 {
				runtime.Gosched()
			}
		}
	})
	r := reader{t: t, box: daemon.Calls(), seen: make([]bool, frames)}
	for looks := 0; r.count < frames; looks++ {
		if r.box.Watch(); looks%5 == 0 && !r.box.Leave() || looks%7 == 0 {
			r.take()
		}
		select {
		case frame := <-socket:
			r.take() // what was put there before
			r.got(frame, false)
		default:
		}
	}
	writer.Wait()
}

// reader notes what has arrived.
type reader struct {
	t      *testing.T
	box    Box
	seen   []bool
	count  int
	latest int // the last frame from the socket
}

func (r *reader) take() {
	if frame, took, err := r.box.Take(nil); err != nil {
		r.t.Fatal(err)
	} else if took {
		r.got(frame, true)
	}
}

func (r *reader) got(frame []byte, byBox bool) {
	i := int(binary.LittleEndian.Uint32(frame))
	if r.seen[i] {
		r.t.Fatalf("frame %d arrived twice", i)
	}
	if byBox && i < r.latest {
		r.t.Fatalf("frame %d came from the box after frame %d from the socket", i, r.latest)
	}
	if !byBox {
		r.latest = i
	}
	r.seen[i] = true
	r.count++
}
