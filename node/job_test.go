package node

import (
	"testing"

	"dsmd/internal/attach"
)

// helloOf is the Hello of a program of a job.
func helloOf(job string, size uint32, rank int32) []byte {
	return attach.AppendHello(nil, &attach.Hello{Version: attach.Version, PID: 1, Rank: rank, Size: size, Job: job, Program: "test"})
}

// TestJobsHaveRanksOfTheirOwn: a rank that is taken in one job is free in another, and the size of
// a job is what its programs say.
func TestJobsHaveRanksOfTheirOwn(t *testing.T) {
	c := start(t, setup{nodes: 2, ranks: 2})
	m := c.members[1]
	m.joinAs(1)
	for _, test := range []struct {
		name       string
		hello      []byte
		rank, size uint32
	}{
		{"a rank that another job has", helloOf("a", 5, 1), 1, 5},
		{"the next one of this node", helloOf("a", 5, attach.NoRank), 3, 5},
		{"one rank on the second node", helloOf("b", 1, attach.NoRank), 0, 1},
		{"as many as the daemon was told", helloOf("c", 0, attach.NoRank), 1, 2},
	} {
		conn := m.dial()
		w, r := greet(t, conn, test.hello)
		if r != nil || w.Rank != test.rank || w.Size != test.size {
			t.Errorf("%s: rank %d of %d, %v; want rank %d of %d", test.name, w.Rank, w.Size, r, test.rank, test.size)
			continue
		}
		if r := handOver(t, conn); r != nil {
			t.Errorf("%s: %s", test.name, r.Reason)
		}
	}
	for _, test := range []struct {
		hello []byte
		want  string
	}{
		{helloOf("a", 5, 5), "rank 5 in a job of 5"},
		{helloOf("a", MaxRanks+1, 5), "a job of 65537 programs"},
	} {
		_, r := greet(t, m.dial(), test.hello)
		wantRefused(t, r, attach.RefuseRank, test.want)
	}
	for _, test := range []struct {
		hello []byte
		want  string
	}{
		{helloOf("a", 5, 1), "rank 1 is attached already"},
		{helloOf("a", 6, 0), `job "a" has 5 programs`},
	} {
		conn := m.dial()
		if _, r := greet(t, conn, test.hello); r != nil {
			t.Fatal(r.Reason)
		}
		wantRefused(t, handOver(t, conn), attach.RefuseRank, test.want)
	}
}

func nameCall(op attach.Op, name string) attach.Call {
	return attach.Call{Op: op, Name: name, Object: attach.NameHash(attach.NameMemory, name)}
}

// TestKeptMemory: memory that is kept outlives its programs, on whatever node they were, and ends
// when it is discarded and nobody uses it.
func TestKeptMemory(t *testing.T) {
	c := start(t, setup{nodes: 2, ranks: 2})
	first := c.members[1].join()
	page := first.bind("kept", 20)
	first.ok(nameCall(attach.OpKeep, "kept"))
	first.store(page+3, 0, 77)
	if r := first.do(nameCall(attach.OpKeep, "other")); r.Status != attach.StatusUnknown {
		t.Errorf("keeping what is not there: %v", r.Status)
	}
	first.leave()
	eventually(t, "nobody is attached", func() bool { return c.members[1].counter("programs") == 0 })

	second := c.members[0].join()
	if r := second.do(nameCall(attach.OpKeep, "kept")); r.Status != attach.StatusUnknown {
		t.Errorf("keeping what one does not use: %v", r.Status)
	}
	if again := second.bind("kept", 20); again != page {
		t.Errorf("it is at page %d now, and was at %d", again, page)
	}
	second.wantLoad(page+3, 0, 77)
	if r := second.do(bindCall("kept", 21*512)); r.Status != attach.StatusMismatch {
		t.Errorf("another size: %v", r.Status)
	}
	second.ok(unbindCall("kept"))
	// nobody uses it: the pages are free when this is answered
	second.ok(nameCall(attach.OpDiscard, "kept"))
	if r := second.do(nameCall(attach.OpDiscard, "kept")); r.Status != attach.StatusUnknown {
		t.Errorf("discarding what is gone: %v", r.Status)
	}
	second.bind("kept", 20)
	second.wantLoad(page+3, 0, 0)

	// Discarded while it is used, it lives as long as its last program.
	second.ok(nameCall(attach.OpKeep, "kept"))
	second.store(page, 0, 5)
	third := c.members[1].join()
	third.ok(nameCall(attach.OpDiscard, "kept"))
	third.bind("kept", 20)
	third.wantLoad(page, 0, 5)
	third.leave()
	second.wantLoad(page, 0, 5)
	second.die()
	last := c.members[1].join()
	eventually(t, "the pages are free, and zero", func() bool {
		got := last.bind("kept", 20) // elsewhere, as long as they are still being freed
		defer last.ok(unbindCall("kept"))
		return got == page && last.load(page, 0) == 0
	})
	last.leave()
}
