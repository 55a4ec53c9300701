package rdma

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"dsmd/internal/verbs"
	"dsmd/transport/transporttest"
)

// sendFor sends messages to and fro for a while, and each must come.
func sendFor(t *testing.T, nodes []*Transport, seen []*observer, long time.Duration) {
	t.Helper()
	for begin, sent := time.Now(), [2]int{seen[1].frames[0], seen[0].frames[1]}; time.Since(begin) < long; {
		for i, tr := range nodes {
			if err := tr.Send(nodes[1-i].self, []byte("is anybody there?"), nil); err != nil {
				t.Fatal(err)
			}
			sent[i]++
		}
		pollUntil(t, fmt.Sprintf("frames %d", sent), asInterface(nodes), seen, func() bool { return seen[1].frames[0] == sent[0] && seen[0].frames[1] == sent[1] })
	}
}

// countLines counts what nodes log from now on.
func countLines(t *testing.T, nodes []*Transport) *int {
	lines := new(int)
	for i, tr := range nodes {
		tr.log = func(line string) {
			*lines++
			t.Logf("node %d: %s", i, line)
		}
	}
	return lines
}

// TestQueuePairsCarryNothing: queue pairs can be made, and no packet of one side comes. They are
// tried rarely, no message goes there and waits, and little is logged.
func TestQueuePairsCarryNothing(t *testing.T) {
	t.Parallel()
	for at := range 2 {
		t.Run(fmt.Sprintf("from node %d", at), func(t *testing.T) {
			t.Parallel()
			all, silent := newFakeFabrics(t, false), [2]bool{}
			silent[at] = true
			nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(i int) fabric {
				return silencer{all.device(), &silent[i]}
			})
			for _, tr := range nodes {
				tr.watchPause = fastWatch
			}
			lines, seen := countLines(t, nodes), observe(2)
			sendFor(t, nodes, seen, 3*time.Second)
			for i, tr := range nodes {
				// After pauses of 50 ms, 100 ms and so on.
				if s := tr.LinkStats(); s.LinksTried < 2 || s.LinksTried > 7 || s.LinksFailed > 0 {
					t.Errorf("node %d: %+v; want some queue pairs that are tried, and no traffic on them", i, s)
				}
			}
			if *lines > 2*(maxComplaints+1) {
				t.Errorf("%d lines were logged", *lines)
			}
			silent[at] = false
			pollUntil(t, "a queue pair", asInterface(nodes), seen, func() bool { return nodes[0].LinkStats().Links == 1 && nodes[1].LinkStats().Links == 1 })
		})
	}
}

// TestRequiredButSilent: where RDMA is required, a peer is given up whose queue pairs can be made
// and carry nothing.
func TestRequiredButSilent(t *testing.T) {
	t.Parallel()
	all, silent := newFakeFabrics(t, false), true
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric {
		return silencer{all.device(), &silent}
	})
	for _, tr := range nodes {
		tr.watchPause, tr.required = fastWatch, true
	}
	seen := observe(2)
	pollUntil(t, "a queue pair", asInterface(nodes), seen, func() bool { return nodes[0].peers[1].link != nil && nodes[1].peers[0].link != nil })
	for i, tr := range nodes { // as if so much time had passed
		tr.peers[1-i].since = time.Now().Add(-requiredPatience)
		_ = tr.Send(nodes[1-i].self, []byte("is anybody there?"), nil) // or it is lost already
	}
	pollUntil(t, "the verdict", asInterface(nodes), seen, func() bool { return seen[0].down[1] != nil && seen[1].down[0] != nil })
	if err := seen[1].down[0]; !errors.Is(err, ErrRequired) {
		t.Errorf("the peer is down because of %v, want ErrRequired", err)
	}
	if len(seen[0].frames)+len(seen[1].frames) > 0 {
		t.Error("frames have come, and RDMA is required")
	}
}

// fickle is a device whose queue pairs carry the first requests and no others.
type fickle struct{ fabric }

type fickleEnd struct {
	endpoint
	posts int
}

func (f fickle) endpoint() (endpoint, error) {
	e, err := f.fabric.endpoint()
	return &fickleEnd{endpoint: e}, err
}

func (f fickle) setup(report func(endpoint, occurrence, error)) error {
	return f.fabric.setup(func(endpoint, occurrence, error) {}) // nothing is closed early
}

func (e *fickleEnd) post(requests []verbs.SendRequest) error {
	if e.posts++; e.posts > 1 {
		return nil
	}
	return e.endpoint.post(requests)
}

// TestBriefQueuePairs: queue pairs work for a moment and then carry nothing. They are tried rarely,
// and little is logged. After one that has lasted, the next is tried at once.
func TestBriefQueuePairs(t *testing.T) {
	t.Parallel()
	all := newFakeFabrics(t, false)
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric {
		return fickle{all.device()}
	})
	for _, tr := range nodes {
		tr.watchPause = fastWatch
	}
	lines, seen := countLines(t, nodes), observe(2)
	caller := nodes[1].peers[0]
	for tried := uint64(0); caller.pause < 400*time.Millisecond && tried <= 7; tried = nodes[1].LinkStats().LinksTried {
		sendFor(t, nodes, seen, time.Millisecond)
	}
	for i, tr := range nodes {
		if s := tr.LinkStats(); s.LinksFailed < 2 || s.LinksTried > 7 {
			t.Errorf("node %d: %+v; want some queue pairs that fail, and few until the pause is %v", i, s, caller.pause)
		}
	}
	if *lines > 6 {
		t.Errorf("%d lines were logged", *lines)
	}
	pollUntil(t, "a queue pair", asInterface(nodes), seen, func() bool { return caller.link != nil && caller.link.up })
	caller.link.began = time.Now().Add(-lasting)
	sendFor(t, nodes, seen, time.Millisecond)
	pollUntil(t, "the end of a queue pair", asInterface(nodes), seen, func() bool { return caller.link == nil || !caller.link.up })
	if caller.pause != 2*firstPause || caller.quiet {
		t.Errorf("the next pause is %v and it is quiet: %v, after a queue pair that has lasted", caller.pause, caller.quiet)
	}
}
