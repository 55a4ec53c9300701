// Package node is the daemon of one node: it serves the page faults of the programs on this machine.
//
// It holds together four parts that don't know each other: protocol.Engine decides, pagetable.Table
// controls what programs can touch, transport.Transport talks to other nodes, and internal/attach talks to
// programs. All of them are driven by one thread, the reactor (reactor.go): it takes a fault, a
// frame or a call, steps the engine, and carries out the effects itself (effects.go) before it looks for more.
// A fault is thus served without any hand-over between threads, and needs no lock.
//
// # Waiting
//
// A thread that sleeps must be woken, and on a virtual machine waking an idle core costs more than all
// the rest of a fault. So the reactor polls for a while before it sleeps. How long, it learns (spin.go): as long as
// that has lately been enough to catch the next event, and not at all when the machine's cores are busy.
//
// # Files
//
//	node.go      configuration, New, Run
//	reactor.go   the loop: what to look at, when to sleep
//	spin.go      how long to poll before sleeping
//	effects.go   carrying out what the engine decides
//	programs.go  programs that attach, and their end
//	failure.go   peers that are lost, in whoever's opinion
//	survive.go   going on without them
//	roster.go    which ranks are lost with them
//	comings.go   nodes that leave and nodes that come
//	calls.go     what programs ask for
//	runs.go      doing to neighbouring pages together what one turn brings for each
//	prefetch.go  fetching runs of pages before they are touched
//	pin.go       keeping pages here for system calls
//	waiters.go   which of several programs an arriving page is mapped into
//	metrics.go   counters, histograms, Prometheus
//	stages.go    when faults passed which stage, for measurements
//
// Concurrency: Run is called once. PeerFailed may be called from any goroutine. Everything else in the package belongs to the
// reactor, except counters, which anybody may read.
package node
