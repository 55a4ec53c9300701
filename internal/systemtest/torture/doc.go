// Package torture does to the whole system, all at once, what ordinary Go programs do one at a
// time: goroutines of several processes on several nodes read, write, copy, count and lock on a few
// pages, while the collector runs without pause, GOMAXPROCS changes, stacks grow inside functions
// that fault, the profiler's signals fire, child processes are forked, and processes come, are
// stopped, leave and are killed.
//
//	go test ./internal/systemtest/torture                                    a few seconds on each trap back end
//	go test ./internal/systemtest/torture -run TestTorture -v -timeout 0 -torture.for 10m -torture.trap sigsegv
//	go test ./internal/systemtest/torture -run TestTorture -v -timeout 0 -torture.for 10m -torture.trap reactors
//	go test ./internal/systemtest/torture -run TestTorture -v -timeout 0 -torture.for 3h -torture.trap uffd -torture.seed 7
//
// The seed is printed. It decides what every goroutine tries in which order and when processes come
// and go; what comes of it depends on the machine's timing too, so a seed makes a failure likely
// again, not certain.
//
// # What is checked
//
// Every value shows by itself whether it may be where it is read; there is no second copy of the
// memory to compare with.
//
//   - A word (words.go) has one writer, who numbers its writes. The value carries the number and a
//     checksum of the number and the word's place. No goroutine may see a word older than one that
//     any goroutine of its process has seen before, nor older than what its writer had announced
//     before the read began. The writer itself finds exactly what it wrote.
//   - Words that are pinned and whose writers are on other nodes stay as they are, and system calls
//     can read them all, unless the pin lasts long enough to be broken.
//   - A counter (ledger.go) is added to by everybody, and each goroutine notes in words of its own
//     that it is about to add, and that it has. The counter is never less than the second notes'
//     sum, nor more than the first's, although goroutines are killed in between.
//   - Memory under a lock (ledger.go) has one version throughout. If its last holder was killed it
//     may be half changed, and nobody gets the lock but who repairs it (dsm.Mutex.LockRepair).
//   - A process that takes the place of a killed one finds all that its predecessor had written,
//     and at most one write half done.
//   - When all rest, every process sees the same memory, and it is the one that follows from the
//     notes.
//
// At each rest the descriptors, threads and private memory of the daemons and of the programs that
// stay are compared with those at the first, after the warm-up, and the daemons must know as many
// objects as then. A goroutine that gets nothing done for a while is a hang: the test shows the
// daemons' counters and all goroutines.
package torture
