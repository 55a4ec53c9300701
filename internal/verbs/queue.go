//go:build rdma

package verbs

/*
#include "verbs.h"
#cgo noescape dsmd_post_send
#cgo nocallback dsmd_post_send
#cgo noescape dsmd_post_recv
#cgo nocallback dsmd_post_recv
#cgo noescape dsmd_poll
#cgo nocallback dsmd_poll
#cgo nocallback dsmd_notify
#cgo nocallback dsmd_get_cq_event
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Channel tells of completions by a descriptor.
type Channel struct{ ch *C.struct_ibv_comp_channel }

// NewChannel makes a channel for the device's completion queues.
func (d *Device) NewChannel() (*Channel, error) {
	ch, err := C.ibv_create_comp_channel(d.ctx)
	if ch == nil {
		return nil, fmt.Errorf("verbs: completion channel of %s: %w", d.name, err)
	}
	if errno := C.dsmd_nonblock(ch.fd); errno != 0 {
		C.ibv_destroy_comp_channel(ch)
		return nil, fmt.Errorf("verbs: completion channel of %s: %w", d.name, unix.Errno(errno))
	}
	return &Channel{ch}, nil
}

// FD becomes readable when a CQ for which CQ.Notify was called gets a completion, and stays so
// until Event takes the event.
func (c *Channel) FD() int { return int(c.ch.fd) }

// Event takes one event, without waiting. It returns false if there is none.
func (c *Channel) Event() (bool, error) {
	switch errno := unix.Errno(C.dsmd_get_cq_event(c.ch)); errno {
	case 0:
		return true, nil
	case unix.EAGAIN, unix.EINTR:
		return false, nil
	default:
		return false, fmt.Errorf("verbs: event of a completion channel: %w", errno)
	}
}

// Close gives the channel back. Its queues must be closed before.
func (c *Channel) Close() error {
	return closeError("completion channel", C.ibv_destroy_comp_channel(c.ch))
}

// handle is an object of the libraries, for the calls of the fast path.
func handle[T any](object *T) C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(object))) }

// CQ is a completion queue.
type CQ struct{ cq *C.struct_ibv_cq }

// NewCQ makes a queue for at least the given number of completions. Whoever posts must not let it
// overflow: that ends every queue pair that uses it. channel may be nil, and then Notify has no
// use.
func (d *Device) NewCQ(entries int, channel *Channel) (*CQ, error) {
	var ch *C.struct_ibv_comp_channel
	if channel != nil {
		ch = channel.ch
	}
	cq, err := C.ibv_create_cq(d.ctx, C.int(entries), nil, ch, 0)
	if cq == nil {
		return nil, fmt.Errorf("verbs: completion queue of %d entries of %s: %w", entries, d.name, limitHint(err))
	}
	return &CQ{cq}, nil
}

// Poll takes up to len(out) completions and returns how many. It makes no system call and does not
// allocate.
func (q *CQ) Poll(out []Completion) (int, error) {
	if len(out) == 0 {
		return 0, nil
	}
	n := C.dsmd_poll(handle(q.cq), (*C.struct_dsmd_wc)(unsafe.Pointer(&out[0])), C.int(len(out)))
	if n < 0 {
		return 0, errors.New("verbs: polling a completion queue failed: it has overflowed, or its device is gone")
	}
	return int(n), nil
}

// Notify asks for one event on the channel at the next completion. Completions that came before
// make no event, so Poll once more before sleeping.
func (q *CQ) Notify() error {
	if errno := C.dsmd_notify(q.cq); errno != 0 {
		return fmt.Errorf("verbs: ask for an event of a completion queue: %w", unix.Errno(errno))
	}
	return nil
}

// Close gives the queue back. Its queue pairs must be closed before.
func (q *CQ) Close() error { return closeError("completion queue", C.ibv_destroy_cq(q.cq)) }

// SRQ holds receives that several queue pairs share.
type SRQ struct{ srq *C.struct_ibv_srq }

// NewSRQ makes a queue for the given number of receives.
func (pd *PD) NewSRQ(requests int) (*SRQ, error) {
	var attr C.struct_ibv_srq_init_attr
	attr.attr.max_wr, attr.attr.max_sge = C.uint32_t(requests), 1
	srq, err := C.ibv_create_srq(pd.pd, &attr)
	if srq == nil {
		return nil, fmt.Errorf("verbs: shared receive queue of %d requests of %s: %w", requests, pd.dev.name, limitHint(err))
	}
	return &SRQ{srq}, nil
}

// PostRecv posts receives and returns how many were taken; all, if the error is nil.
func (s *SRQ) PostRecv(requests []RecvRequest) (int, error) {
	if len(requests) == 0 {
		return 0, nil
	}
	var posted C.int
	errno := C.dsmd_post_recv(0, handle(s.srq), (*C.struct_dsmd_recv)(unsafe.Pointer(&requests[0])), C.int(len(requests)), &posted)
	return int(posted), postError("receives to a shared queue", errno)
}

// Close gives the queue back. Its queue pairs must be closed before.
func (s *SRQ) Close() error { return closeError("shared receive queue", C.ibv_destroy_srq(s.srq)) }

func postError(what string, errno C.int) error {
	if errno == 0 {
		return nil
	}
	return fmt.Errorf("verbs: post %s: %w", what, unix.Errno(errno))
}

func limitHint(err error) error {
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrLimit, err)
	}
	return err
}

// QPConfig describes a queue pair, a reliable connection: everything arrives, in order, once.
type QPConfig struct {
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ // nil: the queue pair has receives of its own
	MaxSend        int  // requests that may be outstanding
	MaxRecv        int  // the same, without SRQ
	MaxSGE         int  // 1 to MaxSGE; 0: 1
	MaxInline      int  // bytes that must fit into a request with Inline
}

// QP is a queue pair.
type QP struct {
	dev *Device
	qp  *C.struct_ibv_qp
	// psn is the number of the first packet that this side sends.
	psn       uint32
	maxInline int
}

// NewQP makes a queue pair. If the device does not take MaxInline, the error wraps EINVAL: try
// less.
func (pd *PD) NewQP(c QPConfig) (*QP, error) {
	var attr C.struct_ibv_qp_init_attr
	attr.qp_type = C.IBV_QPT_RC
	attr.send_cq, attr.recv_cq = c.SendCQ.cq, c.RecvCQ.cq
	if c.SRQ != nil {
		attr.srq = c.SRQ.srq
	}
	attr.cap.max_send_wr, attr.cap.max_recv_wr = C.uint32_t(c.MaxSend), C.uint32_t(c.MaxRecv)
	attr.cap.max_send_sge, attr.cap.max_recv_sge = C.uint32_t(max(c.MaxSGE, 1)), 1
	attr.cap.max_inline_data = C.uint32_t(c.MaxInline)
	qp, err := C.dsmd_create_qp(pd.pd, &attr)
	if qp == nil {
		return nil, fmt.Errorf("verbs: queue pair of %s: %w", pd.dev.name, limitHint(err))
	}
	return &QP{dev: pd.dev, qp: qp, psn: randomPSN(), maxInline: int(attr.cap.max_inline_data)}, nil
}

// QPN is the queue pair's number on its device.
func (q *QP) QPN() uint32 { return uint32(q.qp.qp_num) }

// MaxInline is how many bytes fit into a request with Inline.
func (q *QP) MaxInline() int { return q.maxInline }

// PostSend posts requests and returns how many were taken; all, if the error is nil. It does not
// allocate. The memory that they name must be registered (or, with Inline, at least not of Go's
// heap) and stays theirs until they complete.
func (q *QP) PostSend(requests []SendRequest) (int, error) {
	if len(requests) == 0 {
		return 0, nil
	}
	var posted C.int
	errno := C.dsmd_post_send(handle(q.qp), (*C.struct_dsmd_send)(unsafe.Pointer(&requests[0])), C.int(len(requests)), &posted)
	return int(posted), postError("requests", errno)
}

// PostRecv posts receives to a queue pair that has no SRQ, and returns how many were taken; all, if
// the error is nil.
func (q *QP) PostRecv(requests []RecvRequest) (int, error) {
	if len(requests) == 0 {
		return 0, nil
	}
	var posted C.int
	errno := C.dsmd_post_recv(handle(q.qp), 0, (*C.struct_dsmd_recv)(unsafe.Pointer(&requests[0])), C.int(len(requests)), &posted)
	return int(posted), postError("receives", errno)
}

// Close gives the queue pair back. Requests that have not completed then never will.
func (q *QP) Close() error { return closeError("queue pair", C.ibv_destroy_qp(q.qp)) }
