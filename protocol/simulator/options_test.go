package simulator

import (
	"io"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// Options are one run. The same options give the same run.
type Options struct {
	Seed uint64
	// Config is the cluster and its programs; Generate makes one. Its Duplicates and Strays bound
	// the faults that are repeated.
	Config *model.Config
	// Start is the reading of the nodes' clocks at the beginning.
	Start protocol.Time
	// InjectUntil is when repeated faults and cancellations stop.
	InjectUntil Micros
	// Deadline is when all programs must have finished, and all messages must have arrived.
	Deadline Micros
	// Repeat is the probability, in percent, that something optional is tried after a step of a
	// thread.
	Repeat int
	// Stall is the probability, in percent, that a thread loses the processor for up to StallMax
	// before its next step.
	Stall    int
	StallMax Micros
	// Crashes are nodes that are lost, each at its time. They are in Config.Crash too.
	Crashes []Crash
	// Cut is when the nodes of Config.Cut are cut off, all at once. What they do not know they
	// learn one by one, each in BlockWithin, and some are ended afterwards.
	Cut Micros
	// Moves are nodes that come or leave, each as soon as it can from its time on. They are in
	// Config.Join or Config.Leave too.
	Moves []Move
	// Trace gets a line for each action, and one for each effect; nil: nobody.
	Trace io.Writer
}

// Crash is the loss of a node. The others learn of it one by one, each in LearnWithin.
type Crash struct {
	Node protocol.NodeID
	At   Micros
}

// Move is the coming or the leaving of a node. The others learn of each step one by one, each in
// LearnWithin.
type Move struct {
	Node protocol.NodeID
	At   Micros
}
