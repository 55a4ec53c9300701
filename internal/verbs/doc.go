// Package verbs is a thin Go face of libibverbs and librdmacm: what a program needs to move memory
// between machines with an RDMA device, and nothing that decides anything.
//
// # Building
//
// The package is a binding in C. It is built only with the tag `rdma` and needs libibverbs-dev and
// librdmacm-dev (Debian's names). Without the tag there remain the types of types.go, Map, and
// Devices, which returns ErrNotBuilt. So a caller that only wants to list devices needs no tag of
// its own.
//
// # Objects
//
// The objects are those of the verbs specification, made from each other in this order and closed
// in the opposite order:
//
//	Device   an opened device; limits, ports, addresses
//	  PD     a protection domain: what belongs to it may be used together
//	    MR   registered memory: pinned, and known to the device by two keys
//	    SRQ  receives that several queue pairs share
//	    QP   a queue pair, of a reliable connection (RC)
//	  Channel  a descriptor that tells of completions
//	  CQ     a completion queue
//
// Memory for the device comes from Map, not from Go's heap: the device uses it behind the
// collector's back.
//
// # Cost
//
// A call into C costs about 50 ns, so the calls of the fast path take batches: PostSend and
// PostRecv take a slice of requests and make one chain of them, Poll fills a slice of completions.
// None of them allocates, and the requests and completions are plain structures with the layout
// that the C side reads, so that nothing is converted twice.
//
// # Setting up a connection
//
// There are two ways. Either the two sides tell each other their Endpoint by any channel, and each
// calls QP.Init, QP.ReadyToReceive and QP.ReadyToSend. Or librdmacm does it (ConnID), which also
// finds routes and is the only way on iWARP: the queue pair is made here all the same, and
// ConnID.Prepare brings it from state to state with what the connection manager has negotiated.
//
// # Concurrency
//
// Verbs objects may be used from several threads at once, except that an object must not be closed
// while it is used. Poll and PostSend of one object are cheaper when only one thread calls them. No
// function waits, apart from those of registration and set-up, which may sleep in the kernel for as
// long as that takes.
//
// The specification: InfiniBand Architecture Specification, volume 1, chapters 9 to 11; the manual
// pages ibv_* and rdma_* describe the libraries.
package verbs
