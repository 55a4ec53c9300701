// Package collective has calls in which all ranks take part, and exchange slices of any length of
// ordinary memory. For one value of up to dsm.MaxReduceBytes dsm.Reduce and dsm.AllGather do, and
// for up to dsm.MaxAllReduceBytes of numbers dsm.AllReduce.
//
// All ranks of the group, a *dsm.Cluster or *dsm.Survivors, call them, with the same name and type;
// one goroutine of each rank for each name. Each is a barrier: what any rank stored before, every
// rank sees after.
//
// If no rank brings more than 32 bytes, a call is one meeting, with which they travel. Up to
// dsm.MaxReduceBytes of a rank take a second meeting, in which every rank sends as many bytes as
// the rank that brings most, if that is at most 16 KiB in all. More takes three meetings, and
// between them the values are in shared memory: each rank puts its own there, and fetches those
// that it wants at once. Then only what is asked for travels. Checkpoints leave that memory out
// (dsm.Unsaved). The names of the memory and of the meetings, which are reductions, begin with
// "collective/" and the call's name.
//
// When a call fails on one rank, it fails on all; the exceptions are a context that ends, after
// which the others wait for that rank until theirs end, and a call that the others have not begun.
//
// # Loss
//
// When a node is lost (--survive), or a program, those that wait for it get an error that wraps
// dsm.ErrNodeLost or dsm.ErrPageLost, and so do all in later calls, until they go on as
// dsm.Survivors. Some ranks may have got what they asked for, when others get the error. Nobody
// gets anything else than what was brought.
package collective
