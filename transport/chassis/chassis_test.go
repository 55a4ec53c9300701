package chassis

import (
	"strings"
	"testing"

	_ "dsmd/internal/patience" // the test that waits is watched
)

// panics returns what f panics with.
func panics(f func()) (what any) {
	defer func() { what = recover() }()
	f()
	return nil
}

// TestGate: the reactor gets in until Close, also from inside Poll; nobody else does.
func TestGate(t *testing.T) {
	var g Gate
	if !g.EnterPoll() || !g.Enter() {
		t.Fatal("a gate that is open does not let the reactor in")
	}
	g.Leave()
	if panics(func() { g.EnterPoll() }) == nil {
		t.Error("Poll may be called inside Poll")
	}
	g.LeavePoll()

	if !g.Enter() {
		t.Fatal("a gate that was left does not let the reactor in")
	}
	if panics(func() { g.Enter() }) == nil {
		t.Error("two are inside at once")
	}
	closed, calls := make(chan bool), make(chan struct{}, 2)
	go func() { closed <- g.Close(func() { calls <- struct{}{} }) }()
	<-calls
	if g.Enter() || g.EnterPoll() || !g.Closing() {
		t.Error("a gate at which Close waits lets somebody in")
	}
	g.Leave()
	if !<-closed || len(calls) != 1 {
		t.Errorf("Close has not woken the reactor a second time, or says that it was called before")
	}
	if g.Enter() || g.Close(func() { t.Error("a second Close wakes the reactor") }) {
		t.Error("a gate that is closed opens")
	}
}

// TestPayloads: each state allows its own uses alone, and the pool learns what comes back.
func TestPayloads(t *testing.T) {
	freed := 0
	pool := Pool{Name: "test", PageBytes: 8, MaxSpare: 1, Freed: func(p *Payload) { freed++ }}
	other := Pool{Name: "other", PageBytes: 8}
	lender := Lender{Pool: &pool}

	leased := pool.Get()
	leased.Lease(3, leased.Own())
	for what, misuse := range map[string]func(){
		"leased for node 3":       func() { pool.Check(2, leased) },
		"has not leased":          func() { other.Check(3, leased) },
		"Keep of a payload that":  leased.Keep,
		"test: Send to node 2 of": func() { pool.Check(2, leased) },
	} {
		if got, _ := panics(misuse).(string); !strings.Contains(got, strings.TrimPrefix(what, "leased for ")) {
			t.Errorf("a misuse panics with %q, want %q in it", got, what)
		}
	}
	if pool.Check(3, leased) != leased || pool.Check(3, nil) != nil {
		t.Error("a payload that may be sent is not what Check returns")
	}
	leased.Queue()
	if panics(func() { leased.Bytes() }) == nil || panics(leased.Release) == nil {
		t.Error("a payload that was sent may be used")
	}
	leased.Free()

	page := []byte("12345678")
	lent := lender.Lend(page)
	if panics(lent.Release) == nil {
		t.Error("a borrowed payload may be released")
	}
	lent.Keep()
	lender.Return(lent)
	clear(page)
	if string(lent.Bytes()) != "12345678" {
		t.Errorf("a kept payload has changed to %q", lent.Bytes())
	}
	again := lender.Lend(page)
	lender.Return(again)
	if lender.Lend(page) != again {
		t.Error("a payload that was not kept is not lent again")
	}
	lent.Release()
	if panics(lent.Release) == nil || panics(func() { lent.Bytes() }) == nil {
		t.Error("a released payload may be used")
	}
	if freed != 2 || pool.Spares() != 1 {
		t.Errorf("%d payloads came back, and %d are held back; want 2 and 1", freed, pool.Spares())
	}
}
