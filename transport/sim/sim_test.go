package sim_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"dsmd/transport"
	"dsmd/transport/sim"
	"dsmd/transport/transporttest"
)

func TestConformance(t *testing.T) {
	for _, delays := range [][2]int{{0, 0}, {1, 20}} {
		t.Run(fmt.Sprintf("Delay%d-%d", delays[0], delays[1]), func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
				network := sim.NewNetwork(o.Nodes, o.PageBytes, sim.Options{
					Seed: 1, MinDelay: delays[0], MaxDelay: delays[1], MaxQueuedBytes: o.MaxQueuedBytes,
				})
				var nodes []transport.Transport
				for i := range o.Nodes {
					nodes = append(nodes, network.Node(i))
				}
				return nodes
			})
		})
	}
}

func TestReturns(t *testing.T) {
	for _, delays := range [][2]int{{0, 0}, {1, 20}} {
		t.Run(fmt.Sprintf("Delay%d-%d", delays[0], delays[1]), func(t *testing.T) {
			transporttest.RunReturns(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
				network := sim.NewNetwork(o.Nodes, o.PageBytes, sim.Options{
					Seed: 1, MinDelay: delays[0], MaxDelay: delays[1], MaxQueuedBytes: o.MaxQueuedBytes,
				})
				var nodes []transport.Transport
				for i := range o.Nodes {
					nodes = append(nodes, network.Node(i))
				}
				return transporttest.Returning{Nodes: nodes, Kill: network.Crash, Revive: network.Restart, Found: network.Found}
			})
		})
	}
}

// trace is a handler that writes down what it is told.
type trace struct {
	self  transport.NodeID
	lines []string
}

func (h *trace) Frame(from transport.NodeID, control []byte, _ transport.Payload) {
	h.lines = append(h.lines, fmt.Sprintf("%d<-%d %s", h.self, from, control))
}

func (h *trace) PeerUp(peer transport.NodeID) {
	h.lines = append(h.lines, fmt.Sprintf("%d up %d", h.self, peer))
}

func (h *trace) PeerDown(peer transport.NodeID, err error) {
	h.lines = append(h.lines, fmt.Sprintf("%d down %d: %v", h.self, peer, err))
}

// run drives a network by hand: all nodes send to all, one connection is cut, and what each is told
// is recorded.
func run(t *testing.T, seed uint64) []string {
	t.Helper()
	const nodes = 4
	network := sim.NewNetwork(nodes, 64, sim.Options{Seed: seed, MinDelay: 1, MaxDelay: 9})
	var all []string
	handlers := make([]trace, nodes)
	for round := range 40 {
		for i := range nodes {
			tr := network.Node(i)
			handlers[i].self = tr.Self()
			for to := range transport.NodeID(nodes) {
				if to == tr.Self() || round >= 20 {
					continue
				}
				err := tr.Send(to, fmt.Appendf(nil, "r%d", round), tr.Lease(to))
				if err != nil && !errors.Is(err, transport.ErrPeerDown) {
					t.Fatal(err)
				}
			}
			tr.Flush()
			if _, err := tr.Poll(&handlers[i], 3); err != nil {
				t.Fatal(err)
			}
			all = append(all, handlers[i].lines...)
			handlers[i].lines = nil
		}
		if round == 10 {
			network.Cut(1, 2)
		}
	}
	return all
}

func TestSameSeedSameTrace(t *testing.T) {
	first := run(t, 5)
	if again := run(t, 5); !slices.Equal(first, again) {
		t.Error("the same seed gave two traces")
	}
	if other := run(t, 6); slices.Equal(first, other) {
		t.Error("two seeds gave the same trace")
	}
	for _, want := range []string{"1 down 2: " + sim.ErrCut.Error(), "2 down 1: " + sim.ErrCut.Error()} {
		count := 0
		for _, line := range first {
			if strings.HasPrefix(line, want) {
				count++
			}
		}
		if count != 1 {
			t.Errorf("%q was reported %d times, want once", want, count)
		}
	}
}

// poll polls node i once and returns what it was told.
func poll(t *testing.T, network *sim.Network, i int) []string {
	t.Helper()
	h := trace{self: transport.NodeID(i)}
	if _, err := network.Node(i).Poll(&h, 100); err != nil {
		t.Fatal(err)
	}
	return h.lines
}

func send(t *testing.T, network *sim.Network, from int, to transport.NodeID, text string) {
	t.Helper()
	tr := network.Node(from)
	if err := tr.Send(to, []byte(text), nil); err != nil {
		t.Fatal(err)
	}
	tr.Flush()
}

// TestDelayCountsPolls pins down the unit of delays, which tests of other packages count with.
func TestDelayCountsPolls(t *testing.T) {
	network := sim.NewNetwork(2, 64, sim.Options{MinDelay: 3, MaxDelay: 3})
	poll(t, network, 1) // PeerUp
	send(t, network, 0, 1, "x")
	for i := 1; i <= 3; i++ {
		if !network.Node(1).Arm() {
			t.Errorf("before poll %d Arm says that nothing is under way", i)
		}
		if got := poll(t, network, 1); (len(got) == 1) != (i == 3) {
			t.Errorf("poll %d brought %v; the delay is 3", i, got)
		}
	}
	network.Delay(0, 1, 0, 0)
	send(t, network, 0, 1, "y")
	if got := poll(t, network, 1); len(got) != 1 {
		t.Errorf("a frame without delay did not arrive at once: %v", got)
	}
}

func TestStallHoldsOneDirection(t *testing.T) {
	network := sim.NewNetwork(2, 64, sim.Options{})
	poll(t, network, 0)
	poll(t, network, 1)
	network.Stall(0, 1)
	send(t, network, 0, 1, "held")
	send(t, network, 1, 0, "free")
	if got := poll(t, network, 0); !slices.Equal(got, []string{"0<-1 free"}) {
		t.Errorf("against the direction of the stall arrived %v", got)
	}
	if got := poll(t, network, 1); len(got) != 0 {
		t.Errorf("a stalled link delivered %v", got)
	}
	if network.Node(1).Arm() {
		t.Error("Arm says that a stalled frame is work; the node would spin until Resume")
	}
	network.Resume(0, 1)
	if got := poll(t, network, 1); !slices.Equal(got, []string{"1<-0 held"}) {
		t.Errorf("after Resume arrived %v", got)
	}
}

// TestCutLosesOnlyTheEnd: what arrives after a cut is the beginning of what was sent, and every
// length of it can occur.
func TestCutLosesOnlyTheEnd(t *testing.T) {
	sent := []string{"1<-0 a", "1<-0 b", "1<-0 c"}
	lengths := map[int]bool{}
	for seed := range uint64(40) {
		network := sim.NewNetwork(2, 64, sim.Options{Seed: seed})
		poll(t, network, 1)
		for _, text := range []string{"a", "b", "c"} {
			send(t, network, 0, 1, text)
		}
		network.Cut(0, 1)
		got := poll(t, network, 1)
		last := len(got) - 1
		if last < 0 || !strings.HasPrefix(got[last], "1 down 0") || !slices.Equal(got[:last], sent[:last]) {
			t.Fatalf("seed %d: after a cut arrived %v", seed, got)
		}
		lengths[last] = true
		if err := network.Node(0).Send(1, []byte("x"), nil); !errors.Is(err, transport.ErrPeerDown) {
			t.Fatalf("Send after a cut: %v, want ErrPeerDown", err)
		}
	}
	if len(lengths) != len(sent)+1 {
		t.Errorf("cuts left %v of 3 frames, want every number from 0 to 3", lengths)
	}
}

func TestCrashIsSeenByAll(t *testing.T) {
	network := sim.NewNetwork(4, 64, sim.Options{})
	network.Crash(2)
	for i := range 4 {
		downs := 0
		for _, line := range poll(t, network, i) {
			if strings.Contains(line, "down") {
				downs++
			}
		}
		if want := map[bool]int{true: 3, false: 1}[i == 2]; downs != want {
			t.Errorf("node %d lost %d peers, want %d", i, downs, want)
		}
	}
}

// TestControlIsOverwritten: a handler that holds on to a control part reads nonsense, so that tests
// notice.
func TestControlIsOverwritten(t *testing.T) {
	network := sim.NewNetwork(2, 64, sim.Options{})
	send(t, network, 0, 1, "text")
	var held holder
	if _, err := network.Node(1).Poll(&held, 10); err != nil {
		t.Fatal(err)
	}
	if string(held.control) == "text" || len(held.control) != 4 {
		t.Errorf("a control part that was held too long reads %q", held.control)
	}
}

type holder struct {
	trace
	control []byte
}

func (h *holder) Frame(_ transport.NodeID, control []byte, _ transport.Payload) { h.control = control }
