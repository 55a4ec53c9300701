// Package floor measures what the operations of the shared memory cost at least: the same kernel
// and network operations, done by bare processes that do nothing else.
//
// The floor of a read miss is three processes. The program P maps a memfd, registers it with a
// userfaultfd, and touches its pages. The daemon D reads a fault from the userfaultfd, sends 16
// bytes to the server S over loopback TCP, receives 4 KiB from it, and installs them with
// UFFDIO_COPY. S receives 16 bytes and sends 4 KiB. D and S each are one locked thread that makes
// raw system calls with garbage collection and preemption off, so Go's scheduler has no part in it;
// it equals the same loop in C.
//
// Each floor can be measured with D, S and the clients waiting in blocking system calls, or
// retrying for up to SpinLimit before they block. Which is faster depends on what the processors do
// meanwhile. Who reports a floor should measure both and take the better, else a system that spins
// could seem to beat it.
//
// The userfaultfd calls are those of internal/uffd, which add nothing to the system calls, so that
// the floor and the system ask the kernel in the same way (docs/decisions/0004-floors-may-trap.md);
// the package shares nothing else with what it is compared with. The processes are copies of the
// running executable, which must call Main first thing if IsProcess says so.
package floor
