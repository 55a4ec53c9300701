package rdma

import "dsmd/internal/verbs"

// fabric is a device, as far as this package needs one. Verbs are behind it where there is a device
// (fabric_verbs.go), and memory that is copied in tests. It belongs to the reactor's goroutine,
// except that Close uses it when the reactor no longer does, and that release comes when the
// transport is garbage.
type fabric interface {
	// name says which device it is, for the log. It is called at the start only.
	name() string
	// immediate reports whether requests may be writes with immediate.
	immediate() bool
	// allocate makes registered memory. If remote is set, peers may write to it. It is called at
	// the start only.
	allocate(bytes int, remote bool) (region, error)
	// open makes the queues. It is called once, after allocate.
	open(s Sizes) error
	// postRecv posts receives to the shared queue.
	postRecv(requests []verbs.RecvRequest) error
	// poll takes completions, without a system call.
	poll(out []verbs.Completion) (int, error)
	// arm asks that fd becomes readable at the next completion.
	arm() error
	// fd is the descriptor that arm makes readable.
	fd() int
	// event takes what has made fd readable.
	event() error
	// setupFDs become readable when setup has something to do.
	setupFDs() []int
	// setup goes on with connections that are being made, and reports what has become of them and
	// of others.
	setup(report func(e endpoint, what occurrence, err error)) error
	// endpoint makes a queue pair. The terms that it is connected with carry what describe returns.
	endpoint() (endpoint, error)
	// close ends everything. The memory stays until release.
	close() error
	// release gives the memory back.
	release()
}

// occurrence is what setup reports of an endpoint.
type occurrence uint8

const (
	occurReady   occurrence = iota // connect has succeeded after all
	occurFailed                    // it will not work, or no longer
	occurDrained                   // after fail: nothing of it will complete any more
)

// endpoint is one side of a reliable connection.
type endpoint interface {
	// number is how completions name it.
	number() uint32
	// maxInline is how many bytes a request with verbs.Inline may have.
	maxInline() int
	// describe is what the peer must know.
	describe() []byte
	// accept makes the endpoint ready for the peer that has made an offer with this description.
	// When it returns the endpoint can receive, or will when the peer connects.
	accept(peer []byte) error
	// connect is for the side that has made the offer, with the description in the answer. If it
	// returns true the endpoint can send and receive; else setup reports how it ended.
	connect(peer []byte) (bool, error)
	// post posts requests, and takes all or fails for good.
	post(requests []verbs.SendRequest) error
	// fail ends the connection at once: from here on nothing that the peer sends has an effect.
	// What was posted completes with errors.
	fail()
	// close gives the endpoint back. What has not completed then does not.
	close() error
}

// region is registered memory.
type region struct {
	bytes []byte
	addr  uint64
	lkey  uint32
	rkey  uint32
}

func (r region) sge(offset, length int) verbs.SGE {
	return verbs.SGE{Addr: r.addr + uint64(offset), Length: uint32(length), LKey: r.lkey}
}
