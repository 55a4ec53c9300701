package transporttest

import (
	"os"
	"slices"
	"sync"
	"testing"

	"dsmd/internal/patience"
	"dsmd/transport"
)

// Options says what cluster a test needs.
type Options struct {
	Nodes          int
	PageBytes      int
	MaxQueuedBytes int // what may wait for one peer before Send returns transport.ErrBacklog
}

// Factory makes a cluster whose nodes are, or are about to be, connected: the i-th transport is
// that of node i, and nobody has called Poll yet. The suite closes the transports. A factory that
// fails calls t.Fatal.
type Factory func(t *testing.T, o Options) []transport.Transport

// pageBytes is the page size of most tests.
const pageBytes = 4096

// maxQueuedBytes is small so that the tests reach it soon, and holds some of the longest frames.
const maxQueuedBytes = 1 << 20

// Option changes how a suite runs.
type Option uint8

// Beside has the tests of a suite run beside each other: the factory may be called by several at
// once.
const Beside Option = 1

// sub runs one test of a suite.
func sub(t *testing.T, options []Option, name string, run func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		if slices.Contains(options, Beside) {
			t.Parallel()
		}
		run(t)
	})
}

// Main is the TestMain of packages that pass Beside.
func Main(m *testing.M) {
	patience.Beside(8)
	os.Exit(m.Run())
}

// Run runs the suite.
func Run(t *testing.T, factory Factory, options ...Option) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Factory)
	}{
		{"Alone", testAlone},
		{"AllToAll/3Nodes", func(t *testing.T, f Factory) { testAllToAll(t, f, 3, 400, pageBytes) }},
		{"AllToAll/7Nodes", func(t *testing.T, f Factory) { testAllToAll(t, f, 7, 80, pageBytes) }},
		{"AllToAll/LargePages", func(t *testing.T, f Factory) { testAllToAll(t, f, 2, 200, 64<<10) }},
		{"AllToAll/OddPages", func(t *testing.T, f Factory) { testAllToAll(t, f, 2, 400, 1001) }},
		{"OneGoroutine", testOneGoroutine},
		{"AnswerFromHandler", testAnswerFromHandler},
		{"SendBeforeUp", testSendBeforeUp},
		{"Wakeups", testWakeups},
		{"ArmSeesHeldBackFrames", testArmSeesHeldBackFrames},
		{"ArmFlushes", testArmFlushes},
		{"PollBounds", testPollBounds},
		{"Keep", testKeep},
		{"PayloadMisuse", testPayloadMisuse},
		{"SendMisuse", testSendMisuse},
		{"PeerDoesNotPoll", testPeerDoesNotPoll},
		{"BlockedByOne", testBlockedByOne},
		{"Flood", testFlood},
		{"PeerCloses", testPeerCloses},
		{"Disconnect", testDisconnect},
		{"DisconnectFromHandler", testDisconnectFromHandler},
		{"DisconnectFromPeerUp", testDisconnectFromPeerUp},
		{"Close", testClose},
		{"CloseWakesSleeper", testCloseWakesSleeper},
		{"CloseDelivers", testCloseDelivers},
		{"Stats", testStats},
	} {
		sub(t, options, test.name, func(t *testing.T) { test.run(t, factory) })
	}
}

// cluster makes the nodes of one test.
func cluster(t *testing.T, factory Factory, nodes, pageBytes int) []*reactor {
	t.Helper()
	return clusterOf(t, factory, Options{Nodes: nodes, PageBytes: pageBytes, MaxQueuedBytes: maxQueuedBytes})
}

// clusterOf is cluster with the options that a test wants.
func clusterOf(t *testing.T, factory Factory, o Options) []*reactor {
	t.Helper()
	transports := factory(t, o)
	if len(transports) != o.Nodes {
		t.Fatalf("the factory made %d transports, want %d", len(transports), o.Nodes)
	}
	t.Cleanup(func() { CloseAll(t, transports) })
	reactors := make([]*reactor, o.Nodes)
	for i, tr := range transports {
		if int(tr.Self()) != i || tr.Nodes() != o.Nodes || tr.PageBytes() != o.PageBytes {
			t.Fatalf("transport %d is node %d of %d with pages of %d bytes; want %d nodes and %d bytes",
				i, tr.Self(), tr.Nodes(), tr.PageBytes(), o.Nodes, o.PageBytes)
		}
		reactors[i] = newReactor(t, tr)
	}
	return reactors
}

// CloseAll closes all at once, because each waits for the others to take leave.
func CloseAll[T transport.Transport](t testing.TB, transports []T) {
	var all sync.WaitGroup
	for i, tr := range transports {
		all.Go(func() {
			if err := tr.Close(); err != nil {
				t.Errorf("node %d: Close: %v", i, err)
			}
		})
	}
	all.Wait()
}

// connected makes the nodes of one test and waits until all of them have reported all others.
func connected(t *testing.T, factory Factory, nodes int) []*reactor {
	t.Helper()
	reactors := cluster(t, factory, nodes, pageBytes)
	awaitConnected(t, reactors)
	return reactors
}

// awaitConnected waits until all nodes have reported all others.
func awaitConnected(t *testing.T, reactors []*reactor) {
	t.Helper()
	byHand(t, "every PeerUp", reactors, func() bool {
		for i, r := range reactors {
			for j, up := range r.up {
				if !up && i != j {
					return false
				}
			}
		}
		return true
	})
}

// mustPanic runs f, which misuses a transport.
func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	f()
}
