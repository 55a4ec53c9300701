// Package e2e tests the whole system as its users meet it: the dsmd binary, and programs that link
// package dsm. All of it is in the tests; package testcluster, below, starts and leads the
// processes.
//
// What each file is about:
//
//	console_test.go   a program that does what a test tells it, line by line
//	death_test.go     programs and daemons that are killed
//	sharing_test.go   several programs on a node, atomics, runs of the collector, growing stacks
//	memory_test.go    allocations: bad use, freeing, prefetching
//	sync_test.go      locks, barriers and reductions, and contexts that end them
//	hostile_test.go   a program that breaks the rules of the socket
//	mapping_test.go   programs that change their mapping of shared memory, and their children
//	node_test.go      what programs of one node share, and what is left of one that is killed
//	run_test.go       `dsmd run`
//	stress_test.go    many programs that give up, allocate, fork, stop and die at the same time
//	pin_test.go       system calls on memory that is pinned
//	reactors_test.go  daemons of several reactors
//	trap_test.go      which trap is chosen where userfaultfd is forbidden
//	user_test.go      all that matters once more, as an ordinary user
package e2e
