package e2e

import (
	"fmt"
	"syscall"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestSharedCopies has two programs of a node read the same pages of another node: they come over
// the network once. And pages that one program of the node has written are another's without any
// message.
func TestSharedCopies(t *testing.T) {
	c := serve(t, 2, 3)
	far, one, other := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3), join(t, c, 1, 2, 3)
	for _, p := range []*testcluster.Process{far, one, other} {
		p.Do(t, "ok", "alloc data 40")
	}
	far.Do(t, "ok", "fill data 1000")
	one.Do(t, "ok", "check data 1000")
	received := counter(t, one, "pages_received")
	if received < 40 {
		t.Fatalf("40 pages were read, and %d have come", received)
	}
	other.Do(t, "ok", "check data 1000")
	if now := counter(t, one, "pages_received"); now != received {
		t.Errorf("%d pages came again for the second program", now-received)
	}
	one.Do(t, "ok", "fill data 2000")
	sent, received := counter(t, one, "pages_sent"), counter(t, one, "pages_received")
	other.Do(t, "ok", "check data 2000")
	other.Do(t, "ok", "fill data 3000")
	one.Do(t, "ok", "check data 3000")
	if s, r := counter(t, one, "pages_sent"), counter(t, one, "pages_received"); s != sent || r != received {
		t.Errorf("%d pages were sent and %d came though both programs are on one node", s-sent, r-received)
	}
	far.Do(t, "ok", "check data 3000")
	for _, p := range []*testcluster.Process{far, one, other} {
		p.Succeed(t)
	}
}

// TestKilledBesideOthers kills a program that has pages for writing which another program of its
// node uses too: that one goes on with them, without the network.
func TestKilledBesideOthers(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 3)
	far, victim, heir := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3), join(t, c, 1, 2, 3)
	for _, p := range []*testcluster.Process{far, victim, heir} {
		p.Do(t, "ok", "alloc data 20")
	}
	far.Do(t, "ok", "fill data 1")
	heir.Do(t, "ok", "check data 1")
	// takes them from the other node, with the heir's mappings as they are
	victim.Do(t, "ok", "fill data 2")
	received := counter(t, heir, "pages_received")
	victim.Kill(t)
	heir.Do(t, "ok", "check data 2")
	heir.Do(t, "ok", "fill data 3")
	if now := counter(t, heir, "pages_received"); now != received {
		t.Errorf("%d pages came from the other node, and were here", now-received)
	}
	far.Do(t, "ok", "check data 3")
	again := join(t, c, 1, 1, 3)
	again.Do(t, "ok", "alloc data 20")
	again.Do(t, "ok", "check data 3")
	for _, p := range []*testcluster.Process{far, heir, again} {
		p.Succeed(t)
	}
}

// TestKilledWaitingForPage kills a program while it waits for a page, that another program of the
// node waits for too. The page's owner is stopped, so both wait for sure.
func TestKilledWaitingForPage(t *testing.T) {
	t.Parallel()
	for _, access := range []string{"get data 700", "add data 700 5"} {
		t.Run(access, func(t *testing.T) {
			c := serve(t, 2, 4)
			owner, victim, other, clerk := join(t, c, 0, 0, 4), join(t, c, 1, 1, 4), join(t, c, 1, 2, 4), join(t, c, 1, 3, 4)
			for _, p := range []*testcluster.Process{owner, victim, other} {
				p.Do(t, "ok", "alloc data 4")
			}
			owner.Do(t, "ok", "fill data 0")
			testcluster.Eventually(t, "nothing is under way", func() bool { return counter(t, clerk, "pending_objects") == 0 })
			c.Daemons[0].Stop(t)
			victim.Say(t, "%s", access)
			testcluster.Eventually(t, "the victim waits for a page", func() bool { return counter(t, clerk, "pending_objects") == 1 })
			duplicates := counter(t, clerk, "faults_duplicate")
			other.Say(t, "add data 700 5")
			testcluster.Eventually(t, "the other waits for it too", func() bool { return counter(t, clerk, "faults_duplicate") > duplicates })
			victim.Kill(t)
			testcluster.Eventually(t, "its death is known", func() bool { return counter(t, clerk, "programs") == 2 })
			c.Daemons[0].Signal(syscall.SIGCONT)
			other.Expect(t, "705") // and not 710: what the dead had begun has not happened
			owner.Do(t, "705", "get data 700")
			again := join(t, c, 1, 1, 4)
			again.Do(t, "ok", "alloc data 4")
			again.Do(t, "710", "add data 700 5")
			for _, p := range []*testcluster.Process{owner, other, clerk, again} {
				p.Succeed(t)
			}
		})
	}
}

// TestKilledWaitingForLock kills a program while it waits for a lock that others wait for too, on
// its node and elsewhere. It held nothing, so nobody is told of a death, and everybody gets the
// lock.
func TestKilledWaitingForLock(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 5)
	holder, victim, beside, far, clerk := join(t, c, 0, 0, 5), join(t, c, 1, 1, 5), join(t, c, 1, 2, 5), join(t, c, 0, 3, 5), join(t, c, 1, 4, 5)
	holder.Do(t, "ok", "lock door")
	calls := counter(t, clerk, "lock_calls")
	victim.Say(t, "lock door")
	testcluster.Eventually(t, "the victim waits for the lock", func() bool { return counter(t, clerk, "lock_calls") > calls })
	beside.Say(t, "lock door")
	far.Say(t, "lock door")
	victim.Kill(t)
	// Before its daemon knows, it could still be given the lock, and would then have died holding
	// it.
	testcluster.Eventually(t, "its death is known", func() bool { return counter(t, clerk, "programs") == 2 })
	holder.Do(t, "ok", "unlock door")
	for _, p := range []*testcluster.Process{beside, far} {
		defer p.Succeed(t)
	}
	for range 2 {
		next := firstToSpeak(t, beside, far)
		next.Expect(t, "ok")
		next.Do(t, "ok", "unlock door")
	}
	holder.Do(t, "ok", "lock door")
	holder.Succeed(t)
	clerk.Succeed(t)
}

// firstToSpeak waits until one of two programs has said more than it was asked for before.
func firstToSpeak(t *testing.T, a, b *testcluster.Process) *testcluster.Process {
	t.Helper()
	var first *testcluster.Process
	testcluster.Eventually(t, "somebody gets the lock", func() bool {
		for _, p := range []*testcluster.Process{a, b} {
			if p.Pending() {
				first = p
			}
		}
		return first != nil
	})
	return first
}

// TestKilledHolder kills programs that hold locks which others wait for, on their node and on
// another: the next holder, and nobody after it, hears of the death, and of whose it was. A reader
// that dies leaves nothing half done, so nobody hears of it.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	for _, node := range []int{0, 1} { // of who waits; the holder is on node 0
		t.Run(fmt.Sprintf("next on node %d", node), func(t *testing.T) {
			c := serve(t, 2, 4)
			victim, next, last := join(t, c, 0, 2, 4), join(t, c, node, 0, 4), join(t, c, 1-node, 1, 4)
			victim.Do(t, "ok", "lock written")
			victim.Do(t, "ok", "rlock read")
			next.Do(t, "too late", "lock written 20")
			next.Do(t, "ok", "rlock read") // beside the other reader
			next.Do(t, "ok", "runlock read")
			next.Say(t, "lock written")
			last.Do(t, "too late", "lock read 20")
			last.Say(t, "lock read")
			victim.Kill(t)
			next.Expect(t, "owner died: rank 2")
			next.Do(t, "owner died: rank 2", "rlock written")
			next.Do(t, "repaired after rank 2", "repair written")
			next.Do(t, "ok", "unlock written")
			last.Expect(t, "ok")
			last.Do(t, "ok", "unlock read")
			for _, name := range []string{"written", "read"} {
				last.Do(t, "ok", "lock %s", name)
				last.Do(t, "ok", "unlock %s", name)
				next.Do(t, "ok", "rlock %s", name)
			}
			for _, p := range []*testcluster.Process{next, last} {
				p.Succeed(t)
			}
		})
	}
}

// TestKilledRankComesBack kills a program that holds a lock, and has its successor of the same rank
// be the next holder: it hears that rank's number.
func TestKilledRankComesBack(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 2)
	victim := join(t, c, 1, 1, 2)
	victim.Do(t, "ok", "lock door")
	victim.Kill(t)
	again := join(t, c, 1, 1, 2)
	again.Do(t, "owner died: rank 1", "lock door")
	again.Do(t, "repaired after rank 1", "repair door")
	again.Do(t, "ok", "unlock door")
	again.Do(t, "ok", "lock door")
	again.Succeed(t)
}
