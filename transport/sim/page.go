package sim

import (
	"fmt"

	"dsmd/transport"
)

// poison overwrites memory that its user has given up.
const poison = 0xdb

func overwrite(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = poison
	for filled := 1; filled < len(b); filled *= 2 {
		copy(b[filled:], b[:filled])
	}
}

type pageState uint8

const (
	pageLeased   pageState = iota // the caller of Lease
	pageQueued                    // the network
	pageBorrowed                  // the handler, until Frame returns
	pageKept                      // the handler, until Release
	pageReleased                  // nobody, for good
)

var pageStateNames = [...]string{"leased", "already sent", "borrowed", "kept", "released"}

// page is the transport.Payload of this package. A page serves one frame, so that its state tells every misuse.
type page struct {
	node  *node            // who owns it, or will when it has arrived
	to    transport.NodeID // leased: whom for
	state pageState
	data  []byte
}

// Bytes implements transport.Payload.
func (p *page) Bytes() []byte {
	if p.state == pageQueued || p.state == pageReleased {
		panic(fmt.Sprintf("sim: Bytes of a payload that is %s", pageStateNames[p.state]))
	}
	return p.data
}

// Keep implements transport.Payload.
func (p *page) Keep() {
	if p.state != pageBorrowed {
		panic(fmt.Sprintf("sim: Keep of a payload that is %s; only a borrowed one, and once", pageStateNames[p.state]))
	}
	p.state = pageKept
}

// Release implements transport.Payload.
func (p *page) Release() {
	if p.state != pageKept && p.state != pageLeased {
		panic(fmt.Sprintf("sim: Release of a payload that is %s; only a kept or a leased one, and once",
			pageStateNames[p.state]))
	}
	p.retire()
}

func (p *page) retire() {
	overwrite(p.data)
	p.state = pageReleased
}
