package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"dsmd/bench/crew"
)

// maxNodes is the most nodes that the protocol's node sets are made for.
const maxNodes = 1024

// defaultTimeout is far more than any kernel needs at its default size, and less than people wait.
const defaultTimeout = 10 * time.Minute

// clusterOptions are the flags of the commands that start a cluster.
type clusterOptions struct {
	nodes           int
	trap, transport string
	predict         string // as dsmd run has it; "": its default
	memory, spill   string // as dsmd run has them; "": its default
	bind            string // as dsmd run has it; "": see binding
	priority        string // as dsmd run has it; "": its default
	// network is one to emulate, as dsmd run has it; "": none
	network struct{ latency, bandwidth string }
	dsmd    string
	json    string
	timeout time.Duration
	verbose bool
	stats   bool   // where the cluster's time went is printed
	profile string // file for where in the workers that was; "": none
	trace   string // file for a trace of their waits; "": none
	sharing bool   // why the cluster's pages travelled is printed
	// dashboard is the address of a page, and dashboardFile a file for its last state; "": none
	dashboard, dashboardFile string
}

// off is a value of predict.
const off = "off"

func (o *clusterOptions) register(flags *pflag.FlagSet) {
	flags.IntVarP(&o.nodes, "nodes", "n", 2, "number of nodes: daemons, each with one copy of the program")
	o.registerShared(flags)
}

// registerShared registers all but -n, for a command that knows how many nodes it needs.
func (o *clusterOptions) registerShared(flags *pflag.FlagSet) {
	flags.StringVar(&o.trap, "trap", "auto", "how daemons trap page faults: auto, uffd or sigsegv")
	flags.StringVar(&o.transport, "transport", "auto", "how pages move: auto, tcp or rdma")
	flags.StringVar(&o.memory, "memory", "", "memory for the shared pages of each node, as with dsmd run (default: as there)")
	flags.StringVar(&o.spill, "spill", "", "directory for pages that no node has room for, as with dsmd run")
	flags.StringVar(&o.bind, "bind", "", "core or none: whether each node has processors of its own, as with dsmd run (default: core where there are two for each)")
	flags.StringVar(&o.priority, "priority", "", "auto, normal, nice or realtime: how daemons get a core from programs that compute, as with dsmd run (default: as there)")
	flags.StringVar(&o.network.latency, "emulate-latency", "", "latency of a network to emulate, as with dsmd run")
	flags.StringVar(&o.network.bandwidth, "emulate-bandwidth", "", "bandwidth of a network to emulate, as with dsmd run")
	dsmdFlag(flags, &o.dsmd)
	jsonFlag(flags, &o.json)
	timeoutFlag(flags, &o.timeout)
	flags.BoolVar(&o.stats, "stats", false, "show where the time of each rank on the cluster went, as with dsmd run")
	flags.StringVar(&o.profile, "profile", "", "`FILE` for a profile of where on the cluster threads have waited, as with dsmd run")
	flags.StringVar(&o.trace, "trace", "", "`FILE` for a trace of all waits on the cluster, as with dsmd run")
	flags.BoolVar(&o.sharing, "sharing", false, "show why pages travelled between the nodes of the cluster, as with dsmd run")
	flags.StringVar(&o.dashboard, "dashboard", "", "TCP `ADDR`ess of a page that shows what the cluster waits for, as with dsmd run")
	flags.StringVar(&o.dashboardFile, "dashboard-file", "", "`FILE` for the last state of that page, as with dsmd run")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "show the output of dsmd and of all ranks on standard error")
}

func (o *clusterOptions) check(minNodes int) error {
	if o.nodes < minNodes || o.nodes > maxNodes {
		return fmt.Errorf("-n %d: the number of nodes must be %d to %d", o.nodes, minNodes, maxNodes)
	}
	for _, choice := range []struct {
		flag, value string
		values      []string
	}{
		{"--trap", o.trap, []string{"auto", "uffd", "sigsegv"}},
		{"--transport", o.transport, []string{"auto", "tcp", "rdma"}},
	} {
		if !slices.Contains(choice.values, choice.value) {
			return fmt.Errorf("%s %q: use one of %s", choice.flag, choice.value, strings.Join(choice.values, ", "))
		}
	}
	return checkTimeout(o.timeout)
}

// ofOneCluster complains about what is written of one cluster, where there are several: each would
// write over what is there of the one before.
func (o *clusterOptions) ofOneCluster() error {
	for _, x := range []struct{ flag, file string }{{"--profile", o.profile}, {"--trace", o.trace}, {"--dashboard-file", o.dashboardFile}} {
		if x.file != "" {
			return fmt.Errorf("%s %s: this measures several clusters, and it is of one: use bench run", x.flag, x.file)
		}
	}
	return nil
}

// binding is --bind for a machine with so many processors. Nodes that have them to themselves are
// more like machines, if there is one for the daemon and one for a thread that computes.
func (o *clusterOptions) binding(processors int) string {
	if o.bind == "" && o.nodes > 1 && processors >= 2*o.nodes {
		return "core"
	}
	return o.bind
}

// errTimeout is the cause of a context that --timeout has ended.
var errTimeout = errors.New("timed out")

// crew is how a cluster of these options runs the given worker.
func (o *clusterOptions) crew(w workplace, worker ...string) (crew.Options, error) {
	self, err := os.Executable()
	if err != nil {
		return crew.Options{}, fmt.Errorf("finding this executable: %w", err)
	}
	options := crew.Options{
		Dsmd: w.dsmd, Nodes: o.nodes, Trap: o.trap, Transport: o.transport,
		Worker: append([]string{self, workerName}, worker...),
		Dir:    w.dir,
	}
	for _, flag := range [][2]string{
		{"--memory", o.memory}, {"--spill", o.spill}, {"--predict", o.predict}, {"--bind", o.binding(runtime.NumCPU())}, {"--priority", o.priority},
		{"--emulate-latency", o.network.latency}, {"--emulate-bandwidth", o.network.bandwidth},
		{"--profile", o.profile}, {"--trace", o.trace}, {"--dashboard", o.dashboard}, {"--dashboard-file", o.dashboardFile},
	} {
		if flag[1] != "" {
			options.Flags = append(options.Flags, flag[:]...)
		}
	}
	if o.stats {
		options.Flags = append(options.Flags, "--stats")
	}
	if o.sharing {
		options.Flags = append(options.Flags, "--sharing")
	}
	if o.verbose || o.stats || o.sharing || o.profile != "" || o.trace != "" || o.dashboard != "" || o.dashboardFile != "" {
		options.Echo = os.Stderr
	}
	return options, nil
}

// publish writes table to standard output and value as JSON to a file, if there is one; with - for
// the file, value alone goes to standard output.
func publish(stdout io.Writer, file, table string, value any) error {
	if file != "-" {
		if _, err := io.WriteString(stdout, table); err != nil {
			return fmt.Errorf("writing the table: %w", err)
		}
	}
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	text = append(text, '\n')
	if file == "-" {
		_, err = stdout.Write(text)
	} else {
		err = os.WriteFile(file, text, 0o666)
	}
	if err != nil {
		return fmt.Errorf("writing the result as JSON: %w", err)
	}
	return nil
}
