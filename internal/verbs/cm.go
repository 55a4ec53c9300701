//go:build rdma

package verbs

/*
#include <errno.h>
#include <string.h>
#include "verbs.h"

// What an event says, copied so that the event can be acknowledged at once.
struct dsmd_cm_event {
	struct rdma_cm_id *id, *listener;
	int type, status;
	uint32_t qpn;
	uint8_t responder, initiator, length;
	uint8_t data[256];
};

// Returns 0, or an errno.
static int dsmd_get_cm_event(struct rdma_event_channel *channel, struct dsmd_cm_event *out)
{
	struct rdma_cm_event *e;

	if (rdma_get_cm_event(channel, &e))
		return errno;
	out->id = e->id;
	out->listener = e->listen_id;
	out->type = e->event;
	out->status = e->status;
	out->qpn = e->param.conn.qp_num;
	out->responder = e->param.conn.responder_resources;
	out->initiator = e->param.conn.initiator_depth;
	out->length = e->param.conn.private_data ? e->param.conn.private_data_len : 0;
	memcpy(out->data, e->param.conn.private_data, out->length);
	rdma_ack_cm_event(e);
	return 0;
}

static int dsmd_cm_connect(struct rdma_cm_id *id, uint32_t qpn, const void *data, int length, int accept, int reads, int retries, int rnr_retries)
{
	struct rdma_conn_param p;

	memset(&p, 0, sizeof p);
	p.private_data = data;
	p.private_data_len = length;
	p.responder_resources = reads;
	p.initiator_depth = reads;
	p.retry_count = retries;
	p.rnr_retry_count = rnr_retries;
	p.srq = 1;
	p.qp_num = qpn;
	return (accept ? rdma_accept(id, &p) : rdma_connect(id, &p)) ? errno : 0;
}

static int dsmd_cm_modify(struct rdma_cm_id *id, struct ibv_qp *qp, int state, int *mask)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.qp_state = state;
	if (rdma_init_qp_attr(id, &attr, mask))
		return errno;
	if (state == IBV_QPS_INIT)
		attr.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	return ibv_modify_qp(qp, &attr, *mask);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxPrivateBytes is how much a connection request may carry on every kind of link.
const MaxPrivateBytes = 56

// ConnEventType is what has happened to a ConnID, numbered as in the C library.
type ConnEventType int

// The events that a user acts on. All others end the connection, or the attempt.
const (
	AddrResolved    ConnEventType = C.RDMA_CM_EVENT_ADDR_RESOLVED
	RouteResolved   ConnEventType = C.RDMA_CM_EVENT_ROUTE_RESOLVED
	ConnectRequest  ConnEventType = C.RDMA_CM_EVENT_CONNECT_REQUEST
	ConnectResponse ConnEventType = C.RDMA_CM_EVENT_CONNECT_RESPONSE
	Rejected        ConnEventType = C.RDMA_CM_EVENT_REJECTED
	Established     ConnEventType = C.RDMA_CM_EVENT_ESTABLISHED
	Disconnected    ConnEventType = C.RDMA_CM_EVENT_DISCONNECTED
	TimewaitExit    ConnEventType = C.RDMA_CM_EVENT_TIMEWAIT_EXIT
)

// String is the library's name of the event.
func (t ConnEventType) String() string {
	return C.GoString(C.rdma_event_str(C.enum_rdma_cm_event_type(t)))
}

// ConnEvent is one event of the connection manager.
type ConnEvent struct {
	Type   ConnEventType
	Status int // of an event that reports a failure: why, as a negative errno or a code of the link
	ID     *ConnID
	// Listener is the ConnID that a ConnectRequest came for; ID is then new, and the caller's.
	Listener *ConnID
	// Private is what the peer said with its request, answer or rejection. Links may append zeros.
	Private []byte
	// ResponderReads and InitiatorReads are the peer's wishes, from its own point of view.
	ResponderReads, InitiatorReads int
}

// ConnChannel delivers the events of connection identifiers.
type ConnChannel struct {
	ch  *C.struct_rdma_event_channel
	ids map[*C.struct_rdma_cm_id]*ConnID
}

// NewConnChannel makes a channel. The channel and its ConnIDs belong to one goroutine at a time.
func NewConnChannel() (*ConnChannel, error) {
	ch, err := C.rdma_create_event_channel()
	if ch == nil {
		return nil, fmt.Errorf("verbs: channel of the connection manager: %w; is the module rdma_ucm loaded?", err)
	}
	if errno := C.dsmd_nonblock(ch.fd); errno != 0 {
		C.rdma_destroy_event_channel(ch)
		return nil, fmt.Errorf("verbs: channel of the connection manager: %w", unix.Errno(errno))
	}
	return &ConnChannel{ch, make(map[*C.struct_rdma_cm_id]*ConnID)}, nil
}

// FD becomes readable when Next has something.
func (c *ConnChannel) FD() int { return int(c.ch.fd) }

// Next takes the next event, without waiting. ok is false if there is none.
func (c *ConnChannel) Next() (e ConnEvent, ok bool, err error) {
	var raw C.struct_dsmd_cm_event
	switch errno := unix.Errno(C.dsmd_get_cm_event(c.ch, &raw)); errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		return ConnEvent{}, false, nil
	default:
		return ConnEvent{}, false, fmt.Errorf("verbs: event of the connection manager: %w", errno)
	}
	e = ConnEvent{Type: ConnEventType(raw._type), Status: int(raw.status), ID: c.ids[raw.id], Listener: c.ids[raw.listener],
		Private: C.GoBytes(unsafe.Pointer(&raw.data[0]), C.int(raw.length)), ResponderReads: int(raw.responder), InitiatorReads: int(raw.initiator)}
	if e.ID == nil { // a request: the library has made an identifier for it
		e.ID = &ConnID{c, raw.id}
		c.ids[raw.id] = e.ID
	}
	return e, true, nil
}

// Close gives the channel back. Its identifiers must be closed before.
func (c *ConnChannel) Close() error {
	if len(c.ids) > 0 {
		return errors.New("verbs: close a channel of the connection manager: it has identifiers left")
	}
	C.rdma_destroy_event_channel(c.ch)
	return nil
}

// ConnID is a connection, or a listener, of the connection manager.
type ConnID struct {
	channel *ConnChannel
	id      *C.struct_rdma_cm_id
}

// NewID makes an identifier for a reliable connection.
func (c *ConnChannel) NewID() (*ConnID, error) {
	var id *C.struct_rdma_cm_id
	if rc, err := C.rdma_create_id(c.ch, &id, nil, C.RDMA_PS_TCP); rc != 0 {
		return nil, fmt.Errorf("verbs: identifier of the connection manager: %w", err)
	}
	i := &ConnID{c, id}
	c.ids[id] = i
	return i, nil
}

// Listen waits for requests to an address of a device. Port 0 chooses one; it is returned.
func (i *ConnID) Listen(at netip.AddrPort, backlog int) (port uint16, err error) {
	var sa C.struct_sockaddr_storage
	sockaddr(at, &sa)
	if rc, err := C.rdma_bind_addr(i.id, (*C.struct_sockaddr)(unsafe.Pointer(&sa))); rc != 0 {
		return 0, fmt.Errorf("verbs: listen at %v: %w; is it an address of an RDMA device?", at, err)
	}
	if rc, err := C.rdma_listen(i.id, C.int(backlog)); rc != 0 {
		return 0, fmt.Errorf("verbs: listen at %v: %w", at, err)
	}
	p := uint16(C.rdma_get_src_port(i.id)) // in the network's byte order
	return p<<8 | p>>8, nil
}

// ResolveAddr begins to find the device that leads to an address; AddrResolved follows. from may be
// the zero AddrPort, and then the kernel chooses.
func (i *ConnID) ResolveAddr(from, to netip.AddrPort, timeout time.Duration) error {
	var source, destination C.struct_sockaddr_storage
	var src *C.struct_sockaddr
	if from.IsValid() {
		sockaddr(from, &source)
		src = (*C.struct_sockaddr)(unsafe.Pointer(&source))
	}
	sockaddr(to, &destination)
	rc, err := C.rdma_resolve_addr(i.id, src, (*C.struct_sockaddr)(unsafe.Pointer(&destination)), C.int(timeout/time.Millisecond))
	return connError(rc, err, "resolve the address "+to.String())
}

// ResolveRoute begins to find the way; RouteResolved follows. AddrResolved must have come.
func (i *ConnID) ResolveRoute(timeout time.Duration) error {
	rc, err := C.rdma_resolve_route(i.id, C.int(timeout/time.Millisecond))
	return connError(rc, err, "resolve a route")
}

// DeviceName is the name of the device that the identifier is bound to; "" if it is not bound yet.
func (i *ConnID) DeviceName() string {
	if i.id.verbs == nil {
		return ""
	}
	return C.GoString(C.ibv_get_device_name(i.id.verbs.device))
}

// ConnState is a state of a queue pair that Prepare brings it into.
type ConnState int

// The states, in their order.
const (
	StateInit           ConnState = C.IBV_QPS_INIT
	StateReadyToReceive ConnState = C.IBV_QPS_RTR
	StateReadyToSend    ConnState = C.IBV_QPS_RTS
)

// Prepare brings a queue pair into a state with what was negotiated. The side that connects calls
// it for StateInit before Connect, and for the other two after ConnectResponse, before Establish.
// The side that accepts calls it for all three before Accept.
func (i *ConnID) Prepare(q *QP, state ConnState) error {
	var mask C.int
	if errno := C.dsmd_cm_modify(i.id, q.qp, C.int(state), &mask); errno != 0 {
		return fmt.Errorf("verbs: prepare queue pair %d of %s for a connection (state %d): %w", q.QPN(), q.dev.name, state, unix.Errno(errno))
	}
	return nil
}

// Connect asks the peer; ConnectResponse or Rejected follows. RouteResolved must have come. private
// has at most MaxPrivateBytes, and reads is how many reads each side may have outstanding.
func (i *ConnID) Connect(q *QP, private []byte, reads int) error {
	return i.request(q, private, reads, 0, "connect")
}

// Accept answers a ConnectRequest; Established follows when the peer agrees.
func (i *ConnID) Accept(q *QP, private []byte, reads int) error {
	return i.request(q, private, reads, 1, "accept a connection")
}

func (i *ConnID) request(q *QP, private []byte, reads int, accept C.int, what string) error {
	if len(private) > MaxPrivateBytes {
		return fmt.Errorf("verbs: %s: %d bytes of private data, at most %d are possible", what, len(private), MaxPrivateBytes)
	}
	data := append(make([]byte, 0, MaxPrivateBytes), private...)
	errno := C.dsmd_cm_connect(i.id, C.uint32_t(q.QPN()), unsafe.Pointer(unsafe.SliceData(data)), C.int(len(data)), accept, C.int(reads), retries, rnrForever)
	if errno != 0 {
		return fmt.Errorf("verbs: %s: %w", what, unix.Errno(errno))
	}
	return nil
}

// Establish completes Connect after ConnectResponse.
func (i *ConnID) Establish() error {
	rc, err := C.rdma_establish(i.id)
	return connError(rc, err, "establish a connection")
}

// Reject answers a ConnectRequest with no.
func (i *ConnID) Reject() error {
	rc, err := C.rdma_reject(i.id, nil, 0)
	return connError(rc, err, "reject a connection")
}

// Disconnect tells the peer that the connection has ended. The peer gets Disconnected and answers
// with Disconnect; then Disconnected comes here.
func (i *ConnID) Disconnect() error {
	rc, err := C.rdma_disconnect(i.id)
	return connError(rc, err, "disconnect")
}

// Close gives the identifier back, at any time; an attempt to connect ends with it. No event of it
// follows.
func (i *ConnID) Close() error {
	delete(i.channel.ids, i.id)
	rc, err := C.rdma_destroy_id(i.id)
	return connError(rc, err, "close an identifier")
}

func connError(rc C.int, err error, what string) error {
	if rc == 0 {
		return nil
	}
	return fmt.Errorf("verbs: %s: %w", what, err)
}
