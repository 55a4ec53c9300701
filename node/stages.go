package node

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"dsmd/pagetable"
	"dsmd/protocol"

	"golang.org/x/sys/unix"
)

// Stage is a point that a fault passes in the daemons that deal with it. Its text is a contract
// with those who read a log that was written.
type Stage string

// The stages that a daemon notes.
const (
	StageFault    Stage = "fault"    // a fault was read from the program's trap
	StagePosted   Stage = "posted"   // a message about the page was decided and queued
	StageSent     Stage = "sent"     // the kernel has taken it
	StageReceived Stage = "received" // a message about the page was received
	StageDone     Stage = "done"     // an operation of the page table on the page has taken effect
)

// MaxStages bounds the capacity of a StageLog: 768 MiB.
const MaxStages = 1 << 24

// StageRecord is a stage that a page has passed.
type StageRecord struct {
	// Nanos is when, in nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
	Nanos int64  `json:"ns"`
	Page  uint64 `json:"page"`
	Stage Stage  `json:"stage"`
	What  string `json:"what,omitempty"` // the kind of the message, or the operation
}

// StageLog has the stages that pages have passed lately in one node, for those who want to know
// where the time of a fault goes. Its memory is reserved from the start; when it is full the oldest
// records give way. The node that it is given to (Config.Stages) fills it, and any goroutine may
// read it meanwhile. A nil *StageLog notes nothing, and costs a comparison.
type StageLog struct {
	offset time.Duration // from the node's clock to CLOCK_MONOTONIC
	queued []StageRecord // posted and not sent yet; at most maxQueued, others are not noted as sent

	mu      sync.Mutex
	records []StageRecord // guarded by mu
	count   int           // of all that were noted, also those that have given way; guarded by mu
}

// maxQueued bounds the messages of one flush whose sending is noted.
const maxQueued = 64

// NewStageLog makes a log of so many records, 1 to MaxStages.
func NewStageLog(capacity int) (*StageLog, error) {
	if capacity < 1 || capacity > MaxStages {
		return nil, fmt.Errorf("node: a log of %d stages; 1 to %d are possible", capacity, MaxStages)
	}
	l := &StageLog{records: make([]StageRecord, capacity), queued: make([]StageRecord, 0, maxQueued)}
	for i := range l.records {
		l.records[i].Page = 1 // so that no record is the first to touch its memory when it is noted
	}
	return l, nil
}

// begin sets the log to a node's clock, which has started at start.
func (l *StageLog) begin(start time.Time) error {
	if l == nil {
		return nil
	}
	// The two clocks are read together, unless something comes between: then once more.
	closest := time.Duration(math.MaxInt64)
	for range 100 {
		var now unix.Timespec
		before := time.Since(start)
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return fmt.Errorf("node: read CLOCK_MONOTONIC: %w", err)
		}
		if apart := time.Since(start) - before; apart < closest {
			closest, l.offset = apart, time.Duration(now.Nano())-before-apart/2
		}
	}
	return nil
}

// Records lists what was noted, oldest first.
func (l *StageLog) Records() []StageRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count <= len(l.records) {
		return slices.Clone(l.records[:l.count])
	}
	first := l.count % len(l.records)
	return slices.Concat(l.records[first:], l.records[:first])
}

// ServeHTTP answers with the records as JSON, one a line.
func (l *StageLog) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/jsonl")
	out := json.NewEncoder(w)
	for _, r := range l.Records() {
		if out.Encode(r) != nil {
			return // whoever asked has gone
		}
	}
}

func (l *StageLog) add(r StageRecord) {
	l.mu.Lock()
	l.records[l.count%len(l.records)] = r
	l.count++
	l.mu.Unlock()
}

// noOp is of stages that are none of an operation.
const noOp = pagetable.Op(0)

// passed notes a stage of a page, and of an operation on it.
func (m *meter) passed(page pagetable.Page, s Stage, op pagetable.Op) {
	if m.stages == nil {
		return
	}
	r := StageRecord{Nanos: m.monotonic(), Page: uint64(page), Stage: s}
	if op != noOp {
		r.What = op.String()
	}
	m.stages.add(r)
}

// passedBy notes a stage of a message, if it is about a page.
func (m *meter) passedBy(about *protocol.Message, s Stage) {
	if m.stages == nil || about.Object.IsLock() || about.Kind >= protocol.KindBarrierCombine && about.Kind <= protocol.KindBarrierBroadcastAck {
		return
	}
	r := StageRecord{Nanos: m.monotonic(), Page: about.Object.Page(), Stage: s, What: about.Kind.String()}
	m.stages.add(r)
	if s == StagePosted && len(m.stages.queued) < maxQueued {
		m.stages.queued = append(m.stages.queued, r)
	}
}

// passedOn notes that what was posted is with the kernel.
func (m *meter) passedOn() {
	if m.stages == nil || len(m.stages.queued) == 0 {
		return
	}
	now := m.monotonic()
	for _, r := range m.stages.queued {
		r.Nanos, r.Stage = now, StageSent
		m.stages.add(r)
	}
	m.stages.queued = m.stages.queued[:0]
}

func (m *meter) monotonic() int64 { return int64(m.clock.read() + m.stages.offset) }
