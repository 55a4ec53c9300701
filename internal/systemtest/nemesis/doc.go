// Package nemesis runs programs on several machines, does to the machines what happens to real
// ones, and finds out whether anybody ever read a wrong value, or waited for ever.
//
//	go test ./internal/systemtest/nemesis                                          a storm of each kind of fault
//	go test ./internal/systemtest/nemesis -run TestNemesis -v -timeout 0 -nemesis.for 10m
//	go test ./internal/systemtest/nemesis -run TestNemesis -v -timeout 0 -nemesis.for 10m -nemesis.seed 7 -nemesis.faults cut,pause
//
// The machines are network namespaces (package netns), each with a daemon and a program of every
// workload. The daemons are told where the others are, or, in some lives of the cluster, find each
// other by gossip. The seed is printed. It decides which faults come, to whom, and for how long;
// what is under way at that moment depends on the machine's timing too, so a seed makes a failure
// likely again, not certain.
//
// # Workloads
//
// They are programs on the API of package dsm (Workload):
//
//	register  reads, writes, and compares and sets words under locks; half of them in memory that survives the loss of a host (dsm.Replicated)
//	counter   adds to words, under locks and by atomic operations
//	locks     takes locks, some with a limit of its patience, and the next fencing number with each
//	sor       solves an equation, all ranks together, and compares the result with the sequential one's
//
// Programs write down when every operation begins and ends (history.go), so that the history is
// whole if they are killed. All read the same clock, the kernel's. They go on to fresh words and
// locks every 10 s.
//
// # Faults
//
// Each kind is a type with a name (Faults, faults.go):
//
//	cut            nothing passes between two hosts
//	oneway         nothing passes from one host to another
//	isolate        a host's cable is pulled
//	lose           some of what two hosts send each other is lost
//	slow           a host gets a few Mbit/s, and loses what does not fit
//	pause          a daemon is stopped by SIGSTOP
//	pause-program  and so is a program
//	kill-program   a program is killed, and another takes its rank
//	kill           a daemon is killed
//	restart        a daemon is killed, and started again (--rejoin) before or after anybody has noticed
//	plain-restart  a daemon is killed, and started again without --rejoin: it must not serve (strays.go)
//	drain          a host leaves in order: its programs end, then dsmd drain is run there
//	drains         several hosts are told to leave at once, or all, of which the last one stays (drains.go)
//	slow-drains    hosts leave while everybody gets little
//	join           a host that was lost or has left comes back (--rejoin)
//	expel          a host is out of reach, of all others or of one, until they have gone on without it
//	split          several hosts, which reach each other, are out of reach until the others have gone on without them
//
// They come at random moments for at most 15 s, up to three at a time (storm.go); expel and split
// come alone and take longer. Then all are mended, and every thread of every program has to get
// something done within 10 s (calm.go).
//
// The daemons survive the loss of others (--survive). What has to follow a loss is in losses.go:
// the programs of the hosts that are left go on while other faults happen to them. Where too few
// are left, all end or wait, as the policy says that was drawn for this life of the cluster
// (burial.go). What has to follow when a host leaves or comes back is in comings.go: programs on
// other hosts go on and notice nothing but time, and when it is back programs begin there. After a
// storm those that are away come back, or the cluster ends in order and is started anew with all
// hosts, as it is when too few are left. A cluster that was formed by gossip has no place for those
// that come later.
//
// Who the members are the harness reads in the logs of the daemons (views.go): no two may go on
// with different members of the same epoch.
//
// Waits are bounded by what they should take on a machine that has nothing else to do: time in
// which somebody waited for a core does not count (patience.go).
//
// # Judgement
//
// The operations at each place have to be those of a register, a sum or a lock that is used by one
// client at a time (models.go), each between its call and its return: porcupine looks for an order
// that explains them. What was cut short may have happened at any time after its call, or never.
// What was done on a host while it was being lost may have happened when it was done, or not. An
// operation may meet a lost page, and a lock may come with the news that a lost node may have had
// it, only if some operation of a lost host may have been the last that needed it, or one of a host
// that had left before (deaths.go); of replicated memory nothing that was written may be lost with
// a single host (replicas.go). Besides, no program and no daemon ends without being told to, sor
// computes the same bits as the sequential version, and no thread hangs after the last fault. The
// report says what was done and how long the longest operation took. If anything is wrong the
// histories, the logs of all processes, porcupine's drawings and the list of faults stay in a
// folder, which the report names.
package nemesis
