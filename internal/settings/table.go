package settings

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"dsmd/internal/certs"
	"dsmd/node"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport/emulated"
	"dsmd/transport/tcp"
)

// Scope says which commands have a setting as a flag.
type Scope uint8

const (
	// Run is what `dsmd run` has too, and hands on to the daemons that it starts.
	Run Scope = iota
	// Serve is what only a daemon by itself has.
	Serve
)

// Setting is a row of the table.
type Setting struct {
	Name    string
	Scope   Scope
	Default string // as it is written; see also Derived
	Derived string // what an empty Default stands for, in words; "": for nothing
	Range   string // what is possible, for people; the value's parser decides
	Meaning string // a phrase, for --help and the documentation
	value   func(*Values) pflag.Value
}

// All is every setting, in the order in which people read them.
var All = []Setting{
	{Name: "cluster", Scope: Serve, Default: "default", Range: fmt.Sprintf("1 to %d printable characters", MaxCluster),
		Meaning: "name of the cluster; nodes of another name are refused",
		value:   func(v *Values) pflag.Value { return text(&v.Cluster, "NAME", CheckCluster) }},
	{Name: "nodes", Scope: Serve, Derived: "as many as --peers has, or 1", Range: fmt.Sprintf("1 to %d", protocol.MaxNodes),
		Meaning: "how many nodes make up the cluster, for --join",
		value:   func(v *Values) pflag.Value { return number(&v.Nodes, 1, protocol.MaxNodes, "", 0) }},
	{Name: "id", Scope: Serve, Default: "auto", Range: "0 to nodes - 1, or auto",
		Meaning: "this node's number; with --peers its place in the list; auto: assigned when all nodes are known",
		value:   func(v *Values) pflag.Value { return number(&v.ID, 0, protocol.MaxNodes-1, "auto", AutoID) }},
	{Name: "join", Scope: Serve, Range: "HOST or HOST:PORT, separated by commas; port " + DefaultGossipPort + " unless said",
		Meaning: "gossip address of some node of the cluster, or a name that stands for several; the own one may be among them",
		value:   func(v *Values) pflag.Value { return list(v, "join", &v.Join, "HOSTS") }},
	{Name: "peers", Scope: Serve, Range: "HOST:PORT of each node, separated by commas",
		Meaning: "data address of each node, this one included, where the nodes are listed instead of found",
		value:   func(v *Values) pflag.Value { return list(v, "peers", &v.Peers, "ADDRS") }},
	{Name: "listen", Scope: Serve, Derived: "the own one of --peers; with --join :" + DefaultDataPort, Range: "HOST:PORT or :PORT",
		Meaning: "TCP address to listen at for pages",
		value:   func(v *Values) pflag.Value { return text(&v.Listen, "ADDR", checkAddress) }},
	{Name: "gossip", Scope: Serve, Derived: "the host of --listen, port " + DefaultGossipPort, Range: "HOST:PORT or :PORT; HOST is an IP address",
		Meaning: "TCP and UDP address to listen at for gossip, with --join",
		value:   func(v *Values) pflag.Value { return text(&v.Gossip, "ADDR", checkAddress) }},
	{Name: "advertise", Scope: Serve, Derived: "found from --listen, or from the way to --join", Range: "HOST or HOST:PORT",
		Meaning: "how others reach this node, with --join, where that is not where it listens",
		value:   func(v *Values) pflag.Value { return text(&v.Advertise, "ADDR", nil) }},
	{Name: "join-timeout", Scope: Serve, Default: "5m0s", Range: "1s to 24h",
		Meaning: "how long to wait until all nodes are known, with --join",
		value:   func(v *Values) pflag.Value { return span(&v.JoinTimeout, time.Second, 24*time.Hour) }},
	{Name: "dead-after", Scope: Serve, Default: time.Duration(tcp.DefaultGiveUp).String(), Range: "2s to 1h",
		Meaning: "how long a node may be out of reach before it is taken for dead; one that was joined must also answer within that time",
		value:   func(v *Values) pflag.Value { return span(&v.DeadAfter, 2*time.Second, time.Hour) }},
	{Name: "survive", Scope: Run, Default: "false", Range: "true or false; the same on all nodes",
		Meaning: "go on without nodes that are lost, as long as more than half are left, or half with the lowest number; otherwise the loss of one ends all",
		value:   func(v *Values) pflag.Value { return truth(&v.Survive) }},
	{Name: "no-quorum", Scope: Serve, Default: node.NoQuorumPolicies[0], Range: strings.Join(node.NoQuorumPolicies, ", "),
		Meaning: "with --survive, what programs do where too few nodes are left: wait, or end with the daemon",
		value:   func(v *Values) pflag.Value { return Choice(&v.NoQuorum, "NAME", node.NoQuorumPolicies) }},
	{Name: "rejoin", Scope: Serve, Default: "false", Range: "true or false; with --survive, under the same addresses as before",
		Meaning: "come into a cluster that runs, in the place of a node that has left or was lost",
		value:   func(v *Values) pflag.Value { return truth(&v.Rejoin) }},
	{Name: "return", Scope: Serve, Default: "false", Range: "true or false; with --survive",
		Meaning: "when the others go on without this daemon, or have before it was started again, or it ends for want of a quorum: end only its programs, and come back as with --rejoin",
		value:   func(v *Values) pflag.Value { return truth(&v.Return) }},
	{Name: "socket", Scope: Serve, Default: DefaultSocket(), Range: "a path, or @NAME for an abstract name",
		Meaning: "Unix socket for programs",
		value:   func(v *Values) pflag.Value { return text(&v.Socket, "SOCKET", checkGiven) }},
	{Name: "ranks", Scope: Serve, Derived: "one for each node", Range: fmt.Sprintf("1 to %d", node.MaxRanks),
		Meaning: "number of programs in a job that says nothing about its size",
		value:   func(v *Values) pflag.Value { return number(&v.Ranks, 1, node.MaxRanks, "", 0) }},
	{Name: "metrics", Scope: Serve, Range: "HOST:PORT, or :PORT for this machine only",
		Meaning: "TCP address of an HTTP server with /metrics and /debug/pprof; beyond this machine it asks for certificates as nodes do",
		value:   func(v *Values) pflag.Value { return text(&v.Metrics, "ADDR", checkAddress) }},

	{Name: "tls-ca", Scope: Serve, Range: "a file",
		Meaning: "certificate of the cluster's authority, which has signed those of all nodes (dsmd cert)",
		value:   func(v *Values) pflag.Value { return text(&v.TLSCA, "FILE", nil) }},
	{Name: "tls-cert", Scope: Serve, Range: "a file",
		Meaning: "this node's certificate",
		value:   func(v *Values) pflag.Value { return text(&v.TLSCert, "FILE", nil) }},
	{Name: "tls-key", Scope: Serve, Range: "a file",
		Meaning: "the private key of this node's certificate",
		value:   func(v *Values) pflag.Value { return text(&v.TLSKey, "FILE", nil) }},
	{Name: "gossip-key-file", Scope: Serve, Range: "a file with base64 keys of 16, 24 or 32 bytes, one a line; the first one encrypts",
		Meaning: "keys that gossip is encrypted with",
		value:   func(v *Values) pflag.Value { return text(&v.GossipKeyFile, "FILE", nil) }},
	{Name: "secret-file", Scope: Serve, Derived: "without certificates, for nodes of one machine, ~/" + certs.OwnSecretFile + ", which is made once", Range: "a file with a base64 key of 32 bytes",
		Meaning: "secret that nodes without certificates prove to each other that they know, the same for all (dsmd cert secret); without gossip keys, gossip is encrypted with it",
		value:   func(v *Values) pflag.Value { return text(&v.SecretFile, "FILE", nil) }},
	{Name: "insecure", Scope: Serve, Default: "false", Range: "true or false",
		Meaning: "listen without certificates, secret or gossip keys, also beyond this machine: whoever reaches the ports can read and write all memory",
		value:   func(v *Values) pflag.Value { return truth(&v.Insecure) }},

	{Name: "trap", Default: "auto", Range: strings.Join(pagetable.TrapNames, ", "),
		Meaning: "how page faults are trapped: uffd, sigsegv (slower; where userfaultfd is forbidden), or auto, which chooses",
		value:   func(v *Values) pflag.Value { return Choice(&v.Trap, "NAME", pagetable.TrapNames) }},
	{Name: "transport", Default: "auto", Range: strings.Join(node.TransportNames, ", "),
		Meaning: "how pages move between nodes: tcp, rdma, or auto, which takes RDMA to each peer where both sides have it",
		value:   func(v *Values) pflag.Value { return Choice(&v.Transport, "NAME", node.TransportNames) }},
	{Name: "rdma-device", Derived: "the device with this node's address, else the first that works", Range: "a name, as in dsmd doctor",
		Meaning: "RDMA device to use",
		value:   func(v *Values) pflag.Value { return text(&v.RDMADevice, "NAME", nil) }},
	{Name: "rdma-pool", Default: Bytes(node.DefaultRDMAPoolBytes).String(), Range: "whole pages, up to " + Bytes(node.MaxRDMAPoolBytes).String(),
		Meaning: "memory that is registered with the RDMA device at most; a few nodes need less",
		value:   func(v *Values) pflag.Value { return size(&v.RDMAPool, 0, node.MaxRDMAPoolBytes) }},
	{Name: "emulate-latency", Default: "0s", Range: fmt.Sprintf("0s (none) to %v", emulated.MaxLatency),
		Meaning: "for measurements: how much longer whatever a node sends is on its way, as on a slower network",
		value:   func(v *Values) pflag.Value { return span(&v.EmulateLatency, 0, emulated.MaxLatency) }},
	{Name: "emulate-bandwidth", Default: unlimited, Range: fmt.Sprintf("%v to %v, or %s", Rate(emulated.MinBandwidth), Rate(emulated.MaxBandwidth), unlimited),
		Meaning: "for measurements: how much a node sends in a second at most, to all others together, as by a slower network card",
		value: func(v *Values) pflag.Value {
			return rate(&v.EmulateBandwidth, emulated.MinBandwidth, emulated.MaxBandwidth)
		}},
	{Name: "region", Default: Bytes(node.DefaultRegionBytes).String(), Range: "whole pages, up to " + Bytes(node.MaxRegionBytes).String(),
		Meaning: "address space for shared memory, the same on all nodes; memory is used when it is touched",
		value:   func(v *Values) pflag.Value { return size(&v.Region, 0, node.MaxRegionBytes) }},
	{Name: "memory", Default: "auto", Range: "whole pages, from " + Bytes(node.MinMemoryBytes).String() + "; unlimited; or auto: three quarters of what the machine or the control group has, which the nodes of dsmd run -n divide, and no others",
		Meaning: "memory for shared pages on a node; it drops copies, and moves pages to nodes that have room, to keep to that",
		value:   func(v *Values) pflag.Value { return room(&v.Memory) }},
	{Name: "spill", Range: "a directory on a disk, not a tmpfs; not with --memory unlimited",
		Meaning: "for a file, without a name, with the pages that no node has room for; without it a node takes more than its --memory then",
		value:   func(v *Values) pflag.Value { return text(&v.Spill, "DIR", nil) }},
	{Name: "hold", Default: node.DefaultHold.String(), Range: fmt.Sprintf("%v to %v", node.MinHold, node.MaxHold),
		Meaning: "how long a page that has just arrived is kept at least",
		value:   func(v *Values) pflag.Value { return span(&v.Hold, node.MinHold, node.MaxHold) }},
	{Name: "spin", Default: node.DefaultSpin.String(), Range: "negative (never) to 1s",
		Meaning: "how long the daemon polls at most before it sleeps",
		value:   func(v *Values) pflag.Value { return span(&v.Spin, -time.Second, time.Second) }},
	{Name: "priority", Default: node.PriorityNames[0], Range: strings.Join(node.PriorityNames, ", "),
		Meaning: "how the daemon gets a core from programs that compute: by a nice value of -20, in real time, not at all, or auto: nice where that is allowed",
		value:   func(v *Values) pflag.Value { return Choice(&v.Priority, "NAME", node.PriorityNames) }},
	{Name: "reactors", Default: "auto", Range: fmt.Sprintf("1 to %d, or auto; the same on all nodes", node.MaxReactors),
		Meaning: fmt.Sprintf("how many threads of the daemon serve faults, each for some of the pages, with userfaultfd; auto: one for every %d processors, up to %d, and as many on all nodes as each can have",
			processorsPerReactor, maxAutoReactors),
		value: func(v *Values) pflag.Value {
			return number(&v.Reactors, 1, node.MaxReactors, "auto", AutoReactors)
		}},
	{Name: "stripe", Default: "auto", Range: "1 to 1048576 pages, or auto; the same on all nodes",
		Meaning: "for measurements: with several --reactors, how many pages in a row one of them serves; auto: at least 256, and more in a large --region",
		value:   func(v *Values) pflag.Value { return number(&v.Stripe, 1, 1<<20, "auto", 0) }},
	{Name: "predict", Default: "on", Range: strings.Join(onOff, ", "),
		Meaning: "whether a node asks for pages before a program touches them that the program has missed in the same order before",
		value:   func(v *Values) pflag.Value { return Choice(&v.Predict, "NAME", onOff) }},
	{Name: "stages", Default: "0", Range: fmt.Sprintf("0 (none) to %d", node.MaxStages),
		Meaning: "for measurements: of how many of the last stages of faults to keep the times, at /debug/stages of the HTTP server that --metrics starts",
		value:   func(v *Values) pflag.Value { return number(&v.Stages, 0, node.MaxStages, "", -1) }},
	{Name: "log-level", Default: "info", Range: strings.Join(logLevels, ", "),
		Meaning: "what is logged",
		value:   func(v *Values) pflag.Value { return Choice(&v.LogLevel, "NAME", logLevels) }},
	{Name: "log-format", Default: "console", Range: strings.Join(logFormats, ", "),
		Meaning: "how it is logged",
		value:   func(v *Values) pflag.Value { return Choice(&v.LogFormat, "NAME", logFormats) }},
}

var (
	onOff      = []string{"on", "off"}
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"console", "json"}
)

// MaxCluster bounds the length of a cluster's name, in bytes. Together with the digest of the
// nodes, or the settings, that are put behind it, it must fit into what the nodes tell each other.
const MaxCluster = 100

// A cluster's name and what is behind it must fit into the greeting of the transport.
const _ = uint(tcp.MaxClusterBytes - MaxCluster - 100)

// CheckCluster says why a text cannot be the name of a cluster.
func CheckCluster(s string) error {
	if len(s) < 1 || len(s) > MaxCluster {
		return fmt.Errorf("a name of %d bytes; 1 to %d are possible", len(s), MaxCluster)
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("%q has a character that is not possible: use printable ASCII without spaces", s)
		}
	}
	return nil
}

// checkAddress wants a port, which is what people forget. The rest is found out by listening.
func checkAddress(s string) error {
	if s != "" && !strings.Contains(s, ":") {
		return fmt.Errorf("%q has no port: write HOST:PORT or :PORT", s)
	}
	return nil
}

func checkGiven(s string) error {
	if s == "" || s == "@" {
		return fmt.Errorf("%q is no name of a socket", s)
	}
	return nil
}

// DefaultSocket is where a daemon listens for its user's programs unless it is told otherwise.
func DefaultSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir + "/dsmd.sock"
	}
	return fmt.Sprintf("%s/dsmd-%d.sock", os.TempDir(), os.Getuid())
}

// find is the row of a setting that exists.
func find(name string) *Setting {
	s := lookup(name)
	if s == nil {
		panic("settings: there is no " + name)
	}
	return s
}

func lookup(name string) *Setting {
	for i := range All {
		if All[i].Name == name {
			return &All[i]
		}
	}
	return nil
}

// Flag and Variable are what the setting is called on the command line and in the environment.
func (s *Setting) Flag() string { return "--" + s.Name }

// Variable is documented at Flag.
func (s *Setting) Variable() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

const envPrefix = "DSMD_"

// Variables with the prefix that are no settings, but are read all the same.
const (
	EnvConfig = envPrefix + "CONFIG" // the configuration file, unless --config names one
	// the ssh command of `dsmd run --hosts`, unless --ssh names one
	EnvSSH = envPrefix + "SSH"
)

// usage is the line in --help. pflag adds the default.
func (s *Setting) usage() string {
	usage := s.Meaning
	if s.Derived != "" {
		usage += " (default: " + s.Derived + ")"
	}
	return usage
}
