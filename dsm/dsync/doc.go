// Package dsync has what packages sync, x/sync/semaphore and x/sync/errgroup have, across ranks.
//
//   - Cond: goroutines wait for what others change under a dsm.Mutex.
//   - Semaphore: so many permits, for which ranks wait in the order in which they came.
//   - WaitGroup: goroutines wait until all that was begun is done, wherever that was.
//   - ErrGroup: goroutines of all ranks; the first error ends the context of all of them.
//
// Each is made by every rank that uses it, under the same name, and with the same group: the
// *dsm.Cluster, or the *dsm.Survivors. A rank has one handle of each; a second call that makes it
// waits until the first one was freed. Methods may be called by any number of goroutines, and what
// was stored before one that lets others go on is seen by those. Each belongs to its job, whatever
// its name. The names of its memory, locks, barriers and reductions begin with "dsync/", its own
// and its kind: so a Cond and a Semaphore may have the same name.
//
// # What travels
//
// The state of each is a page, or a few in a job of many ranks, and a lock: both come to the rank
// that calls a method, from where they were last. While one rank alone calls methods nothing
// travels.
//
// Who waits sleeps, and looks at nothing. For all goroutines of a rank that wait, one call waits at
// a barrier of two, the rank's gate. Who makes a change for which a rank waits goes to that gate,
// too: that is a message to the gate's home and back on both sides. A rank for whose goroutines
// nothing changes is not woken. As a backstop, a rank that has waited for 30 seconds looks again by
// itself (an ErrGroup after 5).
//
// # Loss
//
// When a rank of the group is lost (--survive), nobody knows any more what it would have done:
// released a permit, said Done, signalled. So all that wait get an error that wraps
// dsm.ErrNodeLost, unless what they wait for has happened, and so does everybody who would have to
// wait from then on. What need not wait works on: permits that are left can be acquired. Those that
// are left make new ones as dsm.Survivors, which are others, also under the same names.
//
// If the program died in the middle of a method, all methods return an error that wraps
// dsm.ErrOwnerDied; and if the state was lost with a node, dsm.ErrPageLost.
//
// Where a rank that has died may attach again (`dsmd serve`), it is no lost rank, and a dsm.Barrier
// waits for it. Here others get an error that wraps dsm.ErrOwnerDied when they have waited for some
// 30 seconds (with an ErrGroup 5). A rank that leaves without Free is taken for dead, too.
// When the rank comes again and makes the same one, none of its former goroutines waits any more:
// their claims and the signals that they were given are gone. The permits that they held stay away.
//
// Checkpoints leave all of this out (dsm.Unsaved): in a job that is restored it begins anew.
package dsync
