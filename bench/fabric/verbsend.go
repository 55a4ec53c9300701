//go:build rdma && cgo

package fabric

import (
	"fmt"
	"sync/atomic"
	"time"

	"dsmd/internal/verbs"
)

func (r *rig) newEnd(spec Spec) (end, error) {
	l, err := r.newLink(spec)
	if err != nil {
		return nil, err
	}
	// A number that an earlier measurement has left here must not be taken for one of this.
	stamp(r.target()[:spec.Bytes], 0)
	if spec.Operation.isDesign() {
		return newDesignEnd(l)
	}
	return &verbsEnd{link: l}, nil
}

// verbsEnd is an end of an operation of RDMA.
type verbsEnd struct {
	*link
	number  uint32 // of the last message
	driving bool   // this end asks, and the other answers
}

func (e *verbsEnd) drive() (Point, error) {
	e.driving = true
	switch op := e.spec.Operation; {
	case op == Read:
		return sample(e.spec, 1, e.read)
	case op.isFetch():
		return sample(e.spec, 1, func() error { return e.trip(Send, e.spec.Request) })
	default:
		return sample(e.spec, 2, func() error { return e.trip(op, e.spec.Bytes) })
	}
}

// read reads from the other end, which has no part in it.
func (e *verbsEnd) read() error {
	if err := e.post([]verbs.SendRequest{e.request(Read, e.spec.Bytes)}, true); err != nil {
		return err
	}
	return e.await(nil, 0)
}

// trip sends a message and waits for the answer.
func (e *verbsEnd) trip(op Operation, bytes int) error {
	e.number++
	if err := e.send(nil, op, bytes, e.number); err != nil {
		return err
	}
	return spin(nil, Patience, func() (bool, error) {
		number, err := e.news()
		return number == e.number, err
	})
}

// send sends a message with a number.
func (e *verbsEnd) send(stop *atomic.Bool, op Operation, bytes int, number uint32) error {
	return e.sendAll(stop, number, part{op, bytes})
}

// part is one of the requests that a message consists of.
type part struct {
	op    Operation
	bytes int
}

// sendAll sends a message of several parts, at most as many as are signalled together, which are
// posted at once.
func (e *verbsEnd) sendAll(stop *atomic.Bool, number uint32, parts ...part) error {
	if err := e.await(stop, sendDepth-len(parts)); err != nil {
		return err
	}
	var requests [signalEvery]verbs.SendRequest
	for i, p := range parts {
		stamp(e.rig.source()[:p.bytes], number)
		requests[i] = e.request(p.op, p.bytes)
		requests[i].Imm = number
	}
	return e.post(requests[:len(parts)], false)
}

// news returns the number of the message that has come last by the measurement's operation; it may
// be one that is known already.
func (e *verbsEnd) news() (uint32, error) {
	if e.spec.Operation == Write {
		return watched(e.rig.target()[:e.spec.Bytes]), nil
	}
	n, c, err := e.arrived()
	if n == 0 || err != nil {
		return 0, err
	}
	if c.Flags&verbs.HasImm != 0 {
		return c.Imm, nil
	}
	if e.driving && e.spec.Operation == AnswerSendWrite {
		return 0, nil // The page comes behind it.
	}
	if c.Bytes < MinBytes {
		return 0, fmt.Errorf("a message of %d bytes has come, and none has less than %d", c.Bytes, MinBytes)
	}
	return stampOf(e.rig.inbox()[:c.Bytes]), nil
}

// serve answers each new message until stop, which comes at the latest when the control connection
// ends.
func (e *verbsEnd) serve(stop *atomic.Bool) (served, error) {
	if e.spec.Operation == Read {
		// The processor is left to the network: what is measured is that nobody here has a part in
		// it.
		for !stop.Load() {
			time.Sleep(time.Millisecond)
		}
		return served{}, nil
	}
	for n := uint64(0); ; n++ {
		err := spin(stop, MaxTime+Patience, func() (bool, error) {
			number, err := e.news()
			if number == 0 || number == e.number {
				return false, err
			}
			e.number = number
			return true, err
		})
		if err == nil {
			err = e.answer(stop)
		}
		if err != nil {
			return served{Messages: n}, stopped(err)
		}
	}
}

// answer answers the message that has come last.
func (e *verbsEnd) answer(stop *atomic.Bool) error {
	bytes := e.spec.Bytes
	switch op := e.spec.Operation; op {
	case AnswerWriteImm:
		return e.send(stop, WriteImm, bytes, e.number)
	case AnswerSend:
		return e.send(stop, Send, bytes, e.number)
	case AnswerWriteSend:
		return e.sendAll(stop, e.number, part{Write, bytes}, part{Send, e.spec.Request})
	case AnswerSendWrite:
		return e.sendAll(stop, e.number, part{Send, e.spec.Request}, part{WriteImm, bytes})
	default:
		return e.send(stop, op, bytes, e.number)
	}
}
