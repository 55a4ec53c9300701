package modelcheck

import (
	"fmt"
	"path/filepath"
	"testing"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// plantCases are small clusters in which every planted bug shows somewhere.
func plantCases() []*model.Config {
	base := Full.base(3)
	base.Duplicates = 0
	crash := base
	crash.Crash = []protocol.NodeID{1}
	replicated := crash
	replicated.Replicas = 1
	comes := Full.base(2)
	comes.Duplicates, comes.Replicas, comes.Crash, comes.Join = 0, 1, []protocol.NodeID{0}, []protocol.NodeID{1}
	anew := crash
	anew.Anew = []protocol.NodeID{0, 2}
	chain := base
	chain.TreeFrom, chain.TreeArity = 2, 1
	longer := chain
	longer.Nodes = 4
	shared := longer
	shared.Before = []int{0, 1, 2, 3}
	many := longer
	many.ManyReaders, many.Before = 1, []int{0, 1}
	broken := chain
	broken.Crash = []protocol.NodeID{1}
	words := Full.base(2)
	words.Duplicates, words.Words = 0, true
	cut := threads(words, "write 0", "lock 8; unlock 8; lock 8; unlock 8")
	cut.Cut = []protocol.NodeID{1}
	cut.Threads = append(cut.Threads, model.ThreadSpec{Node: 1, Client: 2, Program: model.MustParseProgram("lock 8; unlock 8")})
	spaces := Full.base(2)
	spaces.Duplicates, spaces.Spaces = 0, true
	expelled := spaces
	expelled.Threads = []model.ThreadSpec{{Node: 0, Client: 1, Program: model.MustParseProgram("expel")}}
	return []*model.Config{
		threads(longer, "barrier 8", "barrier 8", "barrier 8", "barrier 8"),
		threads(broken, "barrier 9; barrier 9", "", "barrier 9; barrier 9"),
		threads(base, "write 0", "write 0"),
		threads(base, "read 0", "read 0"),
		threads(base, "write 1; read 1", "write 1"),
		threads(base, "write 2; write 2", "write 2; read 2"),
		threads(base, "read 0; read 0", "write 0; write 0"),
		threads(base, "read 0", "read 0", "write 0"),
		threads(base, "write 0", "read 0; write 0", "read 0"),
		threads(crash, "write 1", "read 0", "write 1; write 1"),
		threads(anew, "read 0", "write 0", "write 0"),
		threads(replicated, "read 1", "write 0; commit", "read 0"),
		threads(comes, "write 0; commit", "read 0"),
		threads(words, "lock 8; unlock 8; lock 8; unlock 8", "lock 8; unlock 8"),
		cut,
		threads(base, "write 1; evict 1", "read 1"),
		threads(shared, "write 0", "read 0; write 0", "read 0", "read 0"),
		threads(many, "write 0", "read 0; write 0", "read 0", "read 0"),
		threads(spaces, "write 0; write 0", "write 0"),
		threads(expelled, "write 0; write 0", "read 0; read 0"),
	}
}

// plantStates bounds what is explored of one of the plantCases. Bugs show long before; and without
// holds, clusters with backups have more states than most machines have room for.
const plantStates = 128 << 10

// shortest explores all plantCases with a change, and returns the shortest finding of all.
func shortest(change func(*model.Config)) *Finding {
	var best *Finding
	for _, c := range plantCases() {
		change(c)
		ofSpaces := c.Plant == model.SkippedProgram || c.Plant == model.ReadBeforeProtected
		ofCopies := c.Plant == model.ForgottenOthers || c.Plant == model.AckedUnheard
		ofMany := c.Plant == model.ForgottenTakers || c.Plant == model.LostEnd
		if (c.Spaces && !ofSpaces || c.Before != nil && !ofCopies && !ofMany) && (c.Plant != model.NoPlant || c.Hold == 0) {
			continue // it shows in the others, and more simply
		}
		f := Explore(c, plantStates).Finding
		if f != nil && (best == nil || len(f.Scenario.Actions) < len(best.Scenario.Actions)) {
			best = f
		}
	}
	return best
}

// TestPlantedBugsAreFound: a check that no bug fails is no check. Each planted bug must lead to a
// violation; the shortest way to it is kept in testdata.
func TestPlantedBugsAreFound(t *testing.T) {
	found := func(name string, change func(*model.Config)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := shortest(change)
			if f == nil {
				t.Fatal("nothing was found")
			}
			t.Logf("found in %d actions: %v", len(f.Scenario.Actions), f.Violation)
			f.Scenario.Comment = fmt.Sprintf("# Planted bug: %s. %s", name, f.Scenario.Comment[2:])
			compareFile(t, filepath.Join("testdata", "planted", name+".txt"), replayed(t, f))
		})
	}
	for _, p := range model.Plants() {
		found(p.String(), func(c *model.Config) { c.Plant = p })
	}
	found("no-hold", func(c *model.Config) { c.Hold, c.MaxHold = 0, 0 })
}

// TestNothingIsFoundWithoutAPlant: the same clusters, left alone, are sound, so it is the plants
// that are found.
func TestNothingIsFoundWithoutAPlant(t *testing.T) {
	if f := shortest(func(*model.Config) {}); f != nil {
		t.Errorf("%v\n%s", f.Violation, replayed(t, f))
	}
}

// TestBeginningIsChecked: what goes wrong before the first state is a finding, too, and replays.
func TestBeginningIsChecked(t *testing.T) {
	c := threads(Full.base(2), "write 1", "write 1; read 1")
	c.Plant, c.Before = model.StaleSave, []int{1, 0}
	r := Explore(c, 0)
	if r.Finding == nil || len(r.Finding.Scenario.Actions) > 0 || r.Complete {
		t.Fatalf("explored %+v", *r)
	}
	replayed(t, r.Finding)
}

// TestExploreStopsAtItsLimit: a limit that cuts states off must not look like a complete
// exploration.
func TestExploreStopsAtItsLimit(t *testing.T) {
	r := Explore(threads(Full.base(2), "write 0; write 1", "write 1; write 0"), 100)
	if r.Complete || r.Finding != nil || r.States < 100 {
		t.Errorf("explored %+v with a limit of 100 states", *r)
	}
}

// TestExploreIsDeterministic: the numbers and the counterexample are the same each time.
func TestExploreIsDeterministic(t *testing.T) {
	run := func() string {
		c := threads(Full.base(2), "write 0; write 1", "write 1; write 0")
		r := Explore(c, 0)
		c = threads(Full.base(2), "write 0; write 1", "write 1; write 0")
		c.Plant = model.AckBeforeRevoke
		p := Explore(c, 0)
		return fmt.Sprintf("%+v\n%+v\n%v", *r, p.Finding.Violation, p.Finding.Scenario.Actions)
	}
	if first, second := run(), run(); first != second {
		t.Errorf("two explorations of the same cluster differ:\n%s\n%s", first, second)
	}
}
