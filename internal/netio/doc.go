// Package netio has the few system calls of the transports' fast path: receive and send
// without blocking, epoll, eventfd, and timerfd.
//
// Go's own network connections park the goroutine and wake it through the scheduler, which
// costs about 6 µs for each remote page (docs/decisions/0002-polled-transport.md). The calls
// here go to the kernel directly, through RawSyscall, which does not tell Go's scheduler. That is
// allowed because none of them can wait: sends and receives carry MSG_DONTWAIT, and epoll is asked
// with a timeout of zero. Calls that may wait do not belong in this package.
//
// Concurrency: a Poller and a Vector belong to one goroutine. An Event may be signalled from any.
// The functions keep no state.
package netio
