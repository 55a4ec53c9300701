package node

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport/emulated"

	"github.com/prometheus/client_golang/prometheus"
)

// open is how many descriptors and goroutines this process has, once the garbage of earlier tests
// is gone.
func open(t testing.TB) (descriptors, goroutines int) {
	t.Helper()
	same := 0
	eventually(t, "this process comes to rest", func() bool {
		runtime.GC() // networks in memory close their descriptors when they are collected
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		if d, g := len(list), runtime.NumGoroutine(); d == descriptors && g == goroutines {
			same++
		} else {
			descriptors, goroutines, same = d, g, 0
		}
		return same == 20
	})
	return descriptors, goroutines
}

// leavesNothing checks that f closes all descriptors that it opens and ends all goroutines that it
// starts.
func leavesNothing(t *testing.T, f func()) {
	t.Helper()
	descriptors, goroutines := open(t)
	f()
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if d, g := open(t); d > descriptors || g > goroutines {
		t.Errorf("%d descriptors and %d goroutines are open; before there were %d and %d", d, g, descriptors, goroutines)
	}
}

// real is a configuration of a node over TCP.
func real(t *testing.T, self int, peers []string) (Config, net.Listener) {
	t.Helper()
	socket, _ := listen(t)
	cfg := testConfig(self, len(peers), len(peers), socket)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener, cfg.Peers = l, peers
	return cfg, l
}

// TestEnd: nodes over TCP end when their context does, with everything closed.
func TestEnd(t *testing.T) { testEnd(t, emulated.Link{}, "tcp") }

// TestEndEmulated: the same on a network that is slower.
func TestEndEmulated(t *testing.T) {
	testEnd(t, emulated.Link{Latency: time.Millisecond, Bandwidth: 1e9}, "tcp (emulated network)")
}

func testEnd(t *testing.T, link emulated.Link, name string) {
	leavesNothing(t, func() {
		peers := make([]string, 2)
		var nodes []*Node
		var configs []Config
		for i := range peers {
			cfg, l := real(t, i, peers)
			peers[i] = l.Addr().String()
			cfg.Network.Emulated = link
			configs = append(configs, cfg)
		}
		for _, cfg := range configs {
			n, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if n.net.name() != name {
				t.Errorf("peers are reached by %q, want %q", n.net.name(), name)
			}
			nodes = append(nodes, n)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		for _, n := range nodes {
			go func() { ended <- n.Run(ctx) }()
		}
		for _, n := range nodes {
			eventually(t, "the node serves", func() bool { return n.meter.count.sleeps.Load() > 0 })
		}
		cancel()
		for range nodes {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestEndIsExplained: nodes that end because of another one tell why to those that have not noticed
// that one's end, and so does one that was told to end. Whoever ends because of them names the
// cause.
func TestEndIsExplained(t *testing.T) {
	for _, test := range []struct {
		what string
		end  func(one *Node, stop context.CancelFunc)
		want []string
	}{
		{"it has lost another", func(one *Node, _ context.CancelFunc) { one.PeerFailed(2, errors.New("node 2 is\non fire")) },
			[]string{": it has ended: ", "node 2 is; on fire (no program"}},
		{"it was told to", func(_ *Node, stop context.CancelFunc) { stop() }, []string{"node 1: it has ended: it was told to"}},
	} {
		peers := make([]string, 3)
		var configs []Config
		for i := range peers {
			cfg, l := real(t, i, peers)
			peers[i] = l.Addr().String()
			configs = append(configs, cfg)
		}
		ended, stops, nodes := make(chan error, 3), make([]context.CancelFunc, 3), make([]*Node, 3)
		for i, cfg := range configs {
			n, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			n.end.farewell = 0
			ctx, stop := context.WithCancel(t.Context())
			nodes[i], stops[i] = n, stop
			defer stop()
			go func() {
				if err := n.Run(ctx); i == 0 {
					ended <- err
				}
			}()
		}
		eventually(t, "node 1 serves", func() bool { return nodes[1].meter.count.sleeps.Load() > 0 })
		test.end(nodes[1], stops[1])
		err := <-ended
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: node 0 has ended with %v, want %q in it", test.what, err, want)
			}
		}
	}
}

// TestEndWithoutPeers: a node whose peers never come up ends just the same.
func TestEndWithoutPeers(t *testing.T) {
	leavesNothing(t, func() {
		cfg, l := real(t, 0, []string{"", "127.0.0.1:1"})
		cfg.Peers[0] = l.Addr().String()
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if err := n.Run(ctx); err != nil {
			t.Errorf("a node that was told to end while it waited for its peers ended with %v", err)
		}
		if _, err := net.Dial("unix", cfg.Socket.Addr().String()); err == nil {
			t.Error("programs can still connect")
		}
	})
}

// TestEndWithPrograms: the programs find their connections closed.
func TestEndWithPrograms(t *testing.T) {
	leavesNothing(t, func() {
		c := start(t, setup{nodes: 1, ranks: 2})
		attached, silent := c.members[0].join(), c.members[0].dial()
		attached.acquire(1, 2)
		c.stop()
		if err := c.members[0].err; err != nil {
			t.Error(err)
		}
		<-attached.ended
		closedBy(t, silent)
		attached.conn.Close()
		silent.Close()
		*c = cluster{} // its network's descriptor is closed when it is collected
	})
}

// TestEndAtOnce: the end comes at any moment of the beginning.
func TestEndAtOnce(t *testing.T) {
	leavesNothing(t, func() {
		for i := range 50 {
			c := start(t, setup{nodes: 2})
			for range i {
				runtime.Gosched()
			}
			c.stop()
			for _, m := range c.members {
				if m.err != nil {
					t.Error(m.err)
				}
			}
			*c = cluster{}
		}
	})
}

// TestBadConfig: what can not be is refused with a reason, and New closes what it was given.
func TestBadConfig(t *testing.T) {
	leavesNothing(t, func() {
		for reason, change := range map[string]func(*Config){
			"a cluster of 0 nodes":       func(c *Config) { c.Nodes = 0 },
			"a cluster of 1025 nodes":    func(c *Config) { c.Nodes = protocol.MaxNodes + 1 },
			"id 1 in a cluster of 1":     func(c *Config) { c.Self = 1 },
			"0 peer addresses":           func(c *Config) { c.Peers = nil },
			"a job of 0 programs":        func(c *Config) { c.Ranks = 0 },
			"a region of 1 bytes":        func(c *Config) { c.RegionBytes = 1 },
			"a region of 17592186048512": func(c *Config) { c.RegionBytes = MaxRegionBytes + 4096 },
			"at 0x7":                     func(c *Config) { c.RegionBase = 7 },
			"at 0xfffffffffffff000":      func(c *Config) { c.RegionBase = 1<<64 - 4096 },
			"trap back end \"x\"":        func(c *Config) { c.Trap = "x" },
			"transport \"x\"":            func(c *Config) { c.Network.Transport = "x" },
			"a latency of 2s":            func(c *Config) { c.Network.Emulated.Latency = 2 * time.Second },
			"a bandwidth of 7 bits":      func(c *Config) { c.Network.Emulated.Bandwidth = 7 },
			"a hold window of 1s":        func(c *Config) { c.Hold = time.Second },
			"a hold window of 1ns":       func(c *Config) { c.Hold = 1 },
			"register metrics":           func(c *Config) { c.Metrics = full{} },
			"listen":                     func(c *Config) { c.Listener, c.Nodes, c.Peers = nil, 2, []string{"127.0.0.1:1", "127.0.0.1:2"} },
		} {
			cfg, l := real(t, 0, []string{"127.0.0.1:1"})
			change(&cfg)
			if cfg.Listener == nil {
				l.Close()
			}
			n, err := New(cfg)
			if n != nil || err == nil || !strings.Contains(strings.ToLower(err.Error()), reason) {
				t.Errorf("New: %v, want an error about %q", err, reason)
			}
		}
		cfg, _ := real(t, 0, []string{"127.0.0.1:1"})
		cfg.Socket.Close()
		cfg.Socket = nil
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "no socket") {
			t.Errorf("New without a socket: %v", err)
		}
	})
}

var errFull = errors.New("full")

// full is a registry that takes nothing.
type full struct{ prometheus.Registerer }

func (full) Register(prometheus.Collector) error { return errFull }

// faulty is a page table whose operations fail.
type faulty struct {
	pagetable.Table
	err error
}

func (f faulty) Install(pagetable.Page, []byte, bool, pagetable.ProcID) (pagetable.Outcome, error) {
	return pagetable.Done, f.err
}

// failing is a table that reports the failure of an operation that was pending.
type failing struct{ pagetable.Table }

func (f failing) Poll(events []pagetable.Event) (int, error) {
	n, err := f.Table.Poll(events)
	for i := range events[:n] {
		if events[i].Kind == pagetable.Completed {
			events[i].Err = pagetable.ErrNoMemory
		}
	}
	return n, err
}

// deaf is a table that can not be polled.
type deaf struct{ pagetable.Table }

func (deaf) Poll([]pagetable.Event) (int, error) { return 0, pagetable.ErrClosed }

// TestTableFails: a page table that fails ends the node, with the page in the error, and programs
// are told.
func TestTableFails(t *testing.T) {
	for name, is := range map[string]struct {
		async  bool
		wrap   func(int, pagetable.Table) pagetable.Table
		err    error
		reason string
	}{
		"at once": {wrap: func(_ int, f pagetable.Table) pagetable.Table { return faulty{f, pagetable.ErrNoMemory} }, err: pagetable.ErrNoMemory, reason: "page 3"},
		"later":   {async: true, wrap: func(_ int, f pagetable.Table) pagetable.Table { return failing{f} }, err: pagetable.ErrNoMemory, reason: "page 3"},
		"deaf":    {wrap: func(_ int, f pagetable.Table) pagetable.Table { return deaf{f} }, err: pagetable.ErrClosed, reason: "read faults"},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, setup{nodes: 1, async: is.async, table: is.wrap})
			p := c.members[0].join()
			p.access(3, true, func([]byte) {})
			p.wantLost(is.reason)
			if err := c.members[0].ended(); !errors.Is(err, is.err) || !strings.Contains(err.Error(), is.reason) {
				t.Errorf("the node ended with %v, want %v and %q", err, is.err, is.reason)
			}
		})
	}
}

// TestTransportFails: so does a network that is closed under the node.
func TestTransportFails(t *testing.T) {
	c := start(t, setup{nodes: 2})
	p := c.members[0].join()
	c.net.Node(0).Close()
	p.wantLost("closed")
	if err := c.members[0].ended(); err == nil {
		t.Error("the node ended without an error")
	}
}
