package node

import (
	"testing"

	"dsmd/internal/diskio"
	"dsmd/transport"
)

// lending is a transport whose payloads no direct input can use, and that knows how many are lent.
type lending struct {
	transport.Transport
	lent int
}

func (l *lending) Lease(transport.NodeID) transport.Payload {
	l.lent++
	return l
}
func (l *lending) Bytes() []byte { return []byte{0} }
func (l *lending) Keep()         {}
func (l *lending) Release()      { l.lent-- }

// TestNoMemoryToRead: there is no memory for what is read for another node. Its payload is given
// back.
func TestNoMemoryToRead(t *testing.T) {
	const moreThanThereIs = 1 << 45
	io, err := diskio.New(moreThanThereIs)
	if err != nil {
		t.Fatal(err)
	}
	defer io.Close()
	net := &lending{}
	s := &storage{io: io, out: &outbox{net: &network{Transport: net}}}
	if err := s.buffer(&service{}); err == nil {
		t.Fatal("there is memory")
	}
	if net.lent != 0 {
		t.Errorf("%d payloads are lent", net.lent)
	}
	kept := &service{Transfer: diskio.Transfer{Write: true}, payload: net.Lease(0)}
	if err := s.buffer(kept); err == nil || net.lent != 1 {
		t.Errorf("%v, and %d payloads are lent; that of a write is its caller's", err, net.lent)
	}
}
