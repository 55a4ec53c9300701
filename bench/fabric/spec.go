package fabric

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Kind is how two ends are connected.
type Kind string

// The kinds: a reliable connection of RDMA, and TCP.
const (
	RC  Kind = "RC"
	TCP Kind = "TCP"
)

// Operation is what is measured.
type Operation string

// The operations of the fabric. TCP has Send alone: bytes into one end of a connection and out of
// the other.
const (
	Write    Operation = "write"
	WriteImm Operation = "write with immediate"
	Read     Operation = "read"
	Send     Operation = "send"
)

// Fetches of a page, by what the answer to a request consists of. The one-sided fetch is Read.
const (
	// the page, which brings its own message
	AnswerWriteImm Operation = "send; write with immediate"
	// the page, and a message of the request's size
	AnswerWriteSend Operation = "send; write, send"
	AnswerSendWrite Operation = "send; send, write with immediate" // the same in the other order
	AnswerSend      Operation = "send; send"                       // a message that holds the page
)

// Designs of registered memory for pages.
const (
	Pool         Operation = "pool of slots"
	EachTransfer Operation = "register each transfer"
	Cache        Operation = "registration cache"
)

// Measure is what is wanted of an operation.
type Measure string

// The measures.
const (
	Latency   Measure = "latency"
	Bandwidth Measure = "bandwidth"
)

const (
	// MaxBytes is the largest message that is measured.
	MaxBytes = 1 << 20
	// MaxConnections is the most connections between the two ends.
	MaxConnections = 64
	// MinBytes holds the number by which an answer is known.
	MinBytes = 8
	// MaxPages is the largest working set of a design, in pages.
	MaxPages = 1 << 15
	// maxDesignBytes bounds a working set in bytes: the largest of workingSets, of the largest
	// pages.
	maxDesignBytes = 2 * cachedPages * MaxBytes
	// MaxControl is the longest message about a page.
	MaxControl = 4096
	// MaxTime bounds one measurement.
	MaxTime = time.Minute
)

// A Spec is one measurement.
type Spec struct {
	Kind        Kind          `json:"kind"`
	Operation   Operation     `json:"operation"`
	Measure     Measure       `json:"measure"`
	Bytes       int           `json:"bytes"`             // of the message, or of the page
	Request     int           `json:"request,omitempty"` // bytes of a fetch's request
	Connections int           `json:"connections"`
	Time        time.Duration `json:"time"` // how long to measure
	// Pages is the working set of a design, and Cached how many registrations its cache holds.
	Pages  int `json:"pages,omitempty"`
	Cached int `json:"cached,omitempty"`
	// Exchanged says that the driving end is on the second core, and the serving one on the first.
	Exchanged bool `json:"exchanged,omitempty"`
}

// errSpec is wrapped by what is wrong with a Spec, which may come from another machine.
var errSpec = errors.New("no such measurement")

// isFetch reports whether the operation is an answer to a request.
func (o Operation) isFetch() bool {
	return o == AnswerWriteImm || o == AnswerWriteSend || o == AnswerSendWrite || o == AnswerSend
}

func (o Operation) isDesign() bool { return o == Pool || o == EachTransfer || o == Cache }

// offers lists what is measured of each kind of connection. Bandwidths are TCP's alone: perftest
// measures RDMA's.
var offers = map[Kind][]Operation{
	RC:  {Write, WriteImm, Read, Send, AnswerWriteImm, AnswerWriteSend, AnswerSendWrite, AnswerSend, Pool, EachTransfer, Cache},
	TCP: {Send, AnswerSend},
}

func (s Spec) check() error {
	most := MaxBytes
	if s.Operation == AnswerWriteImm {
		most += MaxControl // The page may bring its message.
	}
	switch {
	case !slices.Contains(offers[s.Kind], s.Operation):
		return fmt.Errorf("%w: %s has no %q", errSpec, s.Kind, s.Operation)
	case s.Measure != Latency && s.Measure != Bandwidth || s.Measure == Bandwidth && (s.Kind != TCP || s.Operation.isFetch()):
		return fmt.Errorf("%w: %q of %q", errSpec, s.Measure, s.Operation)
	case s.Bytes < MinBytes || s.Bytes > most:
		return fmt.Errorf("%w: messages of %d bytes; use %d to %d", errSpec, s.Bytes, MinBytes, most)
	case s.Operation.isFetch() && (s.Request < MinBytes || s.Request > s.Bytes):
		return fmt.Errorf("%w: a request of %d bytes; use %d to the page's %d", errSpec, s.Request, MinBytes, s.Bytes)
	case !s.Operation.isFetch() && s.Request != 0:
		return fmt.Errorf("%w: %q has no request, and there is one of %d bytes", errSpec, s.Operation, s.Request)
	case s.Connections < 1 || s.Connections > MaxConnections || s.Connections > 1 && s.Measure == Latency:
		return fmt.Errorf("%w: %d connections; use 1, or for a bandwidth up to %d", errSpec, s.Connections, MaxConnections)
	case s.Time <= 0 || s.Time > MaxTime:
		return fmt.Errorf("%w: measuring for %v; use up to %v", errSpec, s.Time, MaxTime)
	case s.Operation.isDesign() && (s.Pages < 1 || s.Pages > MaxPages):
		return fmt.Errorf("%w: a working set of %d pages; use 1 to %d", errSpec, s.Pages, MaxPages)
	case s.Operation.isDesign() && s.Pages*s.Bytes > maxDesignBytes:
		return fmt.Errorf("%w: a working set of %d bytes; use up to %d", errSpec, s.Pages*s.Bytes, maxDesignBytes)
	case s.Operation == Cache && s.Cached < 1:
		return fmt.Errorf("%w: a cache of %d registrations", errSpec, s.Cached)
	}
	return nil
}

// String describes the measurement for people.
func (s Spec) String() string {
	return fmt.Sprintf("%s of %s over %s, %d bytes, %d connections", s.Measure, s.Operation, s.Kind, s.Bytes, s.Connections)
}

// A Point is what was measured. Of a latency there are the times, in microseconds; of a bandwidth
// the rates.
type Point struct {
	Section     Section   `json:"section"`
	Kind        Kind      `json:"kind"`
	Operation   Operation `json:"operation"`
	Bytes       int       `json:"bytes"`
	Connections int       `json:"connections"`
	Samples     int       `json:"samples"` // operations that were measured
	P50         float64   `json:"p50_us,omitempty"`
	P99         float64   `json:"p99_us,omitempty"`
	Mean        float64   `json:"mean_us,omitempty"`
	PerSecond   float64   `json:"per_second,omitempty"`    // operations
	MBPerSecond float64   `json:"mb_per_second,omitempty"` // 10^6 bytes of messages
	// Pages is the working set of a design, and Registrations how many registrations both ends
	// together made for a fetch.
	Pages         int     `json:"pages,omitempty"`
	Registrations float64 `json:"registrations,omitempty"`
}

// newLatency summarises samples, in the order in which they were taken.
func newLatency(s Spec, samples []time.Duration) Point {
	p := Point{Kind: s.Kind, Operation: s.Operation, Bytes: s.Bytes, Connections: s.Connections, Samples: len(samples), Pages: s.Pages}
	if len(samples) == 0 {
		return p
	}
	var sum time.Duration
	for _, d := range samples {
		sum += d
	}
	sorted := slices.Sorted(slices.Values(samples))
	p.P50, p.P99 = microseconds(sorted[len(sorted)/2]), microseconds(sorted[len(sorted)*99/100])
	p.Mean = microseconds(sum) / float64(len(samples))
	return p
}

// better reports whether a run of the same measurement was disturbed less by what else the machine
// did.
func (p Point) better(q Point) bool {
	if p.MBPerSecond > 0 || q.MBPerSecond > 0 {
		return p.MBPerSecond > q.MBPerSecond
	}
	return p.P50 < q.P50
}

// newBandwidth is what messages come to in a time.
func newBandwidth(s Spec, sent uint64, took time.Duration) Point {
	p := Point{Kind: s.Kind, Operation: s.Operation, Bytes: s.Bytes, Connections: s.Connections, Samples: int(sent)}
	p.PerSecond = float64(sent) / took.Seconds()
	p.MBPerSecond = p.PerSecond * float64(s.Bytes) / 1e6
	return p
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
