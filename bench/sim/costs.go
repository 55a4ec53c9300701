package sim

import (
	"fmt"
	"time"

	"dsmd/protocol"
)

// frameBytes is what a frame of the TCP transport adds to a message, headerBytes a message without
// a payload, and pageBytes a page.
const (
	frameBytes  = 16
	headerBytes = 40
	pageBytes   = 4096
)

// Costs are what messages and local operations take. DefaultCosts says where the defaults come
// from.
type Costs struct {
	// Latency is how long a message travels, beside what its bytes take on the links.
	Latency time.Duration `json:"latency_ns"`
	// Bandwidth of each node's link, each way, in bytes per second.
	Bandwidth float64 `json:"bandwidth_bytes_per_second"`
	// Send and Receive are the reactor's time for a message, and Further that for one more which
	// goes to the same node, or comes from it, in the same system call.
	Send    time.Duration `json:"send_ns"`
	Receive time.Duration `json:"receive_ns"`
	Further time.Duration `json:"further_ns"`
	// Trap is the way of a fault to the reactor and of the woken thread back, and Call that of a
	// call of a program: both are charged to the reactor.
	Trap time.Duration `json:"trap_ns"`
	Call time.Duration `json:"call_ns"`
	// What the page table takes for an operation on one page, and for reading one that is to be
	// sent.
	Install      time.Duration `json:"install_ns"`
	MakeWritable time.Duration `json:"make_writable_ns"`
	Downgrade    time.Duration `json:"downgrade_ns"`
	Revoke       time.Duration `json:"revoke_ns"`
	ReadPage     time.Duration `json:"read_page_ns"`
}

// DefaultCosts are measured on the machines this project is built on. docs/scale.md lists them;
// docs/decisions/0002 has the round trip and docs/kernel.md the two local faults. Of the others no
// other record is kept. A round trip of 16 bytes through transport/tcp takes 7.2 µs with both ends
// polling, which is two ways of 1.5 µs to send, 0.6 µs to travel and 1.5 µs to receive. (The sum is
// measured; how it divides is an assumption.) In a system call for 64 messages each but the first
// takes a hundredth of what one takes alone; what is left is to write and read it. One TCP stream
// moves 2.0 to 2.7 GB/s. A read miss that is served locally takes 6.1 µs, of which filling and
// mapping the page takes 2.4 (1.7 GB/s), so the trap takes 3.7; making a page writable locally
// takes 5.9 with the trap. Write-protecting takes 0.6 µs, punching a hole 3.1, reading a page from
// its file 0.4, a round trip over a Unix socket 2.8.
func DefaultCosts() Costs {
	return Costs{
		Latency: 600, Bandwidth: 2.35e9, Send: 1500, Receive: 1500, Further: 100, Trap: 3700, Call: 2800,
		Install: 2400, MakeWritable: 2200, Downgrade: 600, Revoke: 3100, ReadPage: 400,
	}
}

// maxCost bounds each cost: more than a second for one message is a mistake in the unit.
const maxCost = time.Second

func (c *Costs) validate() error {
	for name, d := range c.durations() {
		if d < 0 || d > maxCost {
			return fmt.Errorf("sim: a cost %s of %v; it is from 0 to %v", name, d, maxCost)
		}
	}
	if c.Further > min(c.Send, c.Receive) {
		return fmt.Errorf("sim: a further message costs %v, and the first %v to send and %v to receive; it is at most the less of them", c.Further, c.Send, c.Receive)
	}
	if !(c.Bandwidth >= 1e3 && c.Bandwidth <= 1e15) {
		return fmt.Errorf("sim: a bandwidth of %g bytes per second; it is from 1e3 to 1e15", c.Bandwidth)
	}
	return nil
}

func (c *Costs) durations() map[string]time.Duration {
	return map[string]time.Duration{
		"latency": c.Latency, "send": c.Send, "receive": c.Receive, "further": c.Further, "trap": c.Trap, "call": c.Call, "install": c.Install,
		"make-writable": c.MakeWritable, "downgrade": c.Downgrade, "revoke": c.Revoke, "read-page": c.ReadPage,
	}
}

// operation is what the page table takes for what the engine has ordered.
func (c *Costs) operation(kind protocol.EffectKind) time.Duration {
	switch kind {
	case protocol.EffectInstall, protocol.EffectMap:
		return c.Install
	case protocol.EffectMakeWritable:
		return c.MakeWritable
	case protocol.EffectDowngrade:
		return c.Downgrade
	case protocol.EffectRevoke:
		return c.Revoke
	default:
		panic(fmt.Sprintf("sim: no program here leads to an operation of kind %d", kind))
	}
}

// onLink is how long n bytes occupy a link.
func (c *Costs) onLink(n int) time.Duration {
	return time.Duration(float64(n) / c.Bandwidth * float64(time.Second))
}
