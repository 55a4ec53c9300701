package dsm

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// TestOneAnswerOfEachRank: of a rank that has left one node and is at another, what the second says
// is kept, in whatever order they answer.
func TestOneAnswerOfEachRank(t *testing.T) {
	c := newFake(t, 3).join()
	said := runstats.Rank{Rank: 1, Computes: true}
	left := attach.Statement{Rank: 1, Node: 0, Presence: attach.Left}
	silent := attach.Statement{Rank: 1, Node: 1, Presence: attach.Silent}
	answers := attach.Statement{Rank: 1, Node: 1, Presence: attach.Answers, Body: said.Encode()}
	for _, test := range []struct {
		name  string
		told  []attach.Statement
		state runstats.State
	}{
		{"left, then there", []attach.Statement{left, answers}, runstats.Here},
		{"there, then left", []attach.Statement{answers, left}, runstats.Here},
		{"left, then silent", []attach.Statement{left, silent}, runstats.Silent},
		{"silent, then left", []attach.Statement{silent, left}, runstats.Silent},
		{"left twice", []attach.Statement{left, left}, runstats.Ended},
	} {
		t.Run(test.name, func(t *testing.T) {
			line, theirs, err := attach.Pair()
			if err != nil {
				t.Fatal(err)
			}
			defer line.Close()
			defer unix.Close(theirs)
			a := newAttendant(c, line)
			known := make(chan []runstats.Rank, 1)
			go func() { known <- a.inquire(patience, attach.NoRank) }()
			for asked := false; !asked; runtime.Gosched() {
				a.mu.Lock()
				asked = a.inquiry != nil
				a.mu.Unlock()
			}
			for _, s := range test.told {
				a.told(&attach.Tell{Ticket: 1, Statement: s})
			}
			a.told(&attach.Tell{Ticket: 1, Last: true})
			got := <-known
			if len(got) != 1 || got[0].Rank != 1 || got[0].State != test.state || got[0].Computes != (test.state == runstats.Here) {
				t.Errorf("known of ranks: %+v", got)
			}
		})
	}
}
