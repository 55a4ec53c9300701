package settings

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"dsmd/internal/memlimit"
	"dsmd/node"
	"dsmd/protocol"
)

// AutoID is Values.ID of a node whose id is assigned when all nodes are known.
const AutoID = -1

// Values is a value for every setting. What each means, its unit and its range are in the table,
// All. It belongs to one goroutine.
type Values struct {
	Place
	Trust
	Losses
	Machine

	origins map[string]string // by name of the setting; missing: the default
	added   map[string]bool   // lists, by name of the setting, to which the next Set adds
}

// Place is where a node is, and among which others.
type Place struct {
	Cluster   string
	Nodes     int // 0: as many as Peers has, or one
	ID        int // or AutoID
	Peers     []string
	Join      []string
	Listen    string
	Advertise string
	Gossip    string
	Socket    string
	Ranks     int // 0: one for each node
	Metrics   string
}

// Trust is whom a node believes.
type Trust struct {
	TLSCA, TLSCert, TLSKey string
	GossipKeyFile          string
	SecretFile             string
	Insecure               bool
}

// Losses are when nodes are lost, and what then.
type Losses struct {
	JoinTimeout time.Duration
	DeadAfter   time.Duration
	Survive     bool
	NoQuorum    string
	Rejoin      bool
	Return      bool
}

// Machine is how a node uses its machine.
type Machine struct {
	Trap, Transport     string
	RDMADevice          string // "": choose
	RDMAPool            Bytes
	EmulateLatency      time.Duration
	EmulateBandwidth    Rate // 0: unlimited
	Region              Bytes
	Memory              Bytes // or AutoMemory, UnlimitedMemory
	Spill               string
	Hold, Spin          time.Duration
	Reactors            int // or AutoReactors
	Stripe              int // pages; 0: as many as suit the region
	Priority            string
	Predict             string // "on" or "off"
	Stages              int
	LogLevel, LogFormat string
}

// Values of Machine.Memory that are no sizes.
const (
	AutoMemory      Bytes = 0
	UnlimitedMemory Bytes = 1<<64 - 1

	mostMemory Bytes = 1 << 60
)

// MemoryBytes is what a node takes for pages at most, of so many on this machine: 0 if there is no
// bound.
func (v *Values) MemoryBytes(nodes int) (uint64, error) {
	switch v.Memory {
	case UnlimitedMemory:
		return 0, nil
	case AutoMemory:
		limit, err := memlimit.Find()
		if err != nil {
			return 0, fmt.Errorf("how much memory there is: %w; say it with --memory", err)
		}
		return max(limit.ForPages(nodes), node.MinMemoryBytes), nil
	default:
		return uint64(v.Memory), nil
	}
}

func blank() *Values { return &Values{origins: map[string]string{}, added: map[string]bool{}} }

// New returns the defaults.
func New() *Values {
	v := blank()
	for i := range All {
		if err := All[i].value(v).Set(All[i].Default); err != nil {
			panic(fmt.Sprintf("settings: the default of %s: %v", All[i].Name, err))
		}
	}
	clear(v.added)
	return v
}

// Register adds a flag for each setting of a scope. Parsing the flags stores into v.
func (v *Values) Register(flags *pflag.FlagSet, scope Scope) {
	for i := range All {
		s := &All[i]
		if s.Scope > scope {
			continue
		}
		value := s.value(v)
		flag := flags.VarPF(value, s.Name, "", s.usage())
		flag.DefValue = s.Default
		if value.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}

// Args is the command line that gives the settings of a scope the values that they have here.
func (v *Values) Args(scope Scope) []string {
	var args []string
	for i := range All {
		if All[i].Scope <= scope {
			args = append(args, "--"+All[i].Name+"="+All[i].value(v).String())
		}
	}
	return args
}

// Text is the value of a setting as it is written, and Origin where it comes from: a flag, a
// variable of the environment, a line of the file, or the default. Preconditions: there is a
// setting called name.
func (v *Values) Text(name string) string { return find(name).value(v).String() }

// Origin is documented at Text.
func (v *Values) Origin(name string) string {
	if o, ok := v.origins[name]; ok {
		return o
	}
	return "default"
}

// Static reports whether the nodes of the cluster are listed instead of found: also true of a
// cluster of one.
func (v *Values) Static() bool { return len(v.Join) == 0 }

// Check tells what is wrong with values that are right one by one and don't fit together. It
// completes those that depend on others: Nodes, Peers, ID, Listen and Ranks of a listed cluster.
func (v *Values) Check() error {
	var err error
	if v.Static() {
		err = v.checkStatic()
	} else {
		err = v.checkJoining()
	}
	if err != nil {
		return err
	}
	if v.ID >= v.Nodes {
		return fmt.Errorf("--id %d: ids of %d nodes are 0 to %d", v.ID, v.Nodes, v.Nodes-1)
	}
	if err := cmp.Or(v.CheckReactors(), v.CheckSpill()); err != nil {
		return err
	}
	switch {
	case v.Return && !v.Survive:
		return errors.New("--return without --survive: where the loss of a node ends all there is nothing to come back to; give --survive, on all nodes")
	case v.Return && v.Nodes < 2:
		return errors.New("--return: a cluster of one node has no others that could go on without it")
	case v.Rejoin && !v.Survive:
		return errors.New("--rejoin without --survive: nodes come back only into a cluster whose nodes survive the loss of others; give --survive, as on all of them")
	case v.Rejoin && v.Nodes < 2:
		return errors.New("--rejoin: the place to come back to is one among several nodes; give --peers and --id, or --join and --nodes, as before")
	}
	if v.Ranks == 0 {
		v.Ranks = v.Nodes
	}
	return v.checkTLS()
}

func (v *Values) checkStatic() error {
	switch {
	case len(v.Peers) == 0 && v.Nodes > 1:
		return fmt.Errorf("--nodes %d: a cluster of several nodes needs to know where they are: name some with --join, or list all with --peers", v.Nodes)
	case len(v.Peers) == 0:
		// A cluster of one node has nobody to listen for.
		v.Peers = []string{"127.0.0.1:0"}
	case v.Nodes != 0 && v.Nodes != len(v.Peers):
		return fmt.Errorf("--nodes %d: the list of peers has %d", v.Nodes, len(v.Peers))
	case len(v.Peers) > protocol.MaxNodes:
		return fmt.Errorf("--peers: %d nodes: 1 to %d are possible", len(v.Peers), protocol.MaxNodes)
	}
	for i, peer := range v.Peers {
		if _, _, err := net.SplitHostPort(peer); err != nil {
			return fmt.Errorf("--peers: address %d, %q: %w: write HOST:PORT", i, peer, err)
		}
	}
	v.Nodes = len(v.Peers)
	if v.ID == AutoID {
		if v.Nodes > 1 {
			return errors.New("--peers without --id: say which of the peers this node is, from 0")
		}
		v.ID = 0
	}
	if v.ID >= v.Nodes {
		return fmt.Errorf("--id %d: the list of peers has places 0 to %d", v.ID, v.Nodes-1)
	}
	if v.Listen == "" {
		v.Listen = v.Peers[v.ID]
	}
	return nil
}

// Ports that a cluster which is joined uses unless told otherwise.
const (
	DefaultDataPort   = "7400"
	DefaultGossipPort = "7401"
)

func (v *Values) checkJoining() error {
	switch {
	case len(v.Peers) > 0:
		return errors.New("--join and --peers: the nodes are either found or listed, not both")
	case v.Nodes == 0:
		return errors.New("--join without --nodes: say how many nodes make up the cluster")
	}
	if v.Listen == "" {
		v.Listen = ":" + DefaultDataPort
	}
	if v.Gossip == "" {
		host, _, err := net.SplitHostPort(v.Listen)
		if err != nil {
			return fmt.Errorf("--listen %q: %w: write HOST:PORT or :PORT", v.Listen, err)
		}
		v.Gossip = net.JoinHostPort(host, DefaultGossipPort)
	}
	for i, name := range v.Join {
		if _, _, err := net.SplitHostPort(name); err != nil {
			v.Join[i] = net.JoinHostPort(strings.Trim(name, "[]"), DefaultGossipPort)
		}
	}
	return nil
}

// CheckSpill tells that no page would ever go to the spill file.
func (v *Values) CheckSpill() error {
	if v.Spill != "" && v.Memory == UnlimitedMemory {
		return fmt.Errorf("--spill %s with --memory unlimited: no page would ever go there; give a bound (--memory), or leave out --spill", v.Spill)
	}
	return nil
}

func (v *Values) checkTLS() error {
	some := v.TLSCA != "" || v.TLSCert != "" || v.TLSKey != ""
	if all := v.TLSCA != "" && v.TLSCert != "" && v.TLSKey != ""; some && !all {
		return errors.New("--tls-ca, --tls-cert and --tls-key belong together: give all three or none")
	}
	return nil
}

// TLS reports whether certificates are configured.
func (v *Values) TLS() bool { return v.TLSCA != "" }
