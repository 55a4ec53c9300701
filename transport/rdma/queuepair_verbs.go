//go:build rdma

package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"dsmd/internal/verbs"
)

// queuePair is the endpoint of verbs.
type queuePair struct {
	f         *device
	qp        *verbs.QP
	id        *verbs.ConnID // of the connection manager; nil: none yet
	token     [tokenBytes]byte
	peerToken [tokenBytes]byte
	way       byte // how it is set up: as the one who makes the offer proposes
	tried     bool // this side has begun to connect it
	ready     bool // and has succeeded
	failed    bool
}

func (q *queuePair) number() uint32 { return q.qp.QPN() }

func (q *queuePair) maxInline() int { return q.qp.MaxInline() }

// describe writes the way of set-up and then, for setupDirect: queue pair u32, first packet u32,
// address 16 bytes, LID u16, packet size u16; for setupManager: address 16 bytes, port u16, token.
func (q *queuePair) describe() []byte {
	f := q.f
	if q.way == setupManager {
		ip := f.address.Addr().As16()
		b := append([]byte{setupManager}, ip[:]...)
		b = binary.LittleEndian.AppendUint16(b, f.address.Port())
		return append(b, q.token[:]...)
	}
	e := q.qp.Endpoint(f.Port, f.GID)
	ip := e.GID.As16()
	b := binary.LittleEndian.AppendUint32([]byte{setupDirect}, e.QPN)
	b = binary.LittleEndian.AppendUint32(b, e.PSN)
	b = append(b, ip[:]...)
	b = binary.LittleEndian.AppendUint16(b, e.LID)
	return binary.LittleEndian.AppendUint16(b, uint16(e.MTU))
}

const (
	directBytes  = 1 + 4 + 4 + 16 + 2 + 2
	managerBytes = 1 + 16 + 2 + tokenBytes
)

// check returns why a peer's description is not of the way in which the queue pair is set up; nil:
// it is.
func (q *queuePair) check(peer []byte) error {
	bytes := directBytes
	if q.way == setupManager {
		bytes = managerBytes
	}
	if len(peer) != bytes || peer[0] != q.way {
		return fmt.Errorf("rdma: %w: a description of a queue pair of %d bytes, for another way to set it up", ErrMalformed, len(peer))
	}
	return nil
}

func (q *queuePair) accept(peer []byte) error {
	if len(peer) > 0 {
		q.way = peer[0]
	}
	switch {
	case q.way == setupManager && q.f.manager == nil:
		return errors.New("rdma: the peer wants to connect by librdmacm, which is not used with TLS or on InfiniBand; do all nodes use TLS, or none?")
	case q.way == setupDirect && q.f.Info.IWARP:
		return errors.New("rdma: the peer wants to connect without librdmacm, which iWARP cannot")
	}
	if err := q.check(peer); err != nil {
		return err
	}
	if q.way == setupManager {
		q.f.tokens[q.token] = q
		return nil
	}
	return q.join(peer)
}

func (q *queuePair) connect(peer []byte) (bool, error) {
	if err := q.check(peer); err != nil {
		return false, err
	}
	q.tried = true
	if q.way == setupDirect {
		err := q.join(peer)
		q.ready = err == nil
		return q.ready, err
	}
	to := netip.AddrPortFrom(netip.AddrFrom16([16]byte(peer[1:17])).Unmap(), binary.LittleEndian.Uint16(peer[17:]))
	copy(q.peerToken[:], peer[19:])
	id, err := q.f.manager.NewID()
	if err != nil {
		return false, fmt.Errorf("rdma: %w", err)
	}
	q.id = id
	q.f.ids[id] = q
	from := netip.AddrPortFrom(q.f.GID.Addr.Unmap(), 0)
	if err := id.ResolveAddr(from, to, resolveTimeout); err != nil {
		return false, fmt.Errorf("rdma: %w", err)
	}
	return false, nil
}

// join connects the queue pair to one whose description is complete.
func (q *queuePair) join(peer []byte) error {
	port, gid := q.f.Port, q.f.GID
	to := verbs.Endpoint{
		QPN: binary.LittleEndian.Uint32(peer[1:]), PSN: binary.LittleEndian.Uint32(peer[5:]), GID: netip.AddrFrom16([16]byte(peer[9:25])),
		LID: binary.LittleEndian.Uint16(peer[25:]), MTU: int(binary.LittleEndian.Uint16(peer[27:])),
	}
	err := q.qp.Init(port.Number)
	if err == nil {
		err = q.qp.ReadyToReceive(port.Number, gid.Index, to, port.ActiveMTU, reads)
	}
	if err == nil {
		err = q.qp.ReadyToSend(reads)
	}
	if err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	return nil
}

func (q *queuePair) post(requests []verbs.SendRequest) error {
	if _, err := q.qp.PostSend(requests); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	return nil
}

func (q *queuePair) fail() {
	if q.failed {
		return
	}
	q.failed = true
	if q.tried && !q.ready {
		q.f.failed(q.way)
	}
	// A queue pair that can't even fail is closed soon, which ends it as well.
	_ = q.qp.Fail()
	q.forget()
}

// forget ends what the connection manager has of the queue pair.
func (q *queuePair) forget() {
	delete(q.f.tokens, q.token)
	if q.id != nil {
		delete(q.f.ids, q.id)
		_ = q.id.Close()
		q.id = nil
	}
}

func (q *queuePair) close() error {
	q.forget()
	delete(q.f.ends, q.number())
	if err := q.qp.Close(); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	return nil
}
