package across

import (
	"fmt"

	"dsmd/transport"
)

type pageState string

const (
	leased   pageState = "leased"
	sent     pageState = "already sent"
	borrowed pageState = "borrowed"
	kept     pageState = "kept"
	released pageState = "released"
)

// page is a payload of a stand-in. It serves one frame.
type page struct {
	owner *standIn
	to    transport.NodeID // leased: whom for
	state pageState
	data  []byte
}

// must panics if the page is in none of the states.
func (p *page) must(what string, states ...pageState) {
	for _, s := range states {
		if p.state == s {
			return
		}
	}
	panic(fmt.Sprintf("across: %s of a payload that is %s", what, p.state))
}

// take takes the page for a frame to a peer, and returns its contents.
func (p *page) take(by *standIn, to transport.NodeID) []byte {
	p.must("Send", leased)
	if p.owner != by || p.to != to {
		panic(fmt.Sprintf("across: node %d sends to node %d a payload that node %d has leased for node %d", by.spec.Self, to, p.owner.spec.Self, p.to))
	}
	p.state = sent
	return p.data
}

// Bytes implements transport.Payload.
func (p *page) Bytes() []byte {
	p.must("Bytes", leased, borrowed, kept)
	return p.data
}

// Keep implements transport.Payload.
func (p *page) Keep() {
	p.must("Keep", borrowed)
	p.state = kept
}

// Release implements transport.Payload.
func (p *page) Release() {
	p.must("Release", leased, kept)
	p.state = released
}
