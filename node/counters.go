package node

import (
	"sync/atomic"

	"dsmd/node/readahead"
	"dsmd/transport"
)

// counters are what a node counts. The reactor writes them; anybody reads them.
type counters struct {
	faultCounts
	pageCounts
	callCounts
	roomCounts
	guessCounts
	predictionCounts
	causeCounts
	loopCounts
	lossCounts
}

// faultCounts are faults by what they needed.
type faultCounts struct {
	readMisses, writeMisses, upgrades, maps atomic.Uint64
	alone                                   atomic.Uint64 // of these: no other node was needed
	duplicates                              atomic.Uint64 // that were being served already
	parkedFaults                            atomic.Uint64 // that had to wait for the window
	faultNanos                              atomic.Uint64 // summed over pages
}

type pageCounts struct {
	zeroInstalls, zeroPages, broughtPages          atomic.Uint64
	readForOthers, writtenForOthers                atomic.Uint64
	pagesSent, multicasts, pagesReceived           atomic.Uint64
	invalidations, downgrades, revokes, pageLeases atomic.Uint64
	contendedPages                                 atomic.Uint64
	batches, batchPages                            atomic.Uint64
}

// callCounts are what programs ask for.
type callCounts struct {
	lockCalls, barrierCalls, nameCalls, commits atomic.Uint64
	prefetches, prefetchedPages                 atomic.Uint64
	pins, pinWaits, pinBreaks                   atomic.Uint64
	wordsPublished, wordsRecalled               atomic.Uint64
	ownerDied                                   atomic.Uint64
	lockNanos, barrierNanos                     atomic.Uint64 // summed over threads
}

// roomCounts are what a node has, and has parted with.
type roomCounts struct {
	pages, room, inFile                 atomic.Int64 // gauges
	evicted, unloaded                   atomic.Uint64
	spilled, unspilled                  atomic.Uint64
	offers, offersTaken, offersDeclined atomic.Uint64
}

// guessCounts are pages that no thread had asked for.
type guessCounts struct {
	aheadPages, neighbourPages, groupLeases atomic.Uint64
}

// predictionCounts are pages that were predicted from earlier misses, and what became of them.
type predictionCounts struct {
	predictedPages, predictedBeyond               atomic.Uint64
	predictedUsed, predictedLate, predictedInVain atomic.Uint64
}

// causeCounts are faults that waited for other nodes, by why they did.
type causeCounts struct {
	remote [readahead.CauseCount]atomic.Uint64
}

type loopCounts struct {
	sleeps, moves, rests, programsSeen atomic.Uint64
	objects, pending, programs         atomic.Int64 // gauges
}

type lossCounts struct {
	nodesLost, pagesLost, wentBack, recoveries    atomic.Uint64
	backupsSent, restored                         atomic.Uint64
	epoch, handedOver, members, noQuorum, backups atomic.Int64 // gauges
}

// metric names a counter once, for Prometheus and for the programs' Stats call.
type metric struct {
	name, help string
	gauge      bool
	read       func() uint64
}

func counter(v *atomic.Uint64, name, help string) metric { return metric{name, help, false, v.Load} }

func gauge(v *atomic.Int64, name, help string) metric {
	return metric{name, help, true, func() uint64 { return uint64(max(v.Load(), 0)) }}
}

func (c *faultCounts) metrics() []metric {
	return []metric{
		counter(&c.readMisses, "faults_read", "Faults that needed a read copy: the node had none."),
		counter(&c.writeMisses, "faults_write", "Faults that needed a writable copy: the node had none."),
		counter(&c.upgrades, "faults_upgrade", "Faults that made a read copy writable."),
		counter(&c.alone, "faults_alone", "Of these, faults that this node has settled alone: mostly first touches of pages whose home is here."),
		counter(&c.maps, "faults_map", "Faults on pages that were here and only had to be mapped, or had just arrived."),
		counter(&c.duplicates, "faults_duplicate", "Faults on pages that threads waited for already: of other threads, or reported again."),
		counter(&c.parkedFaults, "faults_held_back", "Faults that waited because this node had asked for as many pages as it may at a time, or had no room."),
		counter(&c.faultNanos, "fault_wait_ns", "Time from faults to their resolution, summed over pages, in nanoseconds."),
	}
}

func (c *pageCounts) metrics() []metric {
	return []metric{
		counter(&c.broughtPages, "pages_from_files", "Pages that nobody had touched, and that began here with what was in a file."),
		counter(&c.readForOthers, "pages_read_for_others", "Pages of files of this node that were read for other nodes."),
		counter(&c.writtenForOthers, "pages_written_for_others", "Pages that other nodes have had written to files of this node."),
		counter(&c.zeroInstalls, "zero_installs", "Pages that began here as zeros: nobody had touched them, or they were zeros where they came from."),
		counter(&c.zeroPages, "zero_pages", "Pages of zeros that were sent without their contents."),
		counter(&c.pagesSent, "pages_sent", "Pages sent to other nodes."),
		counter(&c.multicasts, "multicasts", "Of these, pages sent, or passed on, because many nodes wait to read them."),
		counter(&c.pagesReceived, "pages_received", "Pages received from other nodes."),
		counter(&c.invalidations, "invalidations", "Of these, copies whose contents nobody needed: another node writes, or there was no room."),
		counter(&c.downgrades, "downgrades", "Writable copies made read-only, because another node reads or they are committed."),
		counter(&c.revokes, "revokes", "Copies given up: to another node, or for want of room."),
		counter(&c.pageLeases, "holds", "Times that a page was kept a moment longer because it had just arrived."),
		counter(&c.contendedPages, "contended_pages", "Pages that a writer on another node took before any program here had synchronised: false sharing."),
		counter(&c.batches, "runs", "Operations that were done to several neighbouring pages at once."),
		counter(&c.batchPages, "run_pages", "Pages to which they were done."),
	}
}

func (c *callCounts) metrics() []metric {
	return []metric{
		counter(&c.lockCalls, "lock_calls", "Acquisitions of locks by calls; others are not counted."),
		counter(&c.barrierCalls, "barrier_calls", "Arrivals at barriers and reductions."),
		counter(&c.wordsPublished, "locks_published", "Times that a lock which stayed here was put where its program takes it without a call."),
		counter(&c.wordsRecalled, "locks_recalled", "Times that somebody else wanted such a lock."),
		counter(&c.nameCalls, "name_calls", "Allocations and frees."),
		counter(&c.prefetches, "prefetch_calls", "Calls that fetch pages: Prefetch and Pin."),
		counter(&c.prefetchedPages, "prefetched_pages", "Pages that such calls asked for."),
		counter(&c.pins, "pin_calls", "Pin calls."),
		counter(&c.pinWaits, "pin_waits", "Pages that another node wanted and had to wait for, because a program had pinned them."),
		counter(&c.pinBreaks, "pin_breaks", "Pins that were broken because others had waited too long for the page."),
		counter(&c.ownerDied, "owner_deaths", "Locks whose holder died."),
		counter(&c.lockNanos, "lock_wait_ns", "Time that calls waited for locks, in nanoseconds."),
		counter(&c.barrierNanos, "barrier_wait_ns", "Time that calls waited at barriers, in nanoseconds."),
		counter(&c.commits, "commit_calls", "Commits of replicated memory that programs have asked for."),
	}
}

func (c *roomCounts) metrics() []metric {
	return []metric{
		gauge(&c.pages, "pages", "Pages that are here, if there is a bound."),
		gauge(&c.room, "pages_room", "Pages that this node has room for (--memory); 0: there is no bound."),
		gauge(&c.inFile, "pages_spilled", "Pages of this node that are in its spill file (--spill)."),
		counter(&c.evicted, "pages_evicted", "Copies for reading that were dropped to make room."),
		counter(&c.offers, "page_offers", "Pages of this node that were offered to others to make room."),
		counter(&c.spilled, "spill_writes", "Pages that have gone to the spill file."),
		counter(&c.unspilled, "spill_reads", "Pages that have come back from the spill file, or from the files that they had not changed from."),
		counter(&c.unloaded, "pages_unloaded", "Pages that have left memory because they were as in the file in which they begin."),
		counter(&c.offersTaken, "page_offers_taken", "Pages that others have taken after they were offered."),
		counter(&c.offersDeclined, "page_offers_declined", "Pages that others have offered and for which there was no room here."),
	}
}

func (c *guessCounts) metrics() []metric {
	return []metric{
		counter(&c.aheadPages, "ahead_pages", "Pages that were asked for ahead of a thread that goes over a run of pages."),
		counter(&c.groupLeases, "turns", "Group leases in which this node kept contended pages, and threads missed some of them."),
		counter(&c.neighbourPages, "around_pages", "Pages that were asked for during group leases, around those that threads missed."),
	}
}

func (c *loopCounts) metrics() []metric {
	return []metric{
		counter(&c.sleeps, "sleeps", "Times that the reactor went to sleep."),
		counter(&c.moves, "core_changes", "Times that the reactor moved to another core, away from others that polled or computed on its own."),
		counter(&c.rests, "rests", "Times that the reactor gave up its priority over programs that compute, because it had had it for long."),
		counter(&c.programsSeen, "programs_seen", "Programs that have attached."),
		gauge(&c.objects, "known_objects", "Pages and locks that this node knows."),
		gauge(&c.pending, "pending_objects", "Pages and locks with something under way."),
		gauge(&c.programs, "programs", "Programs attached now."),
	}
}

func (c *lossCounts) metrics() []metric {
	return []metric{
		gauge(&c.epoch, "epoch", "The view of the cluster that this node is in: 0 at first, and one more whenever the members change, by a loss, a leave or a return."),
		gauge(&c.handedOver, "epoch_handed_over", "The last view in which this node has handed over all that others keep since then: backups of replicated memory, and what leaving nodes had. When it is that of dsmd_epoch on all nodes, others may be lost."),
		gauge(&c.members, "members", "Nodes in that view, this one included."),
		counter(&c.nodesLost, "nodes_lost", "Nodes without which this one has gone on, and of which it has not heard that they have left in order."),
		counter(&c.recoveries, "recoveries", "Recoveries from the loss of nodes that are over."),
		counter(&c.pagesLost, "pages_lost", "Pages that programs of this node wanted and whose only copy was on a node that is lost."),
		counter(&c.wentBack, "pages_gone_back", "Lost pages that began anew at this node, with what they had in the last checkpoint."),
		counter(&c.backupsSent, "backups_sent", "Pages of replicated memory sent to nodes that keep backups of them."),
		gauge(&c.backups, "backups", "Pages of which this node keeps a backup."),
		counter(&c.restored, "backups_restored", "Pages of lost nodes that came back from backups of this node."),
		gauge(&c.noQuorum, "no_quorum", "1 while programs wait because too few nodes are left, else 0."),
	}
}

// transportMetrics are what every transport counts.
func transportMetrics(read func() transport.Stats) []metric {
	of := func(field func(transport.Stats) uint64) func() uint64 {
		return func() uint64 { return field(read()) }
	}
	return []metric{
		{"messages_sent", "Messages sent to other nodes.", false, of(func(s transport.Stats) uint64 { return s.FramesSent })},
		{"messages_received", "Messages received from other nodes.", false, of(func(s transport.Stats) uint64 { return s.FramesReceived })},
		{"bytes_sent", "Bytes sent to other nodes, headers included.", false, of(func(s transport.Stats) uint64 { return s.BytesSent })},
		{"bytes_received", "Bytes received from other nodes, headers included.", false, of(func(s transport.Stats) uint64 { return s.BytesReceived })},
		{"send_calls", "System calls that sent.", false, of(func(s transport.Stats) uint64 { return s.SendCalls })},
		{"receive_calls", "System calls that received.", false, of(func(s transport.Stats) uint64 { return s.ReceiveCalls })},
		{"send_queue_bytes", "Bytes queued for peers that do not take them.", true, of(func(s transport.Stats) uint64 { return s.QueuedBytes })},
	}
}

func (c *predictionCounts) metrics() []metric {
	return []metric{
		counter(&c.predictedPages, "predicted_pages", "Pages that were asked for because threads had missed them in this order before."),
		counter(&c.predictedBeyond, "predicted_beyond", "Pages beyond these, in runs, that were asked for with them."),
		counter(&c.predictedUsed, "predicted_used", "Predicted pages that were here when a thread came for them: misses avoided."),
		counter(&c.predictedLate, "predicted_late", "Predicted pages that were still on their way when a thread came for them."),
		counter(&c.predictedInVain, "predicted_in_vain", "Predicted pages that left before a thread came for them."),
	}
}

func (c *causeCounts) metrics() []metric {
	return []metric{
		counter(&c.remote[readahead.Cold], "remote_faults_cold", "Faults that waited for another node: this one had never had the page."),
		counter(&c.remote[readahead.Retaken], "remote_faults_retaken", "Such faults: another node had taken the page, or come to read it, since a program here last passed a barrier or got a lock."),
		counter(&c.remote[readahead.Late], "remote_faults_late", "Such faults: the page was on its way already, as it had been predicted, read ahead, prefetched, or offered for want of room."),
		counter(&c.remote[readahead.Unpredicted], "remote_faults_unpredicted", "Such faults: all others. The page had left before, or was here for reading only, and nothing had asked for it."),
	}
}
