// Package node is the daemon of one node: it serves the page faults of the programs on this
// machine.
//
// It holds together four parts that don't know each other: protocol.Engine decides, pagetable.Table
// controls what programs can touch, transport.Transport talks to other nodes, and internal/attach
// talks to programs. One thread, the reactor, drives all of them. It takes a fault, a frame or a
// call, lets the engine decide, and carries out the effects itself before it looks for more. So a
// fault is served without any hand-over between threads, and needs no lock.
//
// # Parts
//
// A Node is made of parts of one type each, which know each other as listed:
//
//	loop      what to look at, when to poll, when to sleep (spin.go); gives what comes to the others
//	inbox     messages of other nodes: checked, then to the engine or to members
//	driver    events to the engine, its effects to whoever carries them out
//	executor  effects on pages: to the page table and the network, neighbours together
//	outbox    what goes to other nodes, and when it leaves
//	intake    faults, and pages to ask for before they are touched (package readahead, window)
//	fetcher   Prefetch and Pin calls
//	pins      pages that are kept here for system calls
//	programs  who attaches (door), what they say, their end
//	calls     what programs ask of the engine; locks that they take without a call (words)
//	usage     how much of each allocation is here, for those who ask
//	members   who goes on when nodes are lost: views, quorum, joins, leaving, roster (followers: how
//	          the daemon's other reactors go on with them)
//	losses    pages and ranks that are lost, for those who ask
//	saver     checkpoints, and what goes back to mapped files (saving_parts: of several reactors)
//	news      what other goroutines tell the reactor
//	ending    why and when the node ends
//	meter     counters, histograms, stages
//	partition which pages are this reactor's, and what the daemon's other reactors are told (spread:
//	          of programs, and the calls in which they have a part)
//
// A fault goes from the loop to the intake, which may park it. The intake asks for what the thread
// will touch next, then for the page itself, which the driver lets the engine decide. The effects
// are messages, which the executor hands to the outbox; the loop flushes it when the turn is over.
// The answer comes through the inbox to the driver, and the executor installs the page.
//
// # Turns
//
// What the loop takes from one source at a time is a turn. Within a turn, operations on
// neighbouring pages wait for each other, see executor; at its end the driver has them performed.
//
// # Waiting
//
// A thread that sleeps must be woken, and on a virtual machine waking an idle core costs more than
// all the rest of a fault. So the reactor polls for a while before it sleeps. How long, it learns:
// as long as that has lately been enough to catch the next event, and not at all when the machine's
// cores are busy.
//
// Concurrency: Run is called once. PeerFailed and RankLost may be called from any goroutine.
// Everything else in the package belongs to the reactor, except counters, which anybody may read.
package node
