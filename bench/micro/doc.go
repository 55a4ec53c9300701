// Package micro is the microbenchmarks: single operations of the shared memory, each beside the
// floor that says what it costs at least (package floor).
//
// A microbenchmark runs on all nodes at once. One rank takes the times, ranks 0 and 1 do in the
// pages what the name says, and barriers, which are not timed, keep the steps apart. Times are
// taken inside the program, around a single load, store or call. Memory is allocated afresh for
// every run, so that every page starts untouched.
//
// The driver alternates floor, ours, floor, ours, …, since these machines change their speed from
// one minute to the next; Summarise makes one line of the result from the samples of all runs.
package micro
