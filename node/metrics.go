package node

import (
	"sync/atomic"
	"time"

	"dsmd/internal/attach"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are what a node counts. The reactor writes them; anybody reads them.
type counters struct {
	readMisses, writeMisses, upgrades, maps                                                              atomic.Uint64 // faults by what they needed
	duplicates                                                                                           atomic.Uint64 // faults that were being served already
	zeroInstalls, zeroPages                                                                              atomic.Uint64
	pagesSent, pagesReceived                                                                             atomic.Uint64
	invalidations, downgrades, revokes, holds                                                            atomic.Uint64
	lockCalls, barrierCalls, nameCalls, prefetches                                                       atomic.Uint64
	pins, pinWaits, pinBreaks                                                                            atomic.Uint64
	runs, runPages                                                                                       atomic.Uint64
	wordsPublished, wordsRecalled                                                                        atomic.Uint64
	prefetchedPages, aheadPages, aroundPages, foughtPages, turns, sleeps, moves, programsSeen, ownerDied atomic.Uint64

	faultNanos, lockNanos, barrierNanos           atomic.Uint64 // time that programs waited, summed over threads
	objects, pending, programs                    atomic.Int64  // gauges
	nodesLost, pagesLost, recoveries              atomic.Uint64
	commits, backupsSent, restored                atomic.Uint64
	epoch, handedOver, members, noQuorum, backups atomic.Int64 // gauges
}

// metric names a counter once, for Prometheus and for the programs' Stats call.
type metric struct {
	name, help string
	gauge      bool
	read       func() uint64
}

func (n *Node) metrics() []metric {
	c := &n.count
	u := func(v *atomic.Uint64) func() uint64 { return v.Load }
	g := func(v *atomic.Int64) func() uint64 { return func() uint64 { return uint64(max(v.Load(), 0)) } }
	list := []metric{
		{"faults_read", "Faults that needed a read copy from another node.", false, u(&c.readMisses)},
		{"faults_write", "Faults that needed a writable copy.", false, u(&c.writeMisses)},
		{"faults_upgrade", "Faults that made a read copy writable.", false, u(&c.upgrades)},
		{"faults_map", "Faults on pages that were here and only had to be mapped, or had just arrived.", false, u(&c.maps)},
		{"faults_duplicate", "Faults reported again while they were being served.", false, u(&c.duplicates)},
		{"zero_installs", "Pages that began here as zeros: nobody had touched them, or they were zeros where they came from.", false, u(&c.zeroInstalls)},
		{"zero_pages", "Pages of zeros that were sent without their contents.", false, u(&c.zeroPages)},
		{"pages_sent", "Pages sent to other nodes.", false, u(&c.pagesSent)},
		{"pages_received", "Pages received from other nodes.", false, u(&c.pagesReceived)},
		{"invalidations", "Read copies given up because another node writes.", false, u(&c.invalidations)},
		{"downgrades", "Writable copies made read-only because another node reads.", false, u(&c.downgrades)},
		{"revokes", "Copies given up to another node.", false, u(&c.revokes)},
		{"holds", "Times that a page was kept a moment longer because it had just arrived.", false, u(&c.holds)},
		{"lock_calls", "Acquisitions of locks by calls; others are not counted.", false, u(&c.lockCalls)},
		{"barrier_calls", "Arrivals at barriers and reductions.", false, u(&c.barrierCalls)},
		{"locks_published", "Times that a lock which stayed here was put where its program takes it without a call.", false, u(&c.wordsPublished)},
		{"locks_recalled", "Times that somebody else wanted such a lock.", false, u(&c.wordsRecalled)},
		{"name_calls", "Allocations and frees.", false, u(&c.nameCalls)},
		{"prefetch_calls", "Prefetch calls.", false, u(&c.prefetches)},
		{"prefetched_pages", "Pages that prefetch calls asked for.", false, u(&c.prefetchedPages)},
		{"pin_calls", "Pin calls.", false, u(&c.pins)},
		{"pin_waits", "Pages that another node wanted and had to wait for, because a program had pinned them.", false, u(&c.pinWaits)},
		{"pin_breaks", "Pins that were broken because others had waited too long for the page.", false, u(&c.pinBreaks)},
		{"owner_deaths", "Locks whose holder died.", false, u(&c.ownerDied)},
		{"ahead_pages", "Pages that were asked for ahead of a thread that goes over a run of pages.", false, u(&c.aheadPages)},
		{"fought_pages", "Pages that a writer on another node took before any program here had synchronised: false sharing.", false, u(&c.foughtPages)},
		{"turns", "Turns in which this node kept pages for which many nodes fight, and programs missed some.", false, u(&c.turns)},
		{"around_pages", "Pages that were asked for in turns, around those that threads missed.", false, u(&c.aroundPages)},
		{"runs", "Operations that were done to several neighbouring pages at once.", false, u(&c.runs)},
		{"run_pages", "Pages to which they were done.", false, u(&c.runPages)},
		{"sleeps", "Times that the reactor went to sleep.", false, u(&c.sleeps)},
		{"core_changes", "Times that the reactor moved to another core, away from others that polled or computed on its own.", false, u(&c.moves)},
		{"programs_seen", "Programs that have attached.", false, u(&c.programsSeen)},
		{"fault_wait_ns", "Time from faults to their resolution, summed over pages, in nanoseconds.", false, u(&c.faultNanos)},
		{"lock_wait_ns", "Time that calls waited for locks, in nanoseconds.", false, u(&c.lockNanos)},
		{"barrier_wait_ns", "Time that calls waited at barriers, in nanoseconds.", false, u(&c.barrierNanos)},
		{"known_objects", "Pages and locks that this node knows.", true, g(&c.objects)},
		{"pending_objects", "Pages and locks with something under way.", true, g(&c.pending)},
		{"programs", "Programs attached now.", true, g(&c.programs)},
		{"epoch", "The view of the cluster that this node is in: 0 until nodes are lost, and one more with each time that the others went on.", true, g(&c.epoch)},
		{"epoch_handed_over", "The last view in which this node has handed over all that others keep since then: backups of replicated memory, and what leaving nodes had. When it is that of dsmd_epoch on all nodes, others may be lost.", true, g(&c.handedOver)},
		{"members", "Nodes in that view, this one included.", true, g(&c.members)},
		{"nodes_lost", "Nodes without which this one has gone on.", false, u(&c.nodesLost)},
		{"recoveries", "Recoveries from the loss of nodes that are over.", false, u(&c.recoveries)},
		{"pages_lost", "Pages that programs of this node wanted and whose only copy was on a node that is lost.", false, u(&c.pagesLost)},
		{"commit_calls", "Commits of replicated memory that programs have asked for.", false, u(&c.commits)},
		{"backups_sent", "Pages of replicated memory sent to nodes that keep backups of them.", false, u(&c.backupsSent)},
		{"backups", "Pages of which this node keeps a backup.", true, g(&c.backups)},
		{"backups_restored", "Pages of lost nodes that came back from backups of this node.", false, u(&c.restored)},
		{"no_quorum", "1 while programs wait because too few nodes are left, else 0.", true, g(&c.noQuorum)},
	}
	t := n.net.Stats
	list = append(list, n.net.linkMetrics()...)
	return append(list,
		metric{"messages_sent", "Messages sent to other nodes.", false, func() uint64 { return t().FramesSent }},
		metric{"messages_received", "Messages received from other nodes.", false, func() uint64 { return t().FramesReceived }},
		metric{"bytes_sent", "Bytes sent to other nodes, headers included.", false, func() uint64 { return t().BytesSent }},
		metric{"bytes_received", "Bytes received from other nodes, headers included.", false, func() uint64 { return t().BytesReceived }},
		metric{"send_calls", "System calls that sent.", false, func() uint64 { return t().SendCalls }},
		metric{"receive_calls", "System calls that received.", false, func() uint64 { return t().ReceiveCalls }},
		metric{"send_queue_bytes", "Bytes queued for peers that do not take them.", true, func() uint64 { return t().QueuedBytes }},
	)
}

// counterList is the answer to a program's Stats call.
func (n *Node) counterList() []attach.Counter {
	var list []attach.Counter
	for _, m := range n.metrics() {
		list = append(list, attach.Counter{Name: m.name, Value: m.read()})
	}
	return list
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
func (n *Node) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	list := []prometheus.Collector{n.latency.fault, n.latency.remote, n.latency.install, n.latency.recovery}
	for _, m := range n.metrics() {
		read := func() float64 { return float64(m.read()) }
		if m.gauge {
			list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "dsmd", Name: m.name, Help: m.help}, read))
		} else {
			list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "dsmd", Name: m.name + "_total", Help: m.help}, read))
		}
	}
	for _, c := range list {
		if err := r.Register(c); err != nil {
			n.unregister(r)
			return err
		}
		n.registered = append(n.registered, c)
	}
	return nil
}

func (n *Node) unregister(r prometheus.Registerer) {
	for _, c := range n.registered {
		r.Unregister(c)
	}
	n.registered = nil
}

// wait is a page that this node waits for, with the times of its stages on the node's clock.
type wait struct {
	fault, grant time.Duration // grant: 0 until it has come
}
