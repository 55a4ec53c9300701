// Package dsm gives copies of one parallel program, on many machines, one shared memory. Alloc
// returns an ordinary slice, at the same address in every copy; loads and stores just work, and
// sync/atomic works across machines.
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"log"
//
//		"dsmd/dsm"
//	)
//
//	func main() {
//		ctx := context.Background()
//		c, err := dsm.Join(ctx)
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer c.Close()
//		squares, err := dsm.Alloc[int](ctx, c, "squares", 1000)
//		if err != nil {
//			log.Fatal(err)
//		}
//		for i := c.Rank(); i < len(squares); i += c.Size() {
//			squares[i] = i * i
//		}
//		if err := c.Barrier(ctx); err != nil {
//			log.Fatal(err)
//		}
//		fmt.Println("rank", c.Rank(), "sees", squares[999])
//	}
//
// Build it and start four copies, each with a daemon of its own:
//
//	go build -o squares . && dsmd run -n 4 -- ./squares
//
// # How it works
//
// A program does not move pages itself: the daemon of its node, dsmd, does. Join connects to the
// daemon, and receives the file that holds the node's copies of pages. It reserves the region of
// addresses that all programs share. And it hands the daemon a userfaultfd, by which the kernel
// tells the daemon of every access to a page that is not here. The thread that made the access
// sleeps until the daemon has fetched the page, and never notices. So an access to shared memory
// can take as long as a message to another machine and back. Prefetch fetches many pages at once.
// More goroutines than cores overlap the waiting; for them Join raises GOMAXPROCS (WithProcs).
//
// Where userfaultfd is forbidden, as in many containers, the daemon asks its programs to trap by
// memory protection and SIGSEGV instead (Cluster.Trap says which it is). That needs a program built
// with cgo. Faults take longer, and a program that is stopped holds up those who want its pages.
//
// # System calls
//
// A system call may be given shared memory: file.Write(slice), for example. If the daemon traps by
// userfaultfd and may trap the kernel's own faults, as root's does, it just works. Else it fails
// with EFAULT when it meets a page that is not here. Pin the slice for the time of the call, and it
// works everywhere. `dsmd doctor` says which it is here.
//
// # What may be shared
//
// Types without pointers: numbers, booleans, and arrays and structs of them. A Go pointer in shared
// memory would point into the memory of one process, and that process's garbage collector would not
// see it. Alloc, Isolate and Reduce check the type, and name the field that is wrong.
//
// # Memory model
//
// Across nodes memory is sequentially consistent; within a node it is as the processor has it; Go's
// rule that data races are errors still holds for the compiler's sake. Use Mutex, RWMutex, Barrier,
// Reduce, AllReduce or sync/atomic to order accesses. docs/memory-model.md says it in full.
//
// # When something breaks
//
// A program that dies takes no memory with it. What a lock protects that it held may be half
// changed, so nobody gets that lock by Lock, which returns ErrOwnerDied, until a program has
// repaired that: see Mutex.LockRepair.
//
// When the daemon of its node dies, or another node's daemon without which the cluster can't go on,
// shared memory is gone: calls return errors that wrap ErrLost, and a program that has allocated
// shared memory ends with exit status ExitLost and a message on standard error, because a thread
// that touches the memory can neither be given a value nor be told. WithLossGrace gives it time to
// say goodbye. The program keeps its userfaultfd open all the time, so a load after the daemon's
// death waits for that end instead of reading zeros.
//
// Daemons that are to survive the loss of others (see docs/consistency.md) go on without a node
// that is lost, and so can programs. Barriers and reductions that might wait for one of its ranks
// return ErrNodeLost; Cluster.Survivors are those that are left, who go on among themselves. Locks
// that were there are to be repaired as after the death of a program. Pages that others have a copy
// of stay. A page whose only copy was there is lost, and touching it is a memory fault: Guard turns
// that into a *PageLostError, and without Guard it ends the program. It never reads as zeros, nor
// as it was before; but with `dsmd run --lost checkpoint` it goes back to what it had in the job's
// last checkpoint (docs/consistency.md says when that is right; StaysLost is for memory for which
// it is not).
//
// A child process has no access to the shared memory. In one process, one Cluster can be open at a
// time for each region of addresses.
package dsm
