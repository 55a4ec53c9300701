package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ErrNotBuilt is returned by Devices of a program that was built without the tag rdma.
var ErrNotBuilt = errors.New("verbs: built without RDMA: build with -tags rdma (needs libibverbs-dev and librdmacm-dev)")

// ErrNoDevice says that a device that was asked for is not there, or that there is none at all.
var ErrNoDevice = errors.New("no such RDMA device")

// ErrLimit is wrapped by errors that a larger RLIMIT_MEMLOCK may cure.
var ErrLimit = errors.New("the kernel refused to pin the memory; raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK= of systemd)")

// Link is what carries a device's packets.
type Link string

// The links.
const (
	LinkInfiniBand Link = "InfiniBand"
	LinkEthernet   Link = "Ethernet" // RoCE
	// over TCP: connections are made by the connection manager alone
	LinkIWARP   Link = "iWARP"
	LinkUnknown Link = "unknown"
)

// PortState is the state of a port.
type PortState string

// The states of a port. Only an active one carries data.
const (
	PortDown   PortState = "down"
	PortInit   PortState = "initialising"
	PortArmed  PortState = "armed"
	PortActive PortState = "active"
	PortOther  PortState = "unknown"
)

// GIDType is how packets with an address are made.
type GIDType string

// The types of addresses.
const (
	GIDInfiniBand GIDType = "IB"
	GIDRoCEv1     GIDType = "RoCE v1" // Ethernet frames: not routed
	GIDRoCEv2     GIDType = "RoCE v2" // UDP: routed
)

// GID is an address of a port. On Ethernet an IPv4 address is mapped into IPv6.
type GID struct {
	Index  int        `json:"index"` // in the port's table
	Addr   netip.Addr `json:"addr"`
	Type   GIDType    `json:"type"`
	NetDev string     `json:"netdev,omitempty"` // the network interface behind it, if there is one
}

// PortInfo describes one port of a device, as it was when asked.
type PortInfo struct {
	Number    int       `json:"number"` // from 1
	State     PortState `json:"state"`
	Link      Link      `json:"link"`
	ActiveMTU int       `json:"active_mtu"` // bytes of payload in a packet
	MaxMTU    int       `json:"max_mtu"`
	LID       uint16    `json:"lid"` // the local address on InfiniBand; 0 on Ethernet
	GIDs      []GID     `json:"gids"`
}

// Limits are what a device can do at most.
type Limits struct {
	MaxQPs          int    `json:"max_qps"`
	MaxWorkRequests int    `json:"max_work_requests"` // outstanding ones of one queue
	MaxSGE          int    `json:"max_sge"`           // pieces of memory in one request
	MaxCQs          int    `json:"max_cqs"`
	MaxCQEntries    int    `json:"max_cq_entries"`
	MaxMRs          int    `json:"max_mrs"`
	MaxMRBytes      uint64 `json:"max_mr_bytes"`
	MaxSRQs         int    `json:"max_srqs"` // 0: no shared receive queues
	MaxSRQRequests  int    `json:"max_srq_requests"`
	// MaxReadsPerQP: outstanding reads and atomics as initiator and as target.
	MaxReadsPerQP     int  `json:"max_reads_per_qp"`
	Atomics           bool `json:"atomics"` // compare-and-swap and fetch-and-add
	OnDemandPaging    bool `json:"on_demand_paging"`
	MemoryWindows     bool `json:"memory_windows"`
	PhysicalPorts     int  `json:"physical_ports"`
	CompletionVectors int  `json:"completion_vectors"`
}

// DeviceInfo describes a device, as it was when asked.
type DeviceInfo struct {
	Name     string     `json:"name"`
	Firmware string     `json:"firmware,omitempty"`
	IWARP    bool       `json:"iwarp"`
	Limits   Limits     `json:"limits"`
	Ports    []PortInfo `json:"ports"`
}

// UsablePort returns the first active port with an address that peers can find it by, and the best
// such address: RoCE v2 over IPv4 before IPv6, RoCE v1 last, for the first is routed and needs no
// neighbour discovery. On Ethernet a link-local address of IPv6 is none: it says nothing without
// the network to which it belongs.
func (d *DeviceInfo) UsablePort() (PortInfo, GID, bool) {
	for _, p := range d.Ports {
		if p.State != PortActive {
			continue
		}
		found := slices.DeleteFunc(slices.Clone(p.GIDs), func(g GID) bool {
			return p.Link == LinkEthernet && !g.Addr.Is4In6() && g.Addr.IsLinkLocalUnicast()
		})
		if len(found) > 0 {
			return p, slices.MinFunc(found, func(a, b GID) int { return gidRank(a) - gidRank(b) }), true
		}
	}
	return PortInfo{}, GID{}, false
}

func gidRank(g GID) int {
	switch {
	case g.Type == GIDRoCEv2 && g.Addr.Is4In6():
		return 0
	case g.Type == GIDRoCEv2:
		return 1
	}
	return 2
}

// Opcode says what a SendRequest does, numbered as in the C library.
type Opcode uint32

// The operations.
const (
	OpWrite    Opcode = 0 // write to the peer's memory; the peer does not notice
	OpWriteImm Opcode = 1 // the same, and consume a receive at the peer, which gets Imm
	OpSend     Opcode = 2 // into the memory of a receive at the peer
	OpRead     Opcode = 4 // from the peer's memory
)

// String names the operation.
func (o Opcode) String() string {
	names := [...]string{OpWrite: "write", OpWriteImm: "write with immediate", OpSend: "send", OpRead: "read"}
	if int(o) < len(names) && names[o] != "" {
		return names[o]
	}
	return fmt.Sprintf("Opcode(%d)", uint32(o))
}

// SendFlags modify a SendRequest.
type SendFlags uint32

// The flags, numbered as in the C library.
const (
	// Signaled asks for a completion. A queue's requests are retired only by the completion of one
	// after them, so one of them must be signalled before the queue is full.
	Signaled SendFlags = 2
	// Inline copies the data into the request: the memory is the caller's again at once and need
	// not be registered.
	Inline SendFlags = 8
)

// Access says what may be done with registered memory.
type Access uint32

// The rights, numbered as in the C library. Reading by this node's own device is always allowed.
const (
	AccessLocalWrite  Access = 1
	AccessRemoteWrite Access = 2 // needs AccessLocalWrite
	AccessRemoteRead  Access = 4
)

// SGE is a piece of registered memory.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// MaxSGE is how many pieces one request of this package has at most. A page and the message about
// it are two.
const MaxSGE = 2

// SendRequest is an operation for PostSend. Its layout is that of dsmd_send in verbs.h.
type SendRequest struct {
	ID         uint64 // comes back in the Completion
	RemoteAddr uint64 // writes, reads
	SGE        [MaxSGE]SGE
	RKey       uint32 // writes, reads
	Imm        uint32 // in this machine's byte order; it arrives as the same number
	Op         Opcode
	Flags      SendFlags
	SGEs       uint32 // how many of SGE are used
	_          uint32
}

// RecvRequest is a place for a message. Its layout is that of dsmd_recv in verbs.h.
type RecvRequest struct {
	ID   uint64
	SGE  SGE
	SGEs uint32 // 0: nothing but an immediate value can be received; else 1
	_    uint32
}

// WCFlags say which fields of a Completion are valid, numbered as in the C library.
type WCFlags uint32

// HasImm: Imm is valid.
const HasImm WCFlags = 2

// WCOp says what has completed, numbered as in the C library. It is valid only for Success.
type WCOp uint32

// What completes.
const (
	WCSend    WCOp = 0
	WCWrite   WCOp = 1
	WCRead    WCOp = 2
	WCRecv    WCOp = 128
	WCRecvImm WCOp = 129 // of a write with immediate
)

// Status says how a request ended.
type Status uint32

// The statuses that callers tell apart, numbered as in the C library.
const (
	Success       Status = 0
	FlushError    Status = 5 // the queue pair failed before the request had its turn
	RetryExceeded Status = 12
	RNRExceeded   Status = 13
)

var statusTexts = [...]string{
	"success", "local length error", "local queue pair operation error", "local context error", "local protection error",
	"flushed, because the queue pair has failed", "memory window error", "bad response", "local access error",
	"the peer refused the request as invalid", "the peer refused access to its memory", "the peer failed to carry it out",
	"no answer from the peer after all retries", "the peer had no receive ready after all retries",
}

// String describes the status.
func (s Status) String() string {
	if int(s) < len(statusTexts) {
		return statusTexts[s]
	}
	return fmt.Sprintf("work completion status %d", uint32(s))
}

// Completion tells how a request ended. Its layout is that of dsmd_wc in verbs.h. After a failure
// only ID, Status, QPN and VendorError are valid.
type Completion struct {
	ID          uint64
	Status      Status
	Op          WCOp
	VendorError uint32
	Bytes       uint32 // received
	Imm         uint32
	QPN         uint32 // of the local queue pair
	Flags       WCFlags
}

// Endpoint is what the other side must know of a queue pair to connect to it without librdmacm.
type Endpoint struct {
	QPN uint32 // 24 bits
	// 24 bits: the first packet's number; random, so that packets of an earlier connection don't
	// fit
	PSN uint32
	GID netip.Addr // of the port
	LID uint16     // InfiniBand without global routing
	MTU int        // ActiveMTU of the port
}
