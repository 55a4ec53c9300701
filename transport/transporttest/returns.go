package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"dsmd/transport"
)

// Returning is a cluster whose nodes can end and come back.
type Returning struct {
	Nodes []transport.Transport
	// Kill ends the last incarnation of a node as the end of its process does: without a word. nil:
	// this cannot be done here, and Close is called.
	Kill func(id transport.NodeID)
	// Revive starts another incarnation of a node whose last one was closed or killed. It returns
	// at once: the node is connected to each other when that has readmitted it. The suite closes
	// it.
	Revive func(id transport.NodeID) transport.Transport
	// Found is Revive of an incarnation that does not join the others, but founds a cluster. The
	// channel gets the outcome of its attempt.
	Found func(id transport.NodeID) (transport.Transport, <-chan error)
	// Cutter cuts connections meanwhile. nil: nobody does.
	Cutter Cutter
}

// ReturnFactory makes a cluster as Factory does, with nodes that can come back.
type ReturnFactory func(t *testing.T, o Options) Returning

const (
	returnNodes = 3
	// returns is how often a node comes back.
	returns = 3
	// returnFrames is how many frames each node sends each other after that.
	returnFrames = 20
	// strandedFrames are on their way to the incarnation that is lost, and must not reach the next;
	// and as many wait for that.
	strandedFrames = 3
)

// RunReturns runs the suite for nodes that come back: one ends, in one of several ways, is lost,
// readmitted and started anew, three times over. Between the incarnations that meet, frames go both
// ways, the first that were sent first; nothing of any that is lost arrives.
func RunReturns(t *testing.T, factory ReturnFactory, options ...Option) {
	for _, test := range []struct {
		name string
		run  func(*comeback)
	}{
		{"Closed", (*comeback).afterClose},
		{"Killed", (*comeback).afterKill},
		{"Replaced", (*comeback).whileAnotherCalls},
		{"Parted", (*comeback).afterDisconnect},
		{"Founded", (*comeback).afterFounding},
		{"FoundedUnnoticed", (*comeback).whileAnotherFounds},
	} {
		runReturns(t, factory, options, test.name, test.run)
	}
	sub(t, options, "NobodyComes", func(t *testing.T) { testNobodyComes(t, factory) })
	sub(t, options, "ReadmitMisuse", func(t *testing.T) { testReadmitMisuse(t, factory) })
}

// RunReturnsCut is RunReturns while the connections are cut, which takes the ways to end where that
// makes a difference.
func RunReturnsCut(t *testing.T, factory ReturnFactory, options ...Option) {
	runReturns(t, factory, options, "Replaced", (*comeback).whileAnotherCalls)
	runReturns(t, factory, options, "Parted", (*comeback).afterDisconnect)
}

func runReturns(t *testing.T, factory ReturnFactory, options []Option, name string, way func(*comeback)) {
	// By their numbers one is called by all, the other calls all.
	for _, id := range []transport.NodeID{0, returnNodes - 1} {
		sub(t, options, fmt.Sprintf("%s/Node%d", name, id), func(t *testing.T) {
			x := newComeback(t, factory, id)
			for range returns {
				x.exchange()
				x.strand()
				x.round++
				x.begin()
				way(x)
			}
			x.exchange()
		})
	}
}

// comeback is a cluster of which one node ends and comes back.
type comeback struct {
	t     *testing.T
	c     Returning
	nodes []*reactor // by number, the last incarnations
	id    transport.NodeID
	round int
	lanes []*lane // of this round
}

// lane is the way from one node to another, in one round.
type lane struct {
	from, to transport.NodeID
	out, in  *stream
	again    bool // the last frame of out was not taken
}

func newComeback(t *testing.T, factory ReturnFactory, id transport.NodeID) *comeback {
	t.Helper()
	x := &comeback{t: t, id: id}
	x.nodes = connected(t, func(t *testing.T, o Options) []transport.Transport {
		x.c = factory(t, o)
		return x.c.Nodes
	}, returnNodes)
	if x.c.Cutter != nil {
		t.Cleanup(keepCutting(x.c.Cutter, returnNodes, cutEvery))
	}
	t.Cleanup(func() { CloseAll(t, x.c.Nodes) })
	x.begin()
	for _, r := range x.nodes {
		x.expect(r)
	}
	return x
}

// one is the node that comes and goes.
func (x *comeback) one() *reactor { return x.nodes[x.id] }

// others are the nodes that stay.
func (x *comeback) others() (rest []*reactor) {
	for i, r := range x.nodes {
		if transport.NodeID(i) != x.id {
			rest = append(rest, r)
		}
	}
	return rest
}

// begin has other frames sent than before, and expected.
func (x *comeback) begin() {
	x.lanes = nil
	for from := range returnNodes {
		for to := range returnNodes {
			if from != to {
				x.lanes = append(x.lanes, &lane{from: transport.NodeID(from), to: transport.NodeID(to),
					out: newStreamOf(x.round, from, to, pageBytes), in: newStreamOf(x.round, from, to, pageBytes)})
			}
		}
	}
}

// expect has a node compare what arrives with this round's frames. What is stranded at the end of
// the round may arrive too, until the node expects the next.
func (x *comeback) expect(r *reactor) {
	self, round, lanes := r.tr.Self(), x.round, x.lanes
	stranded := x.stranded()
	r.onFrame = func(from transport.NodeID, control []byte, payload transport.Payload) {
		if bytes.Equal(control, stranded) {
			return
		}
		for _, l := range lanes {
			if l.from != from || l.to != self {
				continue
			}
			if err := l.in.take(control, payload); err != nil && !x.t.Failed() {
				x.t.Errorf("round %d: node %d from node %d: %v", round, self, from, err)
			}
		}
	}
}

// stranded is what frames say that are sent to the node that ends, and by it.
func (x *comeback) stranded() []byte { return fmt.Appendf(nil, "stranded in round %d", x.round) }

// strand sends frames that may not outlive the round: some of them are flushed.
func (x *comeback) strand() {
	for i := range 2 * strandedFrames {
		for _, r := range x.others() {
			x.send(r, x.id)
			x.send(x.one(), r.tr.Self())
		}
		if i == strandedFrames {
			for _, r := range x.nodes {
				r.tr.Flush()
			}
		}
	}
}

func (x *comeback) send(r *reactor, to transport.NodeID) {
	if err := r.tr.Send(to, x.stranded(), r.tr.Lease(to)); err != nil {
		x.t.Fatalf("node %d: Send to node %d: %v", r.tr.Self(), to, err)
	}
}

// some sends the next frames of a lane, up to a number.
func (x *comeback) some(l *lane, upTo int) {
	tr := x.nodes[l.from].tr
	for l.out.index < upTo && hasRoom(tr) || l.again {
		if !l.again {
			l.out.next()
		}
		err := l.out.send(tr, l.to)
		l.again = errors.Is(err, transport.ErrBacklog)
		if l.again {
			return
		}
		if err != nil {
			x.t.Fatalf("node %d: Send to node %d: %v", l.from, l.to, err)
		}
	}
}

// exchange has everybody send everybody this round's frames, and waits until all have arrived.
func (x *comeback) exchange() {
	x.t.Helper()
	byHand(x.t, fmt.Sprintf("the frames of round %d", x.round), x.nodes, func() bool {
		done := true
		for _, l := range x.lanes {
			x.some(l, returnFrames)
			done = done && l.out.index == returnFrames && l.in.index == returnFrames && !l.again
		}
		return done || x.t.Failed()
	})
	wantNobodyLost(x.t, x.nodes)
}

// awaitLoss waits until the others have lost the node. They alone are polled.
func (x *comeback) awaitLoss() {
	x.t.Helper()
	byHand(x.t, "PeerDown", x.others(), func() bool {
		for _, r := range x.others() {
			if r.down[x.id] == nil {
				return false
			}
		}
		return true
	})
}

// readmit has the others readmit the node, and send it the first frames of the round, of which the
// lost incarnation must get none.
func (x *comeback) readmit() {
	for _, r := range x.others() {
		if err := r.tr.Send(x.id, []byte("x"), r.tr.Lease(x.id)); !errors.Is(err, transport.ErrPeerDown) {
			x.t.Errorf("Send to a peer that is down: %v, want ErrPeerDown", err)
		}
		x.readmitAt(r)
	}
	for _, l := range x.lanes {
		if l.to == x.id {
			x.some(l, strandedFrames)
		}
	}
}

func (x *comeback) readmitAt(r *reactor) {
	r.readmit(x.id)
	x.expect(r)
}

// revive starts the node anew.
func (x *comeback) revive() {
	tr := x.c.Revive(x.id)
	x.c.Nodes = append(x.c.Nodes, tr)
	x.nodes[x.id] = newReactor(x.t, tr)
	x.expect(x.one())
}

// close closes a transport while the others go on, for which it may wait.
func (x *comeback) close(r *reactor) {
	byHand(x.t, "Close", x.others(), r.close().ended)
}

// kill ends the node without a word, if the cluster can do that.
func (x *comeback) kill() {
	if x.c.Kill == nil {
		x.close(x.one())
		return
	}
	x.c.Kill(x.id)
}

func (x *comeback) afterClose() {
	x.close(x.one())
	x.awaitLoss()
	x.readmit()
	x.revive()
}

func (x *comeback) afterKill() {
	x.kill()
	x.awaitLoss()
	x.readmit()
	pollFor(x.others()) // They look for it, and do not mind that nobody is there.
	x.revive()
}

// whileAnotherCalls: the next incarnation is there before the others know that the former one is
// not, and they readmit it in the very moment in which they hear that.
func (x *comeback) whileAnotherCalls() {
	x.kill()
	lost := x.readmitWhenLost()
	x.revive()
	byHand(x.t, "PeerDown", x.nodes, func() bool { return *lost == returnNodes-1 })
	x.leaveBe()
}

// readmitWhenLost has the others readmit the node in the moment in which they hear of its loss, and
// returns how many have.
func (x *comeback) readmitWhenLost() *int {
	lost := new(int)
	for _, r := range x.others() {
		r.onDown = func(transport.NodeID) {
			*lost++
			x.readmitAt(r)
		}
		if r.down[x.id] != nil { // Killing it was to close it.
			r.onDown(x.id)
		}
	}
	return lost
}

// leaveBe ends readmitWhenLost.
func (x *comeback) leaveBe() {
	for _, r := range x.others() {
		r.onDown = nil
	}
}

// afterFounding: an incarnation that does not join is told that the others have gone on, and is
// connected to nobody. The next one joins.
func (x *comeback) afterFounding() {
	x.kill()
	x.awaitLoss()
	x.readmit()
	x.found()
	x.revive()
}

// whileAnotherFounds: such an incarnation is there before the others know that the former one is
// not.
func (x *comeback) whileAnotherFounds() {
	x.kill()
	lost := x.readmitWhenLost()
	x.found()
	byHand(x.t, "PeerDown", x.others(), func() bool { return *lost == returnNodes-1 })
	x.leaveBe()
	x.revive()
}

// found starts an incarnation that does not join, and waits until it is told why it cannot found a
// cluster.
func (x *comeback) found() {
	x.t.Helper()
	tr, outcome := x.c.Found(x.id)
	x.c.Nodes = append(x.c.Nodes, tr)
	founder := newReactor(x.t, tr)
	ups := make(map[*reactor]int) // a former incarnation may still be up
	for _, r := range x.others() {
		ups[r] = r.ups
	}
	byHand(x.t, "the outcome", append(x.others(), founder), func() bool {
		select {
		case err := <-outcome:
			if !errors.Is(err, transport.ErrGoneOn) {
				x.t.Errorf("node %d, which does not join, is told %v; want ErrGoneOn", x.id, err)
			}
			return true
		default:
			return false
		}
	})
	pollFor(append(x.others(), founder))
	for _, r := range x.others() {
		if r.ups != ups[r] || founder.up[r.tr.Self()] {
			x.t.Errorf("node %d is connected to node %d, which does not join", r.tr.Self(), x.id)
		}
	}
	x.close(founder)
}

// afterDisconnect: the lost incarnation is alive. It is told why it was lost, although the others
// wait for the next one already.
func (x *comeback) afterDisconnect() {
	const reason = "it was told to go"
	for _, r := range x.others() {
		r.tr.Disconnect(x.id, errors.New(reason))
	}
	x.awaitLoss()
	former := x.one()
	x.readmit()
	byHand(x.t, "the reasons", x.nodes, func() bool {
		for _, r := range x.others() {
			if former.down[r.tr.Self()] == nil {
				return false
			}
		}
		return true
	})
	for peer, err := range former.down {
		if err != nil && !strings.Contains(err.Error(), reason) {
			x.t.Errorf("node %d was parted with and learns from node %d: %v; want the reason in it", x.id, peer, err)
		}
	}
	for _, r := range x.others() {
		former.readmit(r.tr.Self()) // That does not help it.
	}
	pollFor(x.nodes)
	for _, r := range x.others() {
		if r.up[x.id] || former.up[r.tr.Self()] {
			x.t.Errorf("node %d has met the incarnation of node %d again that it had parted with", r.tr.Self(), x.id)
		}
	}
	x.close(former)
	x.revive()
}

// pollFor polls nodes for a while in which nothing is to happen, long enough for a connection to be
// made.
func pollFor(nodes []*reactor) {
	for over := time.Now().Add(30 * time.Millisecond); time.Now().Before(over); {
		for _, r := range nodes {
			r.tr.Flush()
			r.poll()
		}
		time.Sleep(spinPause)
	}
}

// testNobodyComes: a peer that was readmitted and does not come is no news, can be parted with, and
// does not hold up Close.
func testNobodyComes(t *testing.T, factory ReturnFactory) {
	for _, id := range []transport.NodeID{0, returnNodes - 1} {
		x := newComeback(t, factory, id)
		x.close(x.one())
		x.awaitLoss()
		x.readmit()
		x.nodes = x.others()
		pollFor(x.nodes)
		for i, r := range x.nodes {
			if r.up[id] || r.down[id] != nil {
				t.Fatalf("node %d of those that are left: a peer that has not come is up: %v, down: %v", i, r.up[id], r.down[id])
			}
		}
		reason := errors.New("it takes too long")
		r := x.nodes[0]
		r.tr.Disconnect(id, reason)
		r.runUntil("PeerDown of a peer that was not connected", func() bool { return r.down[id] != nil })
		if !errors.Is(r.down[id], reason) {
			t.Errorf("PeerDown says %v, want the reason given", r.down[id])
		}
		if queued := r.tr.Stats().QueuedBytes; queued != 0 {
			t.Errorf("%d bytes are queued for a peer that was parted with", queued)
		}
		r.readmit(id)
	}
}

// testReadmitMisuse: Readmit of a peer that is not lost is a bug of the host.
func testReadmitMisuse(t *testing.T, factory ReturnFactory) {
	x := newComeback(t, factory, 0)
	r := x.nodes[1]
	mustPanic(t, "Readmit of a peer that is connected", func() { r.tr.Readmit(0) })
	r.tr.Disconnect(0, errors.New("enough"))
	mustPanic(t, "Readmit of a peer whose PeerDown was not reported", func() { r.tr.Readmit(0) })
	mustPanic(t, "Readmit of the node itself", func() { r.tr.Readmit(1) })
	r.runUntil("PeerDown", func() bool { return r.down[0] != nil })
	r.readmit(0)
	mustPanic(t, "Readmit of a peer that is readmitted", func() { r.tr.Readmit(0) })
	CloseAll(t, x.c.Nodes)
	r.tr.Readmit(0)
}
