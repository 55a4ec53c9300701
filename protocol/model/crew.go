package model

import (
	"slices"

	"dsmd/protocol"
)

// site is a node's name and its place among the others: what all its layers know. Each layer embeds
// the one below and uses what is there: site, crew (the threads), pageTable, controlPages, and
// Node, which has the engine.
type site struct {
	config *Config
	self   protocol.NodeID
	standing
}

// crew is the threads of a node.
type crew struct {
	site
	threads []thread
}

// threadState is where a thread is in its current operation.
type threadState uint8

const (
	threadReady   threadState = iota // may try its operation
	threadBlocked                    // has faulted, waits to be woken
	threadWaiting                    // has called, waits for an answer
	threadDead                       // its client is gone
)

type thread struct {
	spec       *ThreadSpec
	index      int // in Config.Threads
	rank       uint32
	pc         int
	state      threadState
	duplicates uint8 // faults that may still be reported too often
	strays     uint8 // the same, for the operation before
	attempt    uint8 // of the current call, counted from 0: it was cancelled so often
	cancelled  bool  // the current call was cancelled, and no answer came yet
	space      uint8 // the number of its program on the node
	expelled   bool  // its program was expelled
}

func (t *thread) done() bool {
	return t.state == threadDead || t.expelled || t.pc == len(t.spec.Program)
}

// op is the current operation; its Kind is 0 after the last.
func (t *thread) op() Op {
	if t.pc == len(t.spec.Program) {
		return Op{}
	}
	return t.spec.Program[t.pc]
}

// ticket is unique on the node for each call ever made.
func (t *thread) ticket() protocol.Ticket {
	return protocol.Ticket(t.index+1)<<32 | protocol.Ticket(t.pc)<<8 | protocol.Ticket(t.attempt)
}

// Done reports whether all threads of the node have finished or died.
func (n *crew) Done() bool {
	for i := range n.threads {
		if !n.threads[i].done() {
			return false
		}
	}
	return true
}

// Threads is how many threads the node has, dead ones included.
func (n *crew) Threads() int { return len(n.threads) }

// local is the index of t on this node.
func (n *crew) local(t *thread) int {
	return slices.IndexFunc(n.threads, func(u thread) bool { return u.index == t.index })
}

func (n *crew) retirement(kind RetireKind, t *thread, r Retirement) Retirement {
	r.Kind, r.Node, r.Client, r.Thread, r.Op, r.Rank = kind, n.self, t.spec.Client, t.index, t.op(), t.rank
	r.Blocked, r.Alone = n.blocked, n.alone
	return r
}

// advance moves a thread to its next operation.
func (n *crew) advance(t *thread, out *Outcome) {
	t.strays = 0
	if n.config.Strays && t.op().touchesPage() {
		t.strays = t.duplicates
	}
	t.pc++
	t.state, t.duplicates, t.attempt, t.cancelled = threadReady, n.config.Duplicates, 0, false
	if op := t.op(); !op.touchesPage() {
		t.duplicates = 0 // only faults can be duplicated; a canonical state has no unused budget
	}
	out.Runnable = append(out.Runnable, n.local(t))
}

// callAgain has a thread repeat a call that was cancelled.
func (n *crew) callAgain(t *thread, out *Outcome) {
	t.state, t.cancelled = threadReady, false
	t.attempt++
	out.Runnable = append(out.Runnable, n.local(t))
}

// skipSection moves a thread that was turned away from a lock behind what it would have done with
// it.
func (n *crew) skipSection(t *thread, out *Outcome) {
	lock := t.op()
	for t.pc+1 < len(t.spec.Program) {
		op := t.spec.Program[t.pc+1]
		if (op.Kind == OpUnlock || op.Kind == OpRUnlock) && op.Number == lock.Number {
			break
		}
		t.pc++
	}
	if t.pc+1 < len(t.spec.Program) {
		t.pc++
	}
	n.advance(t, out)
}

func (n *crew) runAll(out *Outcome) {
	for i := range n.threads {
		out.Runnable = append(out.Runnable, i)
	}
}
