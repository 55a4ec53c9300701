package membership

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	patient "dsmd/internal/patience"
	"dsmd/internal/systemtest/loopback"
)

func TestMain(m *testing.M) {
	patient.Beside(4)
	os.Exit(m.Run())
}

// patience bounds every wait; nothing takes nearly as long.
var patience = patient.Or(45 * time.Second)

// deadAfter is the Config.DeadAfter of clusters here: longer where everything may take longer, as
// nodes that get no processor for so long are dead to the others.
var deadAfter = max(MinDeadAfter, patience/30)

// lan is a network on loopback: every node has an address of its own, and all gossip at one port.
type lan struct{ prefix string }

func newLAN() lan {
	return lan{loopback.Network()}
}

func (l lan) ip(i int) string     { return fmt.Sprintf("%s%d", l.prefix, i+1) }
func (l lan) gossip(i int) string { return net.JoinHostPort(l.ip(i), "7401") }

// config is that of node i of a cluster of so many, which knows where node 0 is.
func (l lan) config(i, nodes int) Config {
	return Config{
		Cluster: "test", Nodes: nodes, ID: Auto, Data: net.JoinHostPort(l.ip(i), "7400"), Transports: []string{"tcp"},
		Agree: []Agreement{{"protocol version", "1"}, {"page size", "4KiB"}, {"region", "64GiB"}},
		Bind:  l.gossip(i), Join: []string{l.gossip(0)}, Timeout: patience, DeadAfter: deadAfter,
	}
}

// attempt is a Form that may still be under way.
type attempt struct {
	group *Group
	err   error
	done  chan struct{}
	logs  *observer.ObservedLogs
}

func begin(t *testing.T, cfg Config) *attempt {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	cfg.Log = zap.New(core)
	a := &attempt{done: make(chan struct{}), logs: logs}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(a.done)
		a.group, a.err = Form(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		<-a.done
		if a.group != nil {
			a.group.Leave(nil)
		}
		if t.Failed() {
			for _, e := range logs.All() {
				t.Logf("%s: %v %s %v", cfg.Data, e.Level, e.Message, e.ContextMap())
			}
		}
	})
	return a
}

func (a *attempt) formed(t *testing.T) *Group {
	t.Helper()
	<-a.done
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.group
}

// refused waits for the end of an attempt that must be refused, and returns the reason.
func (a *attempt) refused(t *testing.T) string {
	t.Helper()
	<-a.done
	if !errors.Is(a.err, ErrRefused) {
		t.Fatalf("it ended with %v instead of being refused", a.err)
	}
	return a.err.Error()
}

// said waits until a line of the log has the text, in its message or its fields.
func (a *attempt) said(t *testing.T, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the log says %q", text), func() bool {
		return slices.ContainsFunc(a.logs.All(), func(e observer.LoggedEntry) bool {
			return e.Level > zapcore.DebugLevel && strings.Contains(fmt.Sprint(e.Message, e.ContextMap()), text)
		})
	})
}

func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: this has not happened within %v", what, patience)
		}
	}
}

// cluster forms a cluster in the given network.
func cluster(t *testing.T, l lan, nodes int, change func(i int, c *Config)) []*attempt {
	t.Helper()
	var all []*attempt
	for i := range nodes {
		c := l.config(i, nodes)
		if change != nil {
			change(i, &c)
		}
		all = append(all, begin(t, c))
	}
	return all
}

// TestProbing: a probe that is not answered and the suspicion after it take DeadAfter together, as
// exactly as memberlist's whole multiplier allows, and an interval is no shorter or longer than it
// should be.
func TestProbing(t *testing.T) {
	for _, deadAfter := range []time.Duration{MinDeadAfter, 4 * time.Second, 15 * time.Second, time.Minute, time.Hour} {
		for _, nodes := range []int{1, 2, 10, 30, 64, 1024} {
			every, mult := probing(deadAfter, nodes)
			suspected := time.Duration(float64(mult) * max(1, math.Log10(float64(nodes))) * float64(every))
			slack := deadAfter / 100
			if every == leastProbeInterval || every == mostProbeInterval { // mult is rounded
				slack = time.Duration(max(1, math.Log10(float64(nodes)))*float64(every)/2) + slack
			}
			if every < leastProbeInterval || every > mostProbeInterval || mult < 1 {
				t.Errorf("%v, %d nodes: a probe every %v, %d times", deadAfter, nodes, every, mult)
			}
			if got := every + suspected; mult > 1 && (got < deadAfter-slack || got > deadAfter+slack) {
				t.Errorf("%v, %d nodes: dead after %v", deadAfter, nodes, got)
			}
		}
	}
}

// streamsOnly loses every packet, so that only streams carry gossip.
type streamsOnly struct{ *memberlist.NetTransport }

func (streamsOnly) WriteTo([]byte, string) (time.Time, error) { return time.Now(), nil }
func (streamsOnly) WriteToAddress([]byte, memberlist.Address) (time.Time, error) {
	return time.Now(), nil
}

// TestFormWithoutGossip: the node that has to know all others hears of one of them only from a
// third, and all that is gossiped is lost. memberlist would tell it after half a minute; the
// cluster is complete long before.
func TestFormWithoutGossip(t *testing.T) {
	t.Parallel()
	l := newLAN()
	config := func(i int) Config {
		c := l.config(i, 3)
		c.Join = []string{l.gossip(2)}
		c.transport = func(c *memberlist.Config) (memberlist.Transport, error) {
			plain, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{c.BindAddr}, BindPort: c.BindPort, Logger: c.Logger})
			return streamsOnly{plain}, err
		}
		return c
	}
	author := begin(t, config(0))
	author.said(t, "gossiping")
	known := begin(t, config(2))
	author.said(t, "node found")
	start := time.Now()
	for _, a := range []*attempt{begin(t, config(1)), author, known} {
		a.formed(t)
	}
	if took := time.Since(start); took > memberlist.DefaultLANConfig().PushPullInterval/2 {
		t.Errorf("it took %v", took)
	}
}

// TestForm: nodes that find each other have one table, in the order of their addresses; when all
// are started anew it is the same order again.
func TestForm(t *testing.T) {
	t.Parallel()
	l := newLAN()
	var digests []string
	for round := range 2 {
		all := cluster(t, l, 5, nil)
		for i, a := range all {
			g := a.formed(t)
			table := g.Table()
			if g.Self() != i || len(table.Nodes) != 5 || table.Digest() != all[0].formed(t).Table().Digest() {
				t.Fatalf("round %d: node %d has id %d and table %v", round, i, g.Self(), table)
			}
			for id, n := range table.Nodes {
				if n.ID != id || n.Data != net.JoinHostPort(l.ip(id), "7400") {
					t.Errorf("round %d: node %d knows node %d as %+v", round, i, id, n)
				}
			}
		}
		digests = append(digests, all[0].group.Table().Digest())
		for _, a := range all {
			a.group.Leave(nil)
			a.group.Leave(nil) // does nothing
		}
	}
	if digests[0] == digests[1] {
		t.Error("two runs have the same digest")
	}
}

// TestFormAlone: a cluster of one node needs nobody.
func TestFormAlone(t *testing.T) {
	c := newLAN().config(0, 1)
	c.Join = nil
	if g := begin(t, c).formed(t); g.Self() != 0 {
		t.Error(g.Self())
	}
}

// TestFixedIDs: some nodes know their number, the others get what is left.
func TestFixedIDs(t *testing.T) {
	t.Parallel()
	all := cluster(t, newLAN(), 3, func(i int, c *Config) {
		if i == 0 {
			c.ID = 2
		}
	})
	for i, want := range []int{2, 0, 1} {
		if got := all[i].formed(t).Self(); got != want {
			t.Errorf("node %d has id %d, want %d", i, got, want)
		}
	}
}

// TestNameWithSeveralAddresses: the nodes are told one name. It does not resolve at first, then to
// a part of them, and then to all.
func TestNameWithSeveralAddresses(t *testing.T) {
	t.Parallel()
	l := newLAN()
	var again atomic.Int64 // nodes that have asked twice, and so have logged the first answer
	all := cluster(t, l, 3, func(_ int, c *Config) {
		c.Join = []string{"nodes.test:7401"}
		asked, found := 0, false
		c.Resolve = func(_ context.Context, host string) ([]string, error) {
			if host != "nodes.test" {
				return nil, fmt.Errorf("asked for %q", host)
			}
			if asked++; asked == 2 {
				again.Add(1)
			}
			switch {
			case again.Load() < 3:
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			case !found:
				found = true
				return []string{l.ip(2)}, nil
			}
			return []string{l.ip(2), l.ip(0), l.ip(1)}, nil
		}
	})
	for _, a := range all {
		a.formed(t)
	}
	all[0].said(t, "no such host")
}

var keyA, keyB = []byte("0123456789abcdef0123456789abcdef"), []byte("fedcba9876543210")

// TestStrangersAreRefused: a node that differs in anything that matters is refused by a cluster
// that is complete, and by one that waits for its last node; it and the others say what differs.
func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	encrypted := func(c *Config) { c.Keys = [][]byte{keyA} }
	for _, test := range []struct {
		name         string
		base, change func(*Config)
		here, there  string // what the stranger says, and the others
	}{
		{"cluster", nil, func(c *Config) { c.Cluster = "other" }, `it belongs to cluster "test", this node to "other"`, `it belongs to cluster "other", this node to "test"`},
		{"version", nil, func(c *Config) { c.Agree[0].Value = "2" }, "its protocol version is 1, this node's is 2", "its protocol version is 2, this node's is 1"},
		{"page size", nil, func(c *Config) { c.Agree[1].Value = "64KiB" }, "its page size is 4KiB, this node's is 64KiB", "its page size is 64KiB, this node's is 4KiB"},
		{"region", nil, func(c *Config) { c.Agree[2].Value = "1GiB" }, "its region is 64GiB, this node's is 1GiB", "its region is 1GiB, this node's is 64GiB"},
		{"key", encrypted, func(c *Config) { c.Keys = [][]byte{keyB} }, keyDiffers, keyDiffers},
		{"no key", encrypted, func(c *Config) { c.Keys = nil }, keyDiffers, keyDiffers},
		{"key where none is", nil, encrypted, keyDiffers, keyDiffers},
		{"one too many", nil, func(*Config) {}, "is complete with 2 nodes, and this node at", "is complete with 2 nodes, of which it is none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLAN()
			stranger := func(i int) Config {
				c := l.config(i, 2)
				if test.base != nil {
					test.base(&c)
				}
				test.change(&c)
				return c
			}
			all := cluster(t, l, 1, func(_ int, c *Config) {
				c.Nodes = 2
				if test.base != nil {
					test.base(c)
				}
			})
			check := func(i int) {
				s := begin(t, stranger(i))
				if why := s.refused(t); !strings.Contains(why, test.here) {
					t.Errorf("the stranger says %q, want %q", why, test.here)
				}
				all[0].said(t, test.there)
			}
			if test.name != "one too many" {
				all[0].said(t, "gossiping")
				check(5) // before the cluster is complete
			}
			last := l.config(1, 2)
			if test.base != nil {
				test.base(&last)
			}
			all = append(all, begin(t, last))
			for _, a := range all {
				a.formed(t)
			}
			check(6)
			for _, a := range all {
				if n := len(a.group.Table().Nodes); n != 2 || a.group.alive() != 2 {
					t.Errorf("%d nodes are in the table, and %v known", n, a.group.alive())
				}
			}
		})
	}
}

// TestTooManyAtOnce: of three nodes that start together and are to be two, the one that is left
// over is refused as soon as the others are complete; it does not wait for its time to join.
func TestTooManyAtOnce(t *testing.T) {
	t.Parallel()
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			refused := 0
			for _, a := range cluster(t, newLAN(), 3, func(_ int, c *Config) { c.Nodes = 2 }) {
				<-a.done
				switch {
				case a.err == nil:
				case errors.Is(a.err, ErrRefused) && errors.Is(a.err, ErrComplete):
					refused++
				default:
					t.Error(a.err)
				}
			}
			if refused != 1 {
				t.Errorf("%d nodes were refused, want one", refused)
			}
		})
	}
}

// TestSecondKey: a key can be changed one node after the other, as long as each understands the
// other's.
func TestSecondKey(t *testing.T) {
	t.Parallel()
	for _, a := range cluster(t, newLAN(), 2, func(i int, c *Config) {
		c.Keys = [][][]byte{{keyA, keyB}, {keyB, keyA}}[i]
	}) {
		a.formed(t)
	}
}

// crash ends a node without a word, as the death of its process does.
func (g *Group) crash() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	close(g.closing)
	_ = g.list.Shutdown()
	g.work.Wait()
}

// TestLosses: the death of a node and the departure of another are told apart, by everybody who
// stays, once, and also to those who ask late.
func TestLosses(t *testing.T) {
	t.Parallel()
	registries := make([]*prometheus.Registry, 4)
	all := cluster(t, newLAN(), 4, func(i int, c *Config) {
		registries[i] = prometheus.NewRegistry()
		c.Metrics = registries[i]
	})
	for _, a := range all {
		a.formed(t)
	}
	heard := make(chan Loss, 16)
	all[0].group.Watch(func(l Loss) { heard <- l })
	next := func() Loss {
		select {
		case l := <-heard:
			return l
		case <-time.After(patience):
			t.Fatal("no loss was told")
			return Loss{}
		}
	}
	all[3].group.Leave(nil)
	if l := next(); l.Node.ID != 3 || !l.Left || !strings.Contains(l.Error(), "has left: it was told to end") {
		t.Errorf("%+v: %v", l, l)
	}
	all[2].group.crash()
	if l := next(); l.Node.ID != 2 || l.Left || l.Node.Data != all[2].group.cfg.Data || !strings.Contains(l.Error(), "is dead: it has answered nobody for "+deadAfter.String()) {
		t.Errorf("%+v: %v", l, l)
	}
	// The other one has nobody to tell until now.
	eventually(t, "node 1 has noticed both", func() bool {
		return all[1].logs.FilterMessage("node lost").Len() == 2
	})
	late := make(chan Loss, 16)
	all[1].group.Watch(func(l Loss) { late <- l })
	for range 2 {
		<-late
	}
	all[1].group.Leave(errors.New("the roof\nis on fire"))
	if l := next(); l.Node.ID != 1 || !l.Left || !strings.HasSuffix(l.Error(), "has ended: the roof?is on fire") {
		t.Errorf("%+v: %v", l, l)
	}
	if len(heard) > 0 {
		t.Errorf("%v was told too", <-heard)
	}
	for name, want := range map[string]float64{"deaths_total": 1, "departures_total": 2, "nodes": 1} {
		if got := sum(t, registries[0], name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if suspected := sum(t, registries[0], "suspicions_total"); suspected == 0 && all[1].logs.FilterMessageSnippet("node suspected").Len() == 0 {
		t.Error("nobody has suspected the dead node")
	}
}

// TestRumour: a node that is said to be dead and objects is not lost; one that does not is.
func TestRumour(t *testing.T) {
	t.Parallel()
	all := cluster(t, newLAN(), 3, nil)
	for _, a := range all {
		a.formed(t)
	}
	g := all[0].group
	heard := make(chan Loss, 16)
	g.Watch(func(l Loss) { heard <- l })
	for _, n := range g.list.Members() {
		if n.Name == all[1].group.self.name() {
			gossip{g}.NotifyLeave(n)
			gossip{g}.NotifyJoin(n)
		}
	}
	all[0].said(t, "a node that was said to be dead is there")
	all[2].group.crash()
	select {
	case l := <-heard:
		if l.Node.ID != 2 || l.Left {
			t.Errorf("%+v: %v", l, l)
		}
	case <-time.After(patience):
		t.Fatal("no loss was told")
	}
	if len(heard) > 0 {
		t.Errorf("%v was told too", <-heard)
	}
}

// TestRumourOnly: somebody gossips that a node is dead which is not. When nothing else happens that
// node would hear of it too late by itself. It is asked, objects, and nobody loses it.
func TestRumourOnly(t *testing.T) {
	t.Parallel()
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			all := cluster(t, newLAN(), 2, func(_ int, c *Config) { c.DeadAfter = patience })
			for _, a := range all {
				a.formed(t)
			}
			time.Sleep(newsTime + newsInterval) // they have told each other all that is new
			of := all[1].group.self.name()
			said := memberlistDead(of, all[0].group.self.name())
			to, err := net.Dial("udp", all[0].group.cfg.Bind)
			if err != nil {
				t.Fatal(err)
			}
			defer to.Close()
			if _, err := to.Write(said); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the rumour is over", func() bool {
				return all[0].logs.FilterMessage("a node that was said to be dead is there").Len()+all[0].logs.FilterMessage("node lost").Len() > 0
			})
			if lost := all[0].logs.FilterMessage("node lost").All(); len(lost) > 0 {
				t.Errorf("a node that lives and is reached is lost: %v", lost[0].ContextMap())
			}
		})
	}
}

// memberlistDead is memberlist's packet that says that a node is dead: the kind, and a map as
// MessagePack has it.
func memberlistDead(name, from string) []byte {
	text := func(b []byte, s string) []byte { return append(append(b, 0xda, byte(len(s)>>8), byte(len(s))), s...) }
	b := text([]byte{5, 0x83}, "Incarnation")
	b = append(b, 100) // later than what the node has said of itself
	return text(text(text(text(b, "Node"), name), "From"), from)
}

func sum(t *testing.T, from *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "dsmd_membership_"+name {
			m := f.Metric[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// TestTimeout says who is missing.
func TestTimeout(t *testing.T) {
	t.Parallel()
	l := newLAN()
	c := l.config(0, 3)
	c.Timeout = patience / 9
	c.Join = append(c.Join, l.gossip(7))
	waiting := begin(t, c)
	begin(t, l.config(1, 3))
	<-waiting.done
	if !errors.Is(waiting.err, ErrTimeout) || !strings.Contains(waiting.err.Error(), "2 of 3 nodes are known") {
		t.Error(waiting.err)
	}
	waiting.said(t, l.gossip(7)+" does not answer")
}

// TestWaitIsSaid: a node that waits for others that are not there says so while it waits, and how
// many it knows.
func TestWaitIsSaid(t *testing.T) {
	t.Parallel()
	begin(t, newLAN().config(0, 3)).said(t, "1 of 3 nodes are known")
}

// TestEnded: a context that ends ends the wait.
func TestEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Form(ctx, newLAN().config(0, 2)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestReach: what others are told is what was said, or where this node listens, or the address that
// leads to the others.
func TestReach(t *testing.T) {
	at := func(s string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, test := range []struct {
		advertise, listen string
		want              Reachable
	}{
		{"", "127.0.0.5:7", Reachable{"127.0.0.5:7", "127.0.0.5"}},
		{"10.1.2.3", "0.0.0.0:7", Reachable{"10.1.2.3:7", "10.1.2.3"}},
		{"10.1.2.3:9", "127.0.0.5:7", Reachable{"10.1.2.3:9", "10.1.2.3"}},
		{"", "0.0.0.0:7", Reachable{"127.0.0.1:7", "127.0.0.1"}},
		{"localhost:9", ":7", Reachable{"localhost:9", "127.0.0.1"}},
	} {
		got, err := Reach(t.Context(), test.advertise, at(test.listen), []string{"127.0.0.1:7401"})
		if got.IP == "::1" {
			got.IP = "127.0.0.1" // localhost is what it is
		}
		if err != nil || got != test.want {
			t.Errorf("%+v: %+v, %v", test, got, err)
		}
	}
	if _, err := Reach(t.Context(), "", at("0.0.0.0:7"), nil); err == nil || !strings.Contains(err.Error(), "--advertise") {
		t.Error(err)
	}
}
