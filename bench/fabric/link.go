//go:build rdma && cgo

package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"dsmd/internal/verbs"
)

const (
	// sendDepth is how many requests may be outstanding on a queue pair.
	sendDepth = 128
	// signalEvery is after how many requests there is one whose completion is waited for. It
	// divides sendDepth.
	signalEvery = 16
	// receives is how many receives are outstanding.
	receives = 64
	// completionBatch is how many completions are taken at once.
	completionBatch = 32
)

// inlines are how much is tried to be sent within requests, in order: devices differ.
var inlines = []int{220, 64, 0}

var opcodes = map[Operation]verbs.Opcode{Write: verbs.OpWrite, WriteImm: verbs.OpWriteImm, Read: verbs.OpRead, Send: verbs.OpSend}

// link is the queue pair between a rig and the other end's, with all that is outstanding on it:
// requests that may not be complete, of which the last unsignaled have no completion of their own
// to come.
type link struct {
	rig                     *rig
	spec                    Spec
	sendCQ, recvCQ          *verbs.CQ
	qp                      *verbs.QP
	peer                    hello
	outstanding, unsignaled int
	// chain, refills and completions are room for what is posted and polled.
	chain       [signalEvery]verbs.SendRequest
	refills     [completionBatch]verbs.RecvRequest
	completions [completionBatch]verbs.Completion
}

func (r *rig) newLink(spec Spec) (_ *link, err error) {
	l := &link{rig: r, spec: spec}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.sendCQ, err = r.dev.NewCQ(sendDepth, nil); err != nil {
		return nil, err
	}
	if l.recvCQ, err = r.dev.NewCQ(receives, nil); err != nil {
		return nil, err
	}
	for _, inline := range inlines {
		l.qp, err = r.pd.NewQP(verbs.QPConfig{SendCQ: l.sendCQ, RecvCQ: l.recvCQ,
			MaxSend: sendDepth, MaxRecv: receives, MaxSGE: 1, MaxInline: inline})
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return l, l.qp.Init(r.port.Number)
}

func (l *link) hello() hello {
	return hello{Region: l.rig.region(), Ends: []verbs.Endpoint{l.qp.Endpoint(l.rig.port, l.rig.gid)}}
}

func (l *link) connect(peer hello) error {
	if len(peer.Ends) != 1 {
		return fmt.Errorf("the other end has %d queue pairs, and this one has one", len(peer.Ends))
	}
	l.peer = peer
	if err := l.receive(receives); err != nil {
		return err
	}
	r := l.rig
	if err := l.qp.ReadyToReceive(r.port.Number, r.gid.Index, peer.Ends[0], r.port.ActiveMTU, r.reads()); err != nil {
		return err
	}
	return l.qp.ReadyToSend(r.reads())
}

func (l *link) close() error {
	var errs []error
	if l.qp != nil {
		errs = append(errs, l.qp.Close())
	}
	for _, cq := range []*verbs.CQ{l.sendCQ, l.recvCQ} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	return errors.Join(errs...)
}

// receive posts n receives. All are of the inbox: contents matter only where one message is under
// way.
func (l *link) receive(n int) error {
	for n > 0 {
		batch := min(n, len(l.refills))
		for i := range batch {
			l.refills[i] = verbs.RecvRequest{SGEs: 1, SGE: verbs.SGE{
				Addr: l.rig.mr.Addr() + 2*areaBytes, Length: uint32(max(l.spec.Bytes, l.spec.Request)), LKey: l.rig.mr.LKey()}}
		}
		if _, err := l.qp.PostRecv(l.refills[:batch]); err != nil {
			return err
		}
		n -= batch
	}
	return nil
}

// arrived takes messages that have come, posts receives in their place, and returns how many there
// were and the last one's completion.
func (l *link) arrived() (int, verbs.Completion, error) {
	n, err := l.recvCQ.Poll(l.completions[:])
	if n == 0 || err != nil {
		return 0, verbs.Completion{}, err
	}
	for i := range n {
		c := &l.completions[i]
		if c.Status != verbs.Success {
			// If the queue pair has failed, one of the requests knows why.
			return 0, *c, errors.Join(fmt.Errorf("receiving: %v", c.Status), l.reap())
		}
	}
	return n, l.completions[n-1], l.receive(n)
}

// request makes a request of an operation with the first n bytes of the source, or of the target
// for what comes back.
func (l *link) request(op Operation, n int) verbs.SendRequest {
	r := verbs.SendRequest{Op: opcodes[op], SGEs: 1, RKey: l.peer.Region.Key, RemoteAddr: l.peer.Region.Target,
		SGE: [verbs.MaxSGE]verbs.SGE{{Addr: l.rig.mr.Addr(), Length: uint32(n), LKey: l.rig.mr.LKey()}}}
	switch {
	case op == Read:
		r.SGE[0].Addr += areaBytes
		r.RemoteAddr = l.peer.Region.Source
	case n <= l.qp.MaxInline():
		r.Flags = verbs.Inline
	}
	return r
}

// post posts requests, at most signalEvery, with room for them. signal asks for a completion of the
// last in any case.
func (l *link) post(requests []verbs.SendRequest, signal bool) error {
	n := copy(l.chain[:], requests)
	for i := range n {
		r := &l.chain[i]
		l.unsignaled++
		if l.unsignaled == signalEvery || signal && i == n-1 {
			r.Flags |= verbs.Signaled
			r.ID = uint64(l.unsignaled)
			l.unsignaled = 0
		}
	}
	l.outstanding += n
	_, err := l.qp.PostSend(l.chain[:n])
	return err
}

// reap takes completions of requests.
func (l *link) reap() error {
	n, err := l.sendCQ.Poll(l.completions[:])
	if err != nil {
		return err
	}
	for _, c := range l.completions[:n] {
		if c.Status != verbs.Success {
			return fmt.Errorf("%s: %v", l.spec.Operation, c.Status)
		}
		l.outstanding -= int(c.ID)
	}
	return nil
}

// await waits until at most so many requests are outstanding. At least the one after those must
// have been signalled.
func (l *link) await(stop *atomic.Bool, outstanding int) error {
	return spin(stop, Patience, func() (bool, error) {
		if l.outstanding <= outstanding {
			return true, nil
		}
		err := l.reap()
		return l.outstanding <= outstanding, err
	})
}

// stamp writes the number by which a message is known at its end.
func stamp(message []byte, number uint32) {
	binary.NativeEndian.PutUint32(message[len(message)-4:], number)
}

func stampOf(message []byte) uint32 { return binary.NativeEndian.Uint32(message[len(message)-4:]) }
