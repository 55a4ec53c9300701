package node

import (
	"slices"
	"time"

	"dsmd/internal/attach"
	"dsmd/protocol"

	"github.com/prometheus/client_golang/prometheus"
)

// clock is a node's time since its start. The loop reads it once for each look.
type clock struct {
	start time.Time
	now   time.Duration
}

func (c *clock) read() time.Duration { return time.Since(c.start) }

func (c *clock) tick() { c.now = c.read() }

// zero is when the clock was 0, in nanoseconds since 1970 by the machine's clock as it goes now. It
// asks the machine once, and so is right also when this thread is held up here.
func (c *clock) zero() int64 {
	t := time.Now()
	return t.UnixNano() - int64(t.Sub(c.start))
}

// meter is what a node measures of itself.
type meter struct {
	clock      *clock
	net        *network
	count      counters
	latency    histograms
	stages     *StageLog // nil: nobody wants to know
	waits      *pageWaits
	tolls      tolls
	log        faultLog
	registered []prometheus.Collector
	others     []*meter // of the reactors that this one leads
}

func newMeter(c *clock, net *network, stages *StageLog, s *partition) *meter {
	waits := newPageWaits()
	m := &meter{clock: c, net: net, latency: s.latency, stages: stages, waits: waits, tolls: newTolls(waits)}
	for _, o := range s.others() {
		m.others = append(m.others, o.meter)
		m.tolls.ledger.others = append(m.tolls.ledger.others, o.meter.tolls.ledger)
	}
	return m
}

func (m *meter) metrics() []metric {
	c := &m.count
	return slices.Concat(c.faultCounts.metrics(), c.pageCounts.metrics(), c.callCounts.metrics(), c.roomCounts.metrics(), c.guessCounts.metrics(), c.predictionCounts.metrics(), c.causeCounts.metrics(),
		c.loopCounts.metrics(), c.lossCounts.metrics(), m.net.linkMetrics(), transportMetrics(m.net.Stats))
}

// counterList is the answer to a program's Stats call.
func (m *meter) counterList() []attach.Counter {
	var list []attach.Counter
	for _, x := range m.metrics() {
		list = append(list, attach.Counter{Name: x.name, Value: x.read()})
	}
	return list
}

func (m *meter) countMiss(has, access protocol.Access) {
	switch {
	case access == protocol.Read:
		m.count.readMisses.Add(1)
	case has == protocol.None:
		m.count.writeMisses.Add(1)
	default:
		m.count.upgrades.Add(1)
	}
}

// histograms are latencies by stage, in seconds.
type histograms struct {
	fault   prometheus.Histogram // from the fault's report to the page's being here
	remote  prometheus.Histogram // of it: from asking the home to the grant's arrival
	install prometheus.Histogram // of it: from the grant's arrival to the page's being here

	recovery prometheus.Histogram // from the decision to go on without a node until that is done
}

// latencyBuckets are from 1 µs, less than any fault, to 1 s, by factors of 2.
var latencyBuckets = prometheus.ExponentialBuckets(1e-6, 2, 21)

// recoveryBuckets are from 1 ms to 65 s, by factors of 2.
var recoveryBuckets = prometheus.ExponentialBuckets(1e-3, 2, 17)

func newHistogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "dsmd", Name: name, Help: help, Buckets: buckets,
	})
}

func newHistograms() histograms {
	return histograms{
		fault:   newHistogram("fault_seconds", "From a fault's report to the page's being here.", latencyBuckets),
		remote:  newHistogram("fault_remote_seconds", "The part of dsmd_fault_seconds from the request to the grant's arrival.", latencyBuckets),
		install: newHistogram("fault_install_seconds", "The part of dsmd_fault_seconds from the grant's arrival to the page's being here.", latencyBuckets),

		recovery: newHistogram("recovery_seconds", "From the decision of the nodes that are left to go on until their memory is whole again.", recoveryBuckets),
	}
}

// register makes the node's metrics known, all or, when it fails, none. unregister takes them back.
func (m *meter) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	list := []prometheus.Collector{m.latency.fault, m.latency.remote, m.latency.install, m.latency.recovery, m.tolls.ledger}
	others := map[string][]func() uint64{}
	for _, o := range m.others {
		for _, x := range o.metrics() {
			others[x.name] = append(others[x.name], x.read)
		}
	}
	for _, x := range m.metrics() {
		read := func() float64 {
			sum := x.read()
			for _, other := range others[x.name] {
				sum += other()
			}
			return float64(sum)
		}
		if x.gauge {
			list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "dsmd", Name: x.name, Help: x.help}, read))
		} else {
			list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "dsmd", Name: x.name + "_total", Help: x.help}, read))
		}
	}
	for _, c := range list {
		if err := r.Register(c); err != nil {
			m.unregister(r)
			return err
		}
		m.registered = append(m.registered, c)
	}
	return nil
}

func (m *meter) unregister(r prometheus.Registerer) {
	for _, c := range m.registered {
		r.Unregister(c)
	}
	m.registered = nil
}
