package model

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmd/protocol"
)

// MaxThreads bounds the threads of one node: sets of them are bits of one word.
const MaxThreads = 64

// ThreadSpec is one thread of a cluster.
type ThreadSpec struct {
	Node    protocol.NodeID
	Client  protocol.ClientID // not 0; unique on its node only
	Program Program
}

// does reports whether the thread's program has an operation of a kind.
func (t *ThreadSpec) does(kind OpKind) bool {
	return slices.ContainsFunc(t.Program, func(op Op) bool { return op.Kind == kind })
}

// Moves is which nodes of a cluster may be lost, leave or come.
type Moves struct {
	// Crash are the nodes of which each may be lost at any time, with all that is on it; the others
	// then learn, one by one, that it is. All pages are memory that every node has bound.
	Crash []protocol.NodeID
	// Anew are the nodes whose hosts have something that lost pages can begin with: a page that
	// threads of theirs want begins anew, as if nobody had touched it. It needs Crash.
	Anew []protocol.NodeID
	// Cut are the nodes that the others may take for lost at any time, all at once, and that live
	// on: see minority.go.
	Cut []protocol.NodeID
	// Return: they may come back when they have ended, as nodes that know nothing.
	Return bool
	// Heal: instead, each of them loses its quorum once and finds it again, and the others never go
	// on without it.
	Heal bool
	// Leave are the nodes of which each may leave when its threads are done: it is a home no
	// longer, and when all that it alone had is handed over, it is gone, and nothing with it.
	Leave []protocol.NodeID
	// Join are the nodes that are not there at first and of which each may come. Its threads begin
	// then.
	Join []protocol.NodeID
}

// Config describes a cluster of nodes and what its threads do. It is read-only once New has been
// called.
type Config struct {
	Nodes int
	// Pages and HomeStripe are those of protocol.Config, in pages.
	Pages, HomeStripe uint64
	// Hold and MaxHold are those of protocol.Config, in microseconds.
	Hold, MaxHold protocol.Time
	// Crowd is that of protocol.Config.
	ContentionThreshold int
	// TreeFrom and TreeArity are those of protocol.Config.
	TreeFrom, TreeArity int
	// ManyReaders is that of protocol.Config.
	ManyReaders int
	// ExactNodes, Pointers and GroupNodes are those of protocol.Config.
	ExactNodes, Pointers, GroupNodes int
	// Duplicates is how often each fault may be reported again while its thread waits, and
	// how often an access may fault although the page table allows it.
	Duplicates uint8
	// Strays: what is left of Duplicates may be spent while the thread does its next operation, as
	// by a fault that sat in the kernel's queue until after it was resolved.
	Strays bool
	// Fused: the page table changes and the engine hears of it in one action.
	Fused bool
	// CheckEvery is how many actions a node's engine does before it checks all that it knows; 0:
	// one.
	CheckEvery int
	// Late: a message that takes a page away from a node where the hold has served its purpose
	// arrives after the time of the hold. Without Late it arrives at once, so that the engine
	// always waits for an EventHoldOver.
	Late    bool
	Plant   Plant
	Threads []ThreadSpec
	// Before are threads, by their places in Threads. A cluster begins where each of them has done
	// its next operation, one after another, and all that follows has happened. Explorers need it
	// that look at what comes late.
	Before []int
	Moves
	// Prompt: in the explorer, nodes enter views, and messages of recoveries arrive, before
	// anything else happens, and in one order only. It is for clusters whose recoveries have too
	// many states, and of which something else is asked.
	Prompt bool
	// Replicas is how many lost nodes that memory survives: protocol.NameCall.Replicas. It needs
	// Crash.
	Replicas uint8
	Sync
	// Spaces: each program has page-table entries of its own, and access is taken away step by
	// step; see spaces.go.
	Spaces bool
}

// Sync is how programs use locks and barriers.
type Sync struct {
	// Words: locks that nobody else wants are published on control pages, where threads take them
	// and give them back without a call.
	Words bool
	// Folded: what threads bring to barriers is added up, byte by byte.
	Folded bool
}

// Changes reports whether memberships may change.
func (c *Config) Changes() bool { return len(c.Crash)+len(c.Cut)+len(c.Leave)+len(c.Join) > 0 }

// canBeLost reports whether a node may be lost, or seem to be.
func (c *Config) canBeLost(n protocol.NodeID) bool {
	return slices.Contains(c.Crash, n) || slices.Contains(c.Cut, n)
}

// Engine is the configuration of the engine of one node.
func (c *Config) Engine(self protocol.NodeID) protocol.Config {
	return protocol.Config{
		Self: self, Nodes: c.Nodes, Pages: c.Pages, HomeStripe: c.HomeStripe, Hold: c.Hold, MaxHold: c.MaxHold, ContentionThreshold: c.ContentionThreshold,
		TreeFrom: c.TreeFrom, TreeArity: c.TreeArity, ManyReaders: c.ManyReaders, ExactNodes: c.ExactNodes, Pointers: c.Pointers, GroupNodes: c.GroupNodes,
	}
}

// Objects are all pages that the programs touch, in ascending order.
func (c *Config) Objects() []protocol.ObjectID {
	var all []protocol.ObjectID
	for _, t := range c.Threads {
		for _, op := range t.Program {
			if o := op.Object(); !o.IsLock() {
				all = append(all, o)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// touches reports whether some program of a node has to do with a page.
func (c *Config) touches(n protocol.NodeID, o protocol.ObjectID) bool {
	return slices.ContainsFunc(c.Threads, func(t ThreadSpec) bool {
		return t.Node == n && slices.ContainsFunc(t.Program, func(op Op) bool { return op.Object() == o })
	})
}

// allObjects are all pages and locks that the programs use, in ascending order.
func (c *Config) allObjects() []protocol.ObjectID {
	all := c.Objects()
	for _, t := range c.Threads {
		for _, op := range t.Program {
			if op.takesLock() {
				all = append(all, op.Object())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// parties are the indexes of the threads that take part in a barrier, in order of rank.
func (c *Config) parties(number uint64) []int {
	var all []int
	for i, t := range c.Threads {
		if slices.ContainsFunc(t.Program, func(op Op) bool { return op.Kind == OpBarrier && op.Number == number }) {
			all = append(all, i)
		}
	}
	return all
}

// option is a setting that String leaves out if it is false.
type option struct {
	key string
	set *bool
}

func (c *Config) options() []option {
	return []option{{"return", &c.Return}, {"heal", &c.Heal}, {"prompt", &c.Prompt}, {"words", &c.Words}, {"spaces", &c.Spaces}, {"folded", &c.Folded}}
}

// String is the form that ParseConfig reads.
func (c *Config) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nodes %d\npages %d\nstripe %d\nhold %d\nmaxhold %d\n", c.Nodes, c.Pages, c.HomeStripe, c.Hold, c.MaxHold)
	fmt.Fprintf(&b, "duplicates %d\nstrays %t\nfused %t\nlate %t\nplant %v\n", c.Duplicates, c.Strays, c.Fused, c.Late, c.Plant)
	if c.ContentionThreshold != 0 {
		fmt.Fprintf(&b, "contention-threshold %d\n", c.ContentionThreshold)
	}
	if c.TreeFrom != 0 || c.TreeArity != 0 {
		fmt.Fprintf(&b, "tree %d %d\n", c.TreeFrom, c.TreeArity)
	}
	if c.ManyReaders != 0 {
		fmt.Fprintf(&b, "many-readers %d\n", c.ManyReaders)
	}
	if c.CheckEvery != 0 {
		fmt.Fprintf(&b, "check-every %d\n", c.CheckEvery)
	}
	if c.ExactNodes != 0 || c.Pointers != 0 || c.GroupNodes != 0 {
		fmt.Fprintf(&b, "copysets %d %d %d\n", c.ExactNodes, c.Pointers, c.GroupNodes)
	}
	for _, list := range []struct {
		key   string
		nodes []protocol.NodeID
	}{{"crash", c.Crash}, {"anew", c.Anew}, {"cut", c.Cut}, {"leave", c.Leave}, {"join", c.Join}} {
		if len(list.nodes) > 0 {
			fmt.Fprintf(&b, "%s %s\n", list.key, strings.Trim(fmt.Sprint(list.nodes), "[]"))
		}
	}
	if c.Replicas > 0 {
		fmt.Fprintf(&b, "replicas %d\n", c.Replicas)
	}
	for _, o := range c.options() {
		if *o.set {
			fmt.Fprintf(&b, "%s true\n", o.key)
		}
	}
	for _, t := range c.Threads {
		fmt.Fprintf(&b, "thread %d %d: %v\n", t.Node, t.Client, t.Program)
	}
	if len(c.Before) > 0 {
		fmt.Fprintf(&b, "before %s\n", strings.Trim(fmt.Sprint(c.Before), "[]"))
	}
	return b.String()
}

// ParseConfig reads what String wrote. Empty lines and lines that begin with # are skipped; a value
// that is not given is zero. Errors wrap ErrSyntax and name the line.
func ParseConfig(text string) (*Config, error) {
	c := &Config{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := c.parseLine(line); err != nil {
			return nil, fmt.Errorf("%w: line %d, %q: %w", ErrSyntax, i+1, line, err)
		}
	}
	return c, c.validate()
}

func (c *Config) parseLine(line string) error {
	key, value, _ := strings.Cut(line, " ")
	flags := map[string]*bool{"strays": &c.Strays, "fused": &c.Fused, "late": &c.Late}
	for _, o := range c.options() {
		flags[o.key] = o.set
	}
	nodes := map[string]*[]protocol.NodeID{"crash": &c.Crash, "anew": &c.Anew, "cut": &c.Cut, "leave": &c.Leave, "join": &c.Join}
	small := map[string]*uint8{"duplicates": &c.Duplicates, "replicas": &c.Replicas}
	times := map[string]*protocol.Time{"hold": &c.Hold, "maxhold": &c.MaxHold}
	var err error
	switch {
	case flags[key] != nil:
		*flags[key], err = strconv.ParseBool(value)
	case nodes[key] != nil:
		*nodes[key], err = parseNodes(value)
	case small[key] != nil:
		var n uint64
		n, err = strconv.ParseUint(value, 10, 8)
		*small[key] = uint8(n)
	case times[key] != nil:
		err = parseTime(value, times[key])
	default:
		err = c.parseRest(key, value)
	}
	return err
}

// parseRest reads a setting of a kind of its own.
func (c *Config) parseRest(key, value string) (err error) {
	switch key {
	case "nodes":
		c.Nodes, err = strconv.Atoi(value)
	case "pages":
		c.Pages, err = strconv.ParseUint(value, 10, 63)
	case "stripe":
		c.HomeStripe, err = strconv.ParseUint(value, 10, 63)
	case "contention-threshold":
		c.ContentionThreshold, err = strconv.Atoi(value)
	case "tree":
		_, err = fmt.Sscanf(value, "%d %d", &c.TreeFrom, &c.TreeArity)
	case "many-readers":
		c.ManyReaders, err = strconv.Atoi(value)
	case "check-every":
		c.CheckEvery, err = strconv.Atoi(value)
	case "copysets":
		_, err = fmt.Sscanf(value, "%d %d %d", &c.ExactNodes, &c.Pointers, &c.GroupNodes)
	case "plant":
		c.Plant, err = ParsePlant(value)
	case "thread":
		err = c.parseThread(value)
	case "before":
		err = c.parseBefore(value)
	default:
		err = fmt.Errorf("%q is no setting", key)
	}
	return err
}

// evicts reports whether nodes run out of room.
func (c *Config) evicts() bool { return c.does(OpEvict) }

// binds reports whether programs bind memory.
func (c *Config) binds() bool { return c.does(OpBind) }

// bindsOn reports whether some program of a node binds memory.
func (c *Config) bindsOn(n protocol.NodeID) bool {
	return slices.ContainsFunc(c.Threads, func(t ThreadSpec) bool { return t.Node == n && t.does(OpBind) })
}

// does reports whether some program has an operation of a kind.
func (c *Config) does(kind OpKind) bool {
	return slices.ContainsFunc(c.Threads, func(t ThreadSpec) bool { return t.does(kind) })
}

func parseNodes(value string) (nodes []protocol.NodeID, err error) {
	for _, word := range strings.Fields(value) {
		n, bad := strconv.ParseUint(word, 10, 16)
		nodes, err = append(nodes, protocol.NodeID(n)), errors.Join(err, bad)
	}
	return nodes, err
}

func parseTime(s string, t *protocol.Time) error {
	n, err := strconv.ParseUint(s, 10, 32)
	*t = protocol.Time(n)
	return err
}

func (c *Config) parseThread(value string) error {
	where, program, ok := strings.Cut(value, ":")
	words := strings.Fields(where)
	if !ok || len(words) != 2 {
		return fmt.Errorf(`want "thread NODE CLIENT: PROGRAM"`)
	}
	node, err := strconv.ParseUint(words[0], 10, 16)
	if err != nil {
		return err
	}
	client, err := strconv.ParseUint(words[1], 10, 32)
	if err != nil {
		return err
	}
	p, err := ParseProgram(program)
	c.Threads = append(c.Threads, ThreadSpec{Node: protocol.NodeID(node), Client: protocol.ClientID(client), Program: p})
	return err
}

// validate says what is wrong with a configuration.
func (c *Config) validate() error {
	if c.Nodes < 1 || c.Nodes > protocol.MaxNodes || c.Pages < 1 || c.HomeStripe < 1 || c.ContentionThreshold < 0 {
		return fmt.Errorf("%w: %d nodes, %d pages, stripe %d, contention threshold %d: want 1 to %d nodes, at least one page in region and stripe, and no threshold below 0",
			ErrSyntax, c.Nodes, c.Pages, c.HomeStripe, c.ContentionThreshold, protocol.MaxNodes)
	}
	rules := c.Engine(0)
	if err := rules.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	for _, changing := range [][]protocol.NodeID{slices.Concat(c.Crash, c.Leave), slices.Clone(c.Join)} {
		slices.Sort(changing)
		if changing = slices.Compact(changing); len(changing) > 0 && (int(changing[len(changing)-1]) >= c.Nodes || len(changing) >= c.Nodes) {
			return fmt.Errorf("%w: nodes %v may crash or leave, or join: at least one of %d has to remain, and one to be there at first", ErrSyntax, changing, c.Nodes)
		}
	}
	changing := slices.Concat(c.Crash, c.Leave, c.Join)
	if slices.ContainsFunc(c.Cut, func(n protocol.NodeID) bool { return int(n) >= c.Nodes || slices.Contains(changing, n) }) || len(c.Cut) >= c.Nodes || len(c.Cut) > 0 && c.Replicas > 0 {
		return fmt.Errorf("%w: nodes %v may be cut off, of %d, of which %v may change: others, and without replicated memory", ErrSyntax, c.Cut, c.Nodes, changing)
	}
	if c.Heal && (len(c.Cut) == 0 || len(changing) > 0 || c.Return || c.binds()) {
		return fmt.Errorf("%w: nodes %v find a quorum again: some have to be named as cut off, none may change or return, and no memory is bound", ErrSyntax, c.Cut)
	}
	if slices.Contains(c.Join, 0) {
		return fmt.Errorf("%w: node 0 may join: it has bound all memory before", ErrSyntax)
	}
	if c.Replicas > protocol.MaxReplicas || c.Replicas > 0 && len(c.Crash) == 0 {
		return fmt.Errorf("%w: memory that survives the loss of %d nodes, while the nodes %v may crash: at most %d, and of some", ErrSyntax, c.Replicas, c.Crash, protocol.MaxReplicas)
	}
	if len(c.Anew) > 0 && (len(c.Crash) == 0 || len(c.Cut) > 0 || slices.ContainsFunc(c.Anew, func(n protocol.NodeID) bool { return int(n) >= c.Nodes })) {
		return fmt.Errorf("%w: pages begin anew on the nodes %v, of %d, of which %v may crash: some, and none may be cut off", ErrSyntax, c.Anew, c.Nodes, c.Crash)
	}
	count := map[protocol.NodeID]int{}
	for i, t := range c.Threads {
		count[t.Node]++
		if int(t.Node) >= c.Nodes || t.Client == 0 || count[t.Node] > MaxThreads {
			return fmt.Errorf("%w: thread %d is number %d of client %d on node %d: nodes go from 0 to %d, clients from 1, and a node has %d threads at most",
				ErrSyntax, i, count[t.Node], t.Client, t.Node, c.Nodes-1, MaxThreads)
		}
		for _, op := range t.Program {
			if op.Kind == OpExpel && !c.Spaces {
				return fmt.Errorf("%w: thread %d: %v needs spaces", ErrSyntax, i, op)
			}
			if o := op.Object(); !o.IsLock() && o.Page() >= c.Pages {
				return fmt.Errorf("%w: thread %d: %v is beyond the %d pages of the region", ErrSyntax, i, op, c.Pages)
			}
		}
	}
	return c.validateBefore()
}
