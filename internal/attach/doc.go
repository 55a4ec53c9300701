// Package attach is what a program and the daemon of its node say to each other.
//
// They talk over a Unix stream socket, named by a path or, with a leading @, in the abstract
// namespace. Each side sends frames: a header of HeaderBytes, then a body. All integers are
// little-endian. The conversation is
//
//	program                                daemon
//	Hello{version, pid, rank, job}     ->
//	                                       <- Welcome{...} with the memfd, or Refuse{reason}
//	Trap{mode} with the userfaultfd    ->
//	                                       <- Ready with the control page, or Refuse{reason}
//	Call{ticket, op, ...}              ->
//	                                       <- Reply{ticket, status, payload}
//	...                                    ...
//	Bye                                ->
//
// Calls overlap: any number may be open, each has a ticket of the program's choice, and replies
// come in any order. Acquire, Arrive, Bind, Unbind, Keep, Discard, Prefetch, Pin, Stats, Usage,
// Programs, Waits, Name, LostPage and LostRanks are answered by exactly one Reply. Release and
// Cancel are not answered (a canceled call is, with StatusCanceled or with what had already been
// decided). The daemon sends Lost at any time to say that the cluster is broken; it is the last
// frame. A connection that ends without Bye means that the program has died.
//
// A program takes and gives back a lock that stays at the node without any of this, on the control
// page (package controlpage). What it cannot do there it does by calls. It also sends Release for a
// lock that it has taken there and that was recalled. Frames with a call or a reply may go through
// a box on that page instead of the socket, while the other side looks there.
//
// A descriptor travels with the first byte of the frame that it belongs to. The kernel never
// delivers the bytes after such a frame together with bytes before it, so descriptors arrive in the
// order of the frames which need them, and a receiver keeps them in a queue (Stream.TakeFD).
//
// Nothing here trusts the other side: every decoder returns an error on any input that its encoder
// would not have written, every length is bounded by a constant, and each decoder has a fuzz
// target. An encoder panics when it is given what its decoder would refuse, because that is a bug
// on this side.
//
// There are two ways to move frames. A daemon has many programs and one thread: it uses Listen,
// Accept, Receive and Send on non-blocking descriptors, with a Stream for each. A program uses Dial
// and Conn, which block as usual in Go.
//
// This package also holds the death watch (see WatchDaemon): the thread that ends a
// program whose daemon is gone even when no goroutine can run any more.
package attach
