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
	// signalEvery is after how many requests there is one whose completion is waited for. It divides sendDepth.
	signalEvery = 16
	// receives is how many receives are outstanding on all queue pairs together, and on each there are at least minReceives.
	receives, minReceives = 1024, 16
	// completionBatch is how many completions are taken at once.
	completionBatch = 32
)

// inlines are how much is tried to be sent within requests, in order: devices differ.
var inlines = []int{220, 64, 0}

var qpTypes = map[Kind]verbs.QPType{RC: verbs.RC, UC: verbs.UC, UD: verbs.UD}

var opcodes = map[Operation]verbs.Opcode{Write: verbs.OpWrite, WriteImm: verbs.OpWriteImm, Read: verbs.OpRead, Send: verbs.OpSend,
	FetchAdd: verbs.OpFetchAdd, CompareSwap: verbs.OpCompareSwap}

// link is the queue pairs between a rig and the other end's, with all that is outstanding on them.
type link struct {
	rig    *rig
	spec   Spec
	sendCQ *verbs.CQ
	recvCQ *verbs.CQ
	qps    []queue
	ah     *verbs.AH // datagrams: where they go
	peer   hello
	// chain and completions are room for what is posted and polled.
	chain       [signalEvery]verbs.SendRequest
	refills     [completionBatch]verbs.RecvRequest
	completions [completionBatch]verbs.Completion
	depth       int // receives on each queue pair
}

// queue is a queue pair. outstanding counts requests that may not be complete, of which the last unsignaled have
// no completion of their own to come.
type queue struct {
	*verbs.QP
	outstanding, unsignaled int
}

func (r *rig) newLink(spec Spec) (_ *link, err error) {
	l := &link{rig: r, spec: spec, depth: max(minReceives, receives/spec.Connections)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.sendCQ, err = r.dev.NewCQ(spec.Connections*sendDepth, nil); err != nil {
		return nil, err
	}
	if l.recvCQ, err = r.dev.NewCQ(spec.Connections*l.depth, nil); err != nil {
		return nil, err
	}
	for range spec.Connections {
		qp, err := l.newQP()
		if err != nil {
			return nil, err
		}
		l.qps = append(l.qps, queue{QP: qp})
		if err := qp.Init(r.port.Number, key); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *link) newQP() (qp *verbs.QP, err error) {
	for _, inline := range inlines {
		qp, err = l.rig.pd.NewQP(verbs.QPConfig{Type: qpTypes[l.spec.Kind], SendCQ: l.sendCQ, RecvCQ: l.recvCQ,
			MaxSend: sendDepth, MaxRecv: l.depth, MaxSGE: 1, MaxInline: inline})
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return qp, err
}

func (l *link) hello() hello {
	h := hello{Region: l.rig.region()}
	for _, q := range l.qps {
		h.Ends = append(h.Ends, q.Endpoint(l.rig.port, l.rig.gid, key))
	}
	return h
}

func (l *link) connect(peer hello) error {
	if len(peer.Ends) != len(l.qps) {
		return fmt.Errorf("the other end has %d queue pairs, and this one %d", len(peer.Ends), len(l.qps))
	}
	l.peer = peer
	r := l.rig
	for i := range l.qps {
		if err := l.receive(i, l.depth); err != nil {
			return err
		}
		if err := l.qps[i].ReadyToReceive(r.port.Number, r.gid.Index, peer.Ends[i], r.port.ActiveMTU, r.reads()); err != nil {
			return err
		}
		if err := l.qps[i].ReadyToSend(r.reads()); err != nil {
			return err
		}
	}
	if l.spec.Kind != UD {
		return nil
	}
	var err error
	l.ah, err = r.pd.NewAH(r.port.Number, r.gid.Index, peer.Ends[0])
	return err
}

func (l *link) close() error {
	var errs []error
	for _, q := range l.qps {
		errs = append(errs, q.Close())
	}
	if l.ah != nil {
		errs = append(errs, l.ah.Close())
	}
	if l.sendCQ != nil {
		errs = append(errs, l.sendCQ.Close())
	}
	if l.recvCQ != nil {
		errs = append(errs, l.recvCQ.Close())
	}
	return errors.Join(errs...)
}

// receive posts n receives. All are of the inbox: contents matter only where one message is under way.
func (l *link) receive(qp, n int) error {
	for n > 0 {
		batch := min(n, len(l.refills))
		for i := range batch {
			l.refills[i] = verbs.RecvRequest{ID: uint64(qp), SGEs: 1, SGE: verbs.SGE{
				Addr: l.rig.mr.Addr() + 2*areaBytes, Length: uint32(max(l.spec.Bytes, l.spec.Request) + verbs.GRHBytes), LKey: l.rig.mr.LKey()}}
		}
		if _, err := l.qps[qp].PostRecv(l.refills[:batch]); err != nil {
			return err
		}
		n -= batch
	}
	return nil
}

// arrived takes messages that have come, posts receives in their place, and returns how many there were and the last one's completion.
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
	last := l.completions[n-1]
	for i := 0; i < n; { // Runs of one queue pair are posted together.
		qp, from := l.completions[i].ID, i
		for i < n && l.completions[i].ID == qp {
			i++
		}
		if err := l.receive(int(qp), i-from); err != nil {
			return 0, last, err
		}
	}
	return n, last, nil
}

// request makes a request of an operation with the first n bytes of the source, or of the target for what comes back.
func (l *link) request(op Operation, n int) verbs.SendRequest {
	r := verbs.SendRequest{Op: opcodes[op], SGEs: 1, RKey: l.peer.Region.Key, RemoteAddr: l.peer.Region.Target,
		SGE: [verbs.MaxSGE]verbs.SGE{{Addr: l.rig.mr.Addr(), Length: uint32(n), LKey: l.rig.mr.LKey()}}}
	switch {
	case op == Read:
		r.SGE[0].Addr += areaBytes
		r.RemoteAddr = l.peer.Region.Source
	case op.isAtomic():
		r.SGE[0].Addr += areaBytes
		r.Compare, r.Swap = 1, 2
	case n <= l.qps[0].MaxInline():
		r.Flags = verbs.Inline
	}
	if l.ah != nil {
		r.Handle, r.RemoteQPN, r.RemoteQKey = l.ah.Handle(), l.peer.Ends[0].QPN, l.peer.Ends[0].QKey
	}
	return r
}

// post posts requests, at most signalEvery, on a queue pair with room for them. signal asks for a completion of the last in any case.
func (l *link) post(qp int, requests []verbs.SendRequest, signal bool) error {
	q := &l.qps[qp]
	n := copy(l.chain[:], requests)
	for i := range n {
		r := &l.chain[i]
		q.unsignaled++
		if q.unsignaled == signalEvery || signal && i == n-1 {
			r.Flags |= verbs.Signaled
			r.ID = uint64(qp)<<32 | uint64(q.unsignaled)
			q.unsignaled = 0
		}
	}
	q.outstanding += n
	_, err := q.PostSend(l.chain[:n])
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
		l.qps[c.ID>>32].outstanding -= int(uint32(c.ID))
	}
	return nil
}

// await waits until at most so many requests of a queue pair are outstanding. At least the one after those must have been signalled.
func (l *link) await(stop *atomic.Bool, qp, outstanding int) error {
	return spin(stop, patience, func() (bool, error) {
		if l.qps[qp].outstanding <= outstanding {
			return true, nil
		}
		err := l.reap()
		return l.qps[qp].outstanding <= outstanding, err
	})
}

// stamp writes the number by which a message is known at its end.
func stamp(message []byte, number uint32) {
	binary.NativeEndian.PutUint32(message[len(message)-4:], number)
}

func stampOf(message []byte) uint32 { return binary.NativeEndian.Uint32(message[len(message)-4:]) }
