package fabric

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"dsmd/bench/table"
	"dsmd/transport"
)

// A Fetch is one way to get a page, or one of the operations that a page fetch is made of: the
// medians, over the runs, of each run's figures.
type Fetch struct {
	Fabric string  `json:"fabric"` // RDMA or TCP
	Name   string  `json:"name"`
	P50    float64 `json:"p50_us"`
	P99    float64 `json:"p99_us"`
	Low    float64 `json:"p50_us_least"` // of the runs
	High   float64 `json:"p50_us_greatest"`
	Runs   int     `json:"runs"`
	// Ratio is the median of the runs' own ratios: of a run's P50, over the sum of that of the two
	// operations that a fetch consists of at least, half a round trip with the page and half a
	// round trip with a message. What a run has of the machine, others may have more or less of.
	// Least is Low, over the sum of the Lows: of the runs that were disturbed least.
	Ratio float64 `json:"ratio,omitempty"`
	Least float64 `json:"ratio_least,omitempty"`
}

// sumName is the row that the others are compared with.
const sumName = "the sum of these two"

// A method is one row of a fabric's table of fetches.
type method struct {
	name    string
	measure func(exchanged bool) (Point, error)
	samples []Point // of the runs
}

// run measures twice, with the ends on either core, because one core may be slower than the other:
// half a round trip has as much of the one as of the other, but in a fetch one end does most of the
// work.
func (m *method) run() error {
	var points [2]Point
	for i := range points {
		var err error
		if points[i], err = m.measure(i == 1); err != nil {
			return err
		}
	}
	m.samples = append(m.samples, Point{P50: (points[0].P50 + points[1].P50) / 2, P99: (points[0].P99 + points[1].P99) / 2})
	return nil
}

// fetches measures page fetches by all fabrics of the options. The rows of a fabric alternate, so
// that what changes on the machine meanwhile falls on all of them.
func (s *Session) fetches(ctx context.Context, o Options, step func(string, int, int)) (all []Fetch, notes []string, err error) {
	for _, fabric := range []struct {
		name    string
		wanted  bool
		methods []*method
	}{{"RDMA", o.RDMA, s.rdmaMethods(ctx, o)}, {"TCP", o.TCP, s.tcpMethods(o)}} {
		if !fabric.wanted {
			continue
		}
		if s.local == nil {
			notes = append(notes, "fetches through transport/"+map[string]string{"RDMA": "rdma", "TCP": "tcp"}[fabric.name]+" are measured only with both ends on this machine")
			fabric.methods = slices.DeleteFunc(fabric.methods, func(m *method) bool { return m.name == transportName(fabric.name) })
		}
		for run := range o.Runs {
			for i, m := range fabric.methods {
				if ctx.Err() != nil {
					return all, notes, context.Cause(ctx)
				}
				step("fetch by "+fabric.name+": "+m.name, run*len(fabric.methods)+i, o.Runs*len(fabric.methods))
				if err := m.run(); err != nil {
					return all, notes, err
				}
			}
		}
		all = append(all, rowsOf(fabric.name, fabric.methods)...)
	}
	return all, notes, nil
}

func transportName(fabric string) string {
	return map[string]string{"RDMA": "transport/rdma", "TCP": "transport/tcp"}[fabric]
}

// spec makes a method that measures a latency between the session's ends.
func (s *Session) spec(o Options, name string, kind Kind, op Operation, bytes int) *method {
	spec := Spec{Kind: kind, Operation: op, Measure: Latency, Bytes: bytes, Connections: 1, Time: o.Time}
	if op.isFetch() {
		spec.Request = o.Control
	}
	return &method{name: name, measure: func(exchanged bool) (Point, error) {
		spec.Exchanged = exchanged
		return s.Measure(spec)
	}}
}

// The first two methods are those whose sum the others are compared with.
func (s *Session) rdmaMethods(ctx context.Context, o Options) []*method {
	var methods []*method
	if o.Perftest {
		methods = append(methods, s.perftest(ctx, "ib_write_lat", o.Page), s.perftest(ctx, "ib_send_lat", o.Control))
	}
	return append(methods,
		s.spec(o, fmt.Sprintf("write of %d bytes, half a round trip (ib_write_lat)", o.Page), RC, Write, o.Page),
		s.spec(o, fmt.Sprintf("send of %d bytes, half a round trip (ib_send_lat)", o.Control), RC, Send, o.Control),
		s.spec(o, "one-sided: read", RC, Read, o.Page),
		s.spec(o, "two-sided: send; write with immediate", RC, AnswerWriteImm, o.Page),
		s.spec(o, "two-sided: send; write with immediate of page and message", RC, AnswerWriteImm, o.Page+o.Control),
		s.spec(o, "two-sided: send; write, send", RC, AnswerWriteSend, o.Page),
		s.spec(o, "two-sided: send; send, write with immediate", RC, AnswerSendWrite, o.Page),
		s.spec(o, "two-sided: send; send", RC, AnswerSend, o.Page),
		&method{name: transportName("RDMA"), measure: func(exchanged bool) (Point, error) { return transportFetch(s.rdmaPair, o, exchanged) }},
	)
}

func (s *Session) tcpMethods(o Options) []*method {
	return []*method{
		s.spec(o, fmt.Sprintf("%d bytes, half a round trip", o.Page), TCP, Send, o.Page),
		s.spec(o, fmt.Sprintf("%d bytes, half a round trip", o.Control), TCP, Send, o.Control),
		s.spec(o, "two bare sockets, polled", TCP, AnswerSend, o.Page),
		{name: transportName("TCP"), measure: func(exchanged bool) (Point, error) { return transportFetch(tcpPair, o, exchanged) }},
	}
}

// rowsOf summarises the runs of a fabric's methods.
func rowsOf(fabric string, methods []*method) []Fetch {
	sums := make([]Point, len(methods[0].samples))
	for run := range sums {
		page, message := methods[0].samples[run], methods[1].samples[run]
		sums[run] = Point{P50: page.P50 + message.P50, P99: page.P99 + message.P99}
	}
	var all []Fetch
	add := func(name string, samples []Point) {
		var p50, p99, ratios []float64
		for run, p := range samples {
			p50, p99, ratios = append(p50, p.P50), append(p99, p.P99), append(ratios, p.P50/sums[run].P50)
		}
		f := Fetch{Fabric: fabric, Name: name, P50: table.Median(p50), P99: table.Median(p99), Low: slices.Min(p50), High: slices.Max(p50), Runs: len(p50)}
		if len(all) > 2 { // the first two, and their sum
			f.Ratio, f.Least = table.Median(ratios), f.Low/(all[0].Low+all[1].Low)
		}
		all = append(all, f)
	}
	for i, m := range methods {
		add(m.name, m.samples)
		if i == 1 {
			add(sumName, sums)
		}
	}
	return all
}

// transportFetch measures how long a page takes through a pair of transports: node 0 asks for a
// page by its number, node 1 copies the page into a leased payload and sends it with a message that
// has the same number.
func transportFetch(makePair func(pageBytes int) (pair, error), o Options, exchanged bool) (p Point, err error) {
	nodes, err := makePair(o.Page)
	if err != nil {
		return p, err
	}
	// Both at once, because each may wait for the other to take leave.
	defer func() { err = errors.Join(err, atOnce(func(i int) error { return nodes.nodes[i].Close() })) }()
	asks := &fetcher{tr: nodes.nodes[0], control: make([]byte, o.Control)}
	has := &supplier{tr: nodes.nodes[1], page: make([]byte, o.Page), answer: make([]byte, o.Control)}
	var stop atomic.Bool
	var other sync.WaitGroup
	var errServe error
	other.Go(func() {
		errServe = onThread(coreOf(serving, exchanged), func() error { return stopped(has.serve(&stop)) })
	})
	err = onThread(coreOf(driving, exchanged), func() (err error) {
		p, err = asks.drive(o)
		return err
	})
	stop.Store(true)
	other.Wait()
	if err := errors.Join(err, errServe); err != nil {
		return p, err
	}
	return p, nodes.check(asks.pages)
}

const (
	// pollBatch is how many frames are taken at once.
	pollBatch = 64
	// The messages of a fetch have a kind, then other things that do not change, and at numberAt
	// the number of a page, as those of the protocol do. The pages are random ones of fetchPages: 1
	// GiB, if they have 4 KiB.
	kindRequest, kindGrant = 1, 5
	numberAt               = 16
	fetchPages             = 1 << 18
)

// numberOf is where in a message the number of the page is; a message may be too short to have all
// of it.
func numberOf(control []byte) []byte {
	return control[min(numberAt, len(control)):min(numberAt+8, len(control))]
}

// fetcher is the node that asks for pages. It belongs to one goroutine.
type fetcher struct {
	tr      transport.Transport
	control []byte // the next request
	asked   []byte // the number of the page that was asked for last
	random  rand.PCG
	up      bool
	pages   int // that have come
	err     error
}

// next makes the request for another page. What it costs is not part of a fetch.
func (f *fetcher) next() {
	f.control[0] = kindRequest
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], f.random.Uint64()%fetchPages)
	copy(numberOf(f.control), number[:])
}

func (f *fetcher) drive(o Options) (Point, error) {
	for s := (spinner{limit: Patience}); !f.up; {
		if err := f.poll(&s); err != nil {
			return Point{}, err
		}
	}
	f.next()
	return sample(Spec{Measure: Latency, Bytes: o.Page, Connections: 1, Time: o.Time}, 1, func() error {
		want := f.pages + 1
		if err := f.tr.Send(1, f.control, nil); err != nil {
			return err
		}
		f.tr.Flush()
		f.asked = append(f.asked[:0], numberOf(f.control)...)
		f.next() // while the page is on its way
		for s := (spinner{limit: Patience}); f.pages < want; {
			if err := f.poll(&s); err != nil {
				return err
			}
		}
		return f.err
	})
}

func (f *fetcher) poll(s *spinner) error {
	if n, err := f.tr.Poll(f, pollBatch); err != nil || f.err != nil {
		return errors.Join(err, f.err)
	} else if n > 0 {
		return nil
	}
	return s.again()
}

// Frame implements transport.Handler.
func (f *fetcher) Frame(_ transport.NodeID, control []byte, payload transport.Payload) {
	switch {
	case payload == nil || len(control) != len(f.control) || control[0] != kindGrant:
		f.err = fmt.Errorf("asked for a page, and got %d bytes of kind %d", len(control), control[0])
	case !bytes.Equal(numberOf(control), f.asked):
		f.err = fmt.Errorf("asked for page %x, and got %x", f.asked, numberOf(control))
	}
	f.pages++
}

// PeerUp implements transport.Handler.
func (f *fetcher) PeerUp(transport.NodeID) { f.up = true }

// PeerDown implements transport.Handler.
func (f *fetcher) PeerDown(_ transport.NodeID, err error) { f.err = err }

// supplier is the node that has the pages. It belongs to one goroutine.
type supplier struct {
	tr           transport.Transport
	page, answer []byte
	err          error
}

func (s *supplier) serve(stop *atomic.Bool) error {
	for tries := (spinner{stop: stop, limit: MaxTime + Patience}); ; {
		if _, err := s.tr.Poll(s, pollBatch); err != nil || s.err != nil {
			return errors.Join(err, s.err)
		}
		if err := tries.again(); err != nil {
			return err
		}
	}
}

// Frame implements transport.Handler.
func (s *supplier) Frame(from transport.NodeID, request []byte, _ transport.Payload) {
	s.answer[0] = kindGrant
	copy(numberOf(s.answer), numberOf(request))
	payload := s.tr.Lease(from)
	copy(payload.Bytes(), s.page)
	if err := s.tr.Send(from, s.answer, payload); err != nil {
		s.err = err
	}
	s.tr.Flush()
}

// PeerUp implements transport.Handler.
func (s *supplier) PeerUp(transport.NodeID) {}

// PeerDown implements transport.Handler.
func (s *supplier) PeerDown(_ transport.NodeID, err error) { s.err = err }

// stopped is err, unless it says that the measurement is over.
func stopped(err error) error {
	if errors.Is(err, errStopped) {
		return nil
	}
	return err
}
