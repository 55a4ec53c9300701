package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/stripes"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"
	"dsmd/transport/emulated"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Defaults and bounds of Config.
const (
	DefaultRegionBytes = 64 << 30
	MaxRegionBytes     = pagetable.MaxRegionBytes
	// DefaultRegionBase lies where neither Go's heap, nor its race detector, nor libraries, nor the
	// stack put anything on amd64 and arm64 with 47 bits of addresses; 16 TiB fit before anything
	// else.
	DefaultRegionBase = 0x4000_0000_0000
	// addressesEnd is the first address that some machine that we run on does not give to programs.
	addressesEnd = 1 << 47
	// HomeStripe is how many neighbouring pages share a home: few enough that a small array has
	// several homes, many enough that a run of pages is asked for at one place.
	HomeStripe = 16
	// DefaultHold is enough for a thread that was just woken on an idle core to repeat its access.
	DefaultHold = 20 * time.Microsecond
	// MinHold is the resolution of the engine's clock.
	MinHold = time.Microsecond
	// MaxHold is enough for a thread that has to wait for a core first.
	MaxHold = 20 * time.Millisecond
	// MaxRanks bounds the programs of a job.
	MaxRanks = 1 << 16
)

// Config is what a node has to know. Nodes, Ranks, Cluster, Peers, RegionBytes and RegionBase are
// the same on all nodes.
type Config struct {
	Self, Nodes int               // this node's id, and how many there are (1 to protocol.MaxNodes)
	Ranks       int               // programs that make up the job
	Cluster     string            // peers that give another name are refused
	Listener    net.Listener      // TCP, listening already; the node closes it
	Peers       []string          // data address of each node by id
	Socket      *net.UnixListener // where programs attach; the node closes it
	RegionBytes uint64            // address space of the shared memory; 0: DefaultRegionBytes
	RegionBase  uint64            // its address in all programs; 0: DefaultRegionBase
	Trap        string            // one of pagetable.TrapNames; "": "auto"
	// GiveUp is how long a peer may be out of reach before it is lost; 0: tcp.DefaultGiveUp.
	GiveUp   time.Duration
	Security Security
	Network  Network
	Memory   Memory
	// Survive has the node go on without peers that are lost, as long as the nodes that are left
	// are a quorum (see internal/agreement). Otherwise the loss of any ends all nodes, with their
	// programs. It must be the same on all nodes.
	Survive bool
	// Rejoin: the cluster runs, and this node comes in the place of one with its number that has
	// left, or was lost. It needs Survive. Programs that connect before it is let in wait.
	Rejoin bool
	// NoQuorum is what happens to programs when Survive does not help, because too few nodes are
	// left. One of NoQuorumPolicies; "": "block".
	NoQuorum string
	Hold     time.Duration // base of the hold window, at least 1µs; 0: DefaultHold
	Core     Core
	// Predict has the node ask for pages that its programs will miss next, as they did before.
	Predict bool
	// Farewell is called when the node ends, before its connections do, so that the other nodes can
	// be told why they end: with Run's error, or nil if the node was told to. It is not called when
	// New fails. nil: they find out.
	Farewell func(why error)
	// Stages is filled with the stages that faults pass. It is the node's until that has ended.
	// nil: nobody wants to know.
	Stages *StageLog
	Log    *zap.Logger // nil: no logs
	// Launched: whoever has started this node has started its programs too, and says how they end.
	Launched bool
	Metrics  prometheus.Registerer
}

// MaxReactors bounds Config.Reactors.
const MaxReactors = attach.MaxReactors

// checkReactors tells what does not go together with several reactors.
func (c *Config) checkReactors() error {
	with := ServesAlone(c.Trap, c.Network.Emulated, c.Stages != nil)
	switch {
	case c.Core.Reactors < 0 || c.Core.Reactors > MaxReactors:
		return fmt.Errorf("node: %d reactors; there are 1 to %d", c.Core.Reactors, MaxReactors)
	case c.Core.Reactors <= 1:
		return nil
	case with != "":
		return fmt.Errorf("node: %d reactors, and a daemon that %s has one; give --reactors 1 on all nodes", c.Core.Reactors, with)
	case c.Memory.Bytes != 0 && c.Memory.Bytes/uint64(c.Core.Reactors) < MinMemoryBytes:
		return fmt.Errorf("node: room for %d bytes of pages, divided among %d reactors; each has at least %d (4 MiB)",
			c.Memory.Bytes, c.Core.Reactors, MinMemoryBytes)
	}
	return nil
}

// ServesAlone says what has a daemon have one reactor, whatever its machine: "" if nothing does.
func ServesAlone(trap string, network emulated.Link, stages bool) string {
	switch {
	case trap == pagetable.TrapSigsegv:
		return "traps by sigsegv (--trap)"
	case network.IsOn():
		return "emulates a network (--emulate-latency, --emulate-bandwidth)"
	case stages:
		return "records the stages of faults (--stages)"
	default:
		return ""
	}
}

// Core is how a daemon shares cores with programs.
type Core struct {
	// Reactors is how many threads serve faults, each for some of the pages; 0: 1. It is the same
	// on all nodes. Not everything goes together with more than one, see checkReactors.
	Reactors int
	// StripePages is how many pages in a row one reactor serves, the same on all nodes; 0: as many
	// as suit the region.
	StripePages uint32
	Spin        time.Duration // longest polling before sleep; 0: DefaultSpin, negative: none
	// Priority is that of the reactor over programs that compute. One of PriorityNames; "": "auto".
	Priority string
}

// Memory is what a node takes for pages.
type Memory struct {
	// Bytes bounds the pages that the node has in memory: it parts with some when others come, and
	// if no node has room for more, and Spill is not given either, it says so and takes more
	// nevertheless. What is on its way, backups of replicated memory, and some 60 bytes for each
	// page that the node knows are not counted. At least MinMemoryBytes; 0: no bound.
	Bytes uint64
	// Spill is a directory on a disk, for a file with the pages that no node has room for; "":
	// there is none. It needs Bytes.
	Spill string
}

// Network is by what a node reaches the others.
type Network struct {
	Transport string // one of TransportNames; "": "auto"
	// RDMADevice names the device; "": the one with this node's address, else the first that works.
	RDMADevice string
	// RDMAPoolBytes bounds the memory registered for RDMA; 0: DefaultRDMAPoolBytes.
	RDMAPoolBytes uint64
	// Emulated is a network that is as slow as this node's is to seem; zero: it is as it is.
	Emulated emulated.Link
}

// Security is how nodes know each other, and who else can read what they say; see tcp.Config.
// Without TLS connections are plain, and without a secret either whoever connects is believed.
type Security struct {
	TLS        *tls.Config
	LatestTLS  func() *tls.Config
	VerifyPeer func(transport.NodeID, tls.ConnectionState) error
	Secret     []byte
}

func (c *Config) setDefaults() error {
	if c.RegionBytes == 0 {
		c.RegionBytes = DefaultRegionBytes
	}
	if c.RegionBase == 0 {
		c.RegionBase = DefaultRegionBase
	}
	if c.Core.StripePages == 0 {
		c.Core.StripePages = stripes.Pages(c.RegionBytes / uint64(os.Getpagesize()))
	}
	if c.Hold == 0 {
		c.Hold = DefaultHold
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	page := uint64(os.Getpagesize())
	switch {
	case c.Nodes < 1 || c.Nodes > protocol.MaxNodes:
		return fmt.Errorf("node: a cluster of %d nodes; it has 1 to %d", c.Nodes, protocol.MaxNodes)
	case c.Self < 0 || c.Self >= c.Nodes:
		return fmt.Errorf("node: id %d in a cluster of %d nodes; ids are 0 to %d", c.Self, c.Nodes, c.Nodes-1)
	case len(c.Peers) != c.Nodes:
		return fmt.Errorf("node: %d peer addresses for %d nodes; give one for each node, this one included", len(c.Peers), c.Nodes)
	case c.Ranks < 1 || c.Ranks > MaxRanks:
		return fmt.Errorf("node: a job of %d programs; it has 1 to %d", c.Ranks, MaxRanks)
	case c.RegionBytes%page != 0 || c.RegionBytes > MaxRegionBytes:
		return fmt.Errorf("node: a region of %d bytes; it is a multiple of %d, at most %d (16 TiB)", c.RegionBytes, page, uint64(MaxRegionBytes))
	case c.RegionBase%page != 0 || c.RegionBase >= addressesEnd-c.RegionBytes:
		return fmt.Errorf("node: a region of %d bytes at %#x; it starts at a page and ends below %#x", c.RegionBytes, c.RegionBase, uint64(addressesEnd))
	case c.Trap != "" && !slices.Contains(pagetable.TrapNames, c.Trap):
		return fmt.Errorf("node: trap back end %q; there are %q", c.Trap, pagetable.TrapNames)
	case !knownTransport(c.Network.Transport):
		return fmt.Errorf("node: transport %q; there are %q", c.Network.Transport, TransportNames)
	case c.Network.RDMAPoolBytes > MaxRDMAPoolBytes:
		return fmt.Errorf("node: a pool of %d bytes for RDMA; at most %d are possible", c.Network.RDMAPoolBytes, uint64(MaxRDMAPoolBytes))
	case c.Memory.Bytes != 0 && c.Memory.Bytes < MinMemoryBytes:
		return fmt.Errorf("node: room for %d bytes of pages; it is at least %d (4 MiB)", c.Memory.Bytes, MinMemoryBytes)
	case c.Memory.Spill != "" && c.Memory.Bytes == 0:
		return fmt.Errorf("node: pages are to go to %s (--spill) where there is no room for them, and there is no bound; give one (--memory)", c.Memory.Spill)
	case c.NoQuorum != "" && !slices.Contains(NoQuorumPolicies, c.NoQuorum):
		return fmt.Errorf("node: %q for when too few nodes are left; there are %q", c.NoQuorum, NoQuorumPolicies)
	case c.Core.Priority != "" && !slices.Contains(PriorityNames, c.Core.Priority):
		return fmt.Errorf("node: priority %q; there are %q", c.Core.Priority, PriorityNames)
	case c.Rejoin && !c.Survive:
		return errors.New("node: to come into a cluster that runs (--rejoin) it takes one that survives the loss of nodes; give --survive, as on all its nodes")
	case c.Hold < MinHold || c.Hold > MaxHold:
		return fmt.Errorf("node: a hold window of %v; it is from %v to %v", c.Hold, MinHold, MaxHold)
	case c.Socket == nil:
		return errors.New("node: no socket for programs to attach at")
	}
	return c.checkReactors()
}
