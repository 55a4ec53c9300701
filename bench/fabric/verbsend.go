//go:build rdma && cgo

package fabric

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"dsmd/internal/verbs"
)

// resendAfter is after how long without an answer a message over UC or UD counts as lost. It is far more than an answer takes, also
// under emulation.
const resendAfter = 100 * time.Millisecond

// drainTime is how long after the end of a bandwidth measurement nothing must have come for all to have come that will.
const drainTime = 50 * time.Millisecond

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
	case e.spec.Measure == Bandwidth:
		return e.flood()
	case op.oneSided():
		return sample(e.spec, 1, e.complete)
	case op.isFetch():
		return sample(e.spec, 1, func() error { return e.trip(Send, e.spec.Request) })
	default:
		return sample(e.spec, 2, func() error { return e.trip(op, e.spec.Bytes) })
	}
}

// complete does an operation that has an answer of its own.
func (e *verbsEnd) complete() error {
	if err := e.post(0, []verbs.SendRequest{e.request(e.spec.Operation, e.spec.Bytes)}, true); err != nil {
		return err
	}
	return e.await(nil, 0, 0)
}

// trip sends a message and waits for the answer. What may get lost is sent again, as another message.
func (e *verbsEnd) trip(op Operation, bytes int) error {
	limit := patience
	if e.spec.Kind != RC {
		limit = resendAfter
	}
	began := time.Now()
	for {
		e.number++
		if err := e.send(nil, op, bytes, e.number); err != nil {
			return err
		}
		err := spin(nil, limit, func() (bool, error) {
			number, err := e.news()
			return number == e.number, err
		})
		if !errors.Is(err, errTimeout) || time.Since(began) > patience {
			return err
		}
	}
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

// sendAll sends a message of several parts, at most as many as are signalled together, which are posted at once.
func (e *verbsEnd) sendAll(stop *atomic.Bool, number uint32, parts ...part) error {
	if err := e.await(stop, 0, sendDepth-len(parts)); err != nil {
		return err
	}
	var requests [signalEvery]verbs.SendRequest
	for i, p := range parts {
		stamp(e.rig.source()[:p.bytes], number)
		requests[i] = e.request(p.op, p.bytes)
		requests[i].Imm = number
	}
	return e.post(0, requests[:len(parts)], false)
}

// news returns the number of the message that has come last by the measurement's operation; it may be one that is known already.
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
	message := e.rig.inbox()[:c.Bytes]
	return stampOf(message), nil
}

// serve answers each new message until stop, which comes at the latest when the control connection ends.
func (e *verbsEnd) serve(stop *atomic.Bool) (served, error) {
	switch op := e.spec.Operation; {
	case op.oneSided() || op == Write && e.spec.Measure == Bandwidth:
		// The processor is left to the network: what is measured is that nobody here has a part in it.
		for !stop.Load() {
			time.Sleep(time.Millisecond)
		}
		return served{}, nil
	case e.spec.Measure == Bandwidth:
		return e.count(stop)
	}
	for n := uint64(0); ; n++ {
		err := spin(stop, MaxTime+patience, func() (bool, error) {
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

// flood keeps requests outstanding on all queue pairs for a time.
func (e *verbsEnd) flood() (Point, error) {
	chain := max(1, min(signalEvery, floodBytes/e.spec.Bytes))
	requests := slices.Repeat([]verbs.SendRequest{e.request(e.spec.Operation, e.spec.Bytes)}, chain)
	var sent uint64
	began := time.Now()
	for watch := (stopwatch{began, e.spec.Time}); !watch.enough(int(sent)); {
		for qp := range e.qps {
			if err := e.await(nil, qp, floodChains*chain-chain); err != nil {
				return Point{}, err
			}
			if err := e.post(qp, requests, true); err != nil {
				return Point{}, err
			}
			sent += uint64(chain)
		}
	}
	for qp := range e.qps {
		if err := e.await(nil, qp, 0); err != nil {
			return Point{}, err
		}
	}
	return newBandwidth(e.spec, sent, sent, time.Since(began)), nil
}

const (
	// floodBytes is how much is posted at once, in requests of less.
	floodBytes = 64 << 10
	// floodChains of requests are outstanding on a queue pair.
	floodChains = 4
)

// count counts messages until stop, and those that were under way then.
func (e *verbsEnd) count(stop *atomic.Bool) (served, error) {
	var s served
	one := func() (bool, error) {
		n, _, err := e.arrived()
		s.Messages += uint64(n)
		return false, err
	}
	if err := spin(stop, MaxTime+patience, one); !errors.Is(err, errStopped) {
		return s, err
	}
	for before := s.Messages + 1; s.Messages != before; {
		before = s.Messages
		if err := spin(nil, drainTime, one); !errors.Is(err, errTimeout) {
			return s, err
		}
	}
	return s, nil
}
