//go:build rdma

package verbs

// #include "verbs.h"
import "C"

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Timers of a reliable connection. A packet that is not acknowledged is sent again after 4.096 µs ×
// 2^ackTimeout = 67 ms (some devices wait up to four times as long), retries times; so a dead path
// is noticed after half a second to two. Not 7 times, the greatest number: Linux's Soft-RoCE takes
// that for ever (rxe_comp.c).
const (
	ackTimeout = 14
	retries    = 6
	// rnrForever: a peer without a receive ready is tried for ever. Credits make that rare; it is
	// never a failure.
	rnrForever = 7
	// rnrDelay is the code of 0.64 ms, which a peer waits before it tries again.
	rnrDelay = 12
	psnMask  = 1<<24 - 1
)

func randomPSN() uint32 { return rand.Uint32() & psnMask }

// Access of a peer to a queue pair's memory that Init allows; what it can reach is limited by the
// registered memory's own.
const peerAccess = C.IBV_ACCESS_REMOTE_WRITE | C.IBV_ACCESS_REMOTE_READ

// Endpoint is what the other side must know of this queue pair. port and gid are where it sends
// from.
func (q *QP) Endpoint(port PortInfo, gid GID) Endpoint {
	return Endpoint{QPN: q.QPN(), PSN: q.psn, GID: gid.Addr, LID: port.LID, MTU: port.ActiveMTU}
}

// Init takes the queue pair to the state in which receives can be posted.
func (q *QP) Init(port int) error {
	var attr C.struct_ibv_qp_attr
	attr.qp_state = C.IBV_QPS_INIT
	attr.port_num = C.uint8_t(port)
	attr.qp_access_flags = peerAccess
	return q.modify(&attr, C.IBV_QP_STATE|C.IBV_QP_PKEY_INDEX|C.IBV_QP_PORT|C.IBV_QP_ACCESS_FLAGS, "initial")
}

// ReadyToReceive connects the queue pair to the peer's, so far that messages are received. gidIndex
// names this side's address and reads is how many reads of the peer are served at once.
func (q *QP) ReadyToReceive(port, gidIndex int, to Endpoint, mtuBytes, reads int) error {
	var attr C.struct_ibv_qp_attr
	attr.qp_state = C.IBV_QPS_RTR
	attr.path_mtu = uint32(mtuEnum(min(mtuBytes, to.MTU)))
	attr.dest_qp_num = C.uint32_t(to.QPN)
	attr.rq_psn = C.uint32_t(to.PSN)
	attr.ah_attr = addressOf(port, gidIndex, to)
	attr.max_dest_rd_atomic = C.uint8_t(reads)
	attr.min_rnr_timer = rnrDelay
	return q.modify(&attr, C.IBV_QP_STATE|C.IBV_QP_AV|C.IBV_QP_PATH_MTU|C.IBV_QP_DEST_QPN|C.IBV_QP_RQ_PSN|
		C.IBV_QP_MAX_DEST_RD_ATOMIC|C.IBV_QP_MIN_RNR_TIMER, "ready to receive")
}

// ReadyToSend lets the queue pair send. reads is how many reads may be outstanding.
func (q *QP) ReadyToSend(reads int) error {
	var attr C.struct_ibv_qp_attr
	attr.qp_state = C.IBV_QPS_RTS
	attr.sq_psn = C.uint32_t(q.psn)
	attr.timeout, attr.retry_cnt, attr.rnr_retry = ackTimeout, retries, rnrForever
	attr.max_rd_atomic = C.uint8_t(reads)
	return q.modify(&attr, C.IBV_QP_STATE|C.IBV_QP_SQ_PSN|C.IBV_QP_TIMEOUT|C.IBV_QP_RETRY_CNT|C.IBV_QP_RNR_RETRY|
		C.IBV_QP_MAX_QP_RD_ATOMIC, "ready to send")
}

// Fail ends the connection: what is outstanding completes with FlushError, and packets of the peer
// are dropped.
func (q *QP) Fail() error {
	var attr C.struct_ibv_qp_attr
	attr.qp_state = C.IBV_QPS_ERR
	return q.modify(&attr, C.IBV_QP_STATE, "failed")
}

func (q *QP) modify(attr *C.struct_ibv_qp_attr, mask C.int, state string) error {
	if errno := C.ibv_modify_qp(q.qp, attr, mask); errno != 0 {
		return fmt.Errorf("verbs: bring queue pair %d of %s into state %q: %w", q.QPN(), q.dev.name, state, unix.Errno(errno))
	}
	return nil
}

// Layout of what Go and C share, checked when the package is compiled: an index that is not 0 is
// refused.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(SGE{})-unsafe.Sizeof(C.struct_dsmd_sge{})]
	_ = [1]struct{}{}[unsafe.Sizeof(SendRequest{})-unsafe.Sizeof(C.struct_dsmd_send{})]
	_ = [1]struct{}{}[unsafe.Offsetof(SendRequest{}.RKey)-unsafe.Offsetof(C.struct_dsmd_send{}.rkey)]
	_ = [1]struct{}{}[unsafe.Offsetof(SendRequest{}.SGEs)-unsafe.Offsetof(C.struct_dsmd_send{}.sges)]
	_ = [1]struct{}{}[unsafe.Sizeof(RecvRequest{})-unsafe.Sizeof(C.struct_dsmd_recv{})]
	_ = [1]struct{}{}[unsafe.Offsetof(RecvRequest{}.SGEs)-unsafe.Offsetof(C.struct_dsmd_recv{}.sges)]
	_ = [1]struct{}{}[unsafe.Sizeof(Completion{})-unsafe.Sizeof(C.struct_dsmd_wc{})]
	_ = [1]struct{}{}[unsafe.Offsetof(Completion{}.Flags)-unsafe.Offsetof(C.struct_dsmd_wc{}.flags)]
	_ = [1]struct{}{}[MaxSGE-C.DSMD_MAX_SGE]
)
