package pagetable_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/pagetable/pagetabletest"
)

// restless is a table whose pages leave memory again and again, whatever is under way about them.
// Some come from a file where they are to be installed, and leave without being written as long as
// they are as there. Of some the table does not know where that is.
type restless struct {
	*backing.Table
	t         testing.TB
	rng       *rand.Rand
	present   map[pagetable.Page]bool
	unchanged map[pagetable.Page]bool // they are in the file, and read-only
	left      int
	unloaded  int
	from      *os.File
	wanted    []pagetable.Page // elsewhere
	delivered int              // pages so far
	over      int              // whose contents were given back
	known     bool             // it knows where all pages are
}

// withSpill puts the pages of a fixture into a spill file, at random.
func withSpill(t testing.TB, fx Fixture) Fixture {
	table, _, err := backing.New(fx.Table, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed of the spilling %d", seed)
		}
	})
	from, err := os.Create(filepath.Join(t.TempDir(), "contents"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { from.Close() })
	r := &restless{Table: table, t: t, rng: rand.New(rand.NewPCG(seed, 1)), present: map[pagetable.Page]bool{}, unchanged: map[pagetable.Page]bool{}, from: from}
	table.Origin = func(p pagetable.Page) backing.Location {
		if r.isElsewhere(p) {
			return backing.Elsewhere
		}
		return r.at(p)
	}
	table.Fetch = func(p pagetable.Page) {
		if r.wanted = append(r.wanted, p); r.rng.IntN(3) == 0 {
			r.deliver()
		}
	}
	fx.Table = r
	return fx
}

// isElsewhere is whether the table does not know where a page is.
func (r *restless) isElsewhere(p pagetable.Page) bool { return !r.known && p%2 == 1 }

func (r *restless) at(p pagetable.Page) backing.Location {
	return backing.Location{FD: int(r.from.Fd()), Offset: int64(p) * int64(r.PageBytes())}
}

// deliver brings what is elsewhere, in any order.
func (r *restless) deliver() {
	list := r.wanted
	r.wanted = nil
	r.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, p := range list {
		r.delivered++
		buf := make([]byte, r.PageBytes())
		if _, err := r.from.ReadAt(buf, r.at(p).Offset); err != nil {
			r.t.Fatal(err)
		}
		r.Deliver(p, buf, nil, func() {
			r.over++
			clear(buf)
		})
	}
}

// changes notes that an operation lets pages change, or leave.
func (r *restless) changes(run *pagetable.Run) {
	for i := range run.Count {
		if run.Op == pagetable.OpMakeWritable || run.Op == pagetable.OpRevoke {
			delete(r.unchanged, run.First+pagetable.Page(i))
		}
	}
}

// Read implements pagetable.Table. What is elsewhere a table does not read, and its host does.
func (r *restless) Read(first pagetable.Page, into ...[]byte) error {
	if err := r.Table.Read(first, into...); err == nil {
		return nil
	}
	for i, b := range into {
		p := first + pagetable.Page(i)
		if err := r.Table.Read(p, b); err == nil {
			continue
		} else if !r.Unloaded(p) || !r.isElsewhere(p) {
			return err
		}
		if _, err := r.from.ReadAt(b, r.at(p).Offset); err != nil {
			return err
		}
	}
	return nil
}

// spill has some pages leave.
func (r *restless) spill() {
	var pages, unchanged []pagetable.Page
	for p := range pagetable.Page(r.Pages()) {
		switch {
		case !r.present[p] || r.rng.IntN(3) > 0:
		case r.unchanged[p] && r.rng.IntN(4) > 0:
			unchanged = append(unchanged, p)
		default:
			pages = append(pages, p)
		}
	}
	n, err := r.Spill(pages...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.left += n
	if n, err = r.Unload(unchanged...); err != nil {
		r.t.Fatal(err)
	}
	r.unloaded += n
}

// did notes what an operation has made of a page.
func (r *restless) did(op pagetable.Op, p pagetable.Page) {
	if op == pagetable.OpInstall {
		r.present[p] = true
	}
}

func (r *restless) Install(p pagetable.Page, data []byte, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	if len(data) == r.PageBytes() && r.rng.IntN(2) == 0 {
		if _, err := r.from.WriteAt(data, r.at(p).Offset); err != nil {
			r.t.Fatal(err)
		}
		if !writable {
			r.unchanged[p] = true
		}
		if !r.isElsewhere(p) {
			return r.Bring(p, r.at(p), writable, proc)
		}
		if err := r.Await(p, writable, proc); err != nil {
			return pagetable.Done, err
		}
		r.Fetch(p)
		return pagetable.Pending, nil
	}
	out, err := r.Table.Install(p, data, writable, proc)
	if out == pagetable.Done && err == nil {
		r.did(pagetable.OpInstall, p)
	}
	return out, err
}

func (r *restless) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	delete(r.present, p)
	delete(r.unchanged, p)
	return r.Table.Revoke(p, into)
}

func (r *restless) MakeWritable(p pagetable.Page) (pagetable.Outcome, error) {
	delete(r.unchanged, p)
	return r.Table.MakeWritable(p)
}

func (r *restless) Drop(first pagetable.Page, count uint64) (pagetable.Outcome, error) {
	for p := first; p < first+pagetable.Page(count); p++ {
		delete(r.present, p)
		delete(r.unchanged, p)
	}
	r.wanted = slices.DeleteFunc(r.wanted, func(p pagetable.Page) bool { return p >= first && uint64(p-first) < count })
	return r.Table.Drop(first, count)
}

func (r *restless) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
	if run.Op == pagetable.OpInstall && r.rng.IntN(2) == 0 {
		return pagetable.OneByOne(r, run, outcomes) // some come from files
	}
	r.changes(run)
	for i := range run.Count {
		if run.Op == pagetable.OpRevoke {
			delete(r.present, run.First+pagetable.Page(i))
		}
	}
	err := r.Table.Operate(run, outcomes)
	for i, out := range outcomes {
		if err == nil && out == pagetable.Done {
			r.did(run.Op, run.First+pagetable.Page(i))
		}
	}
	return err
}

func (r *restless) Poll(events []pagetable.Event) (int, error) {
	delivered := r.delivered
	n, err := r.Table.Poll(events)
	for _, ev := range events[:n] {
		if ev.Kind == pagetable.Completed {
			r.did(ev.Op, ev.Page)
		}
	}
	if err == nil {
		if r.over < delivered || r.over > r.delivered {
			r.t.Errorf("%d pages were delivered before Poll, and %d are over", delivered, r.over)
		}
		r.spill()
		r.deliver()
	}
	return n, err
}

// TestSpillConforms: to who uses a table it makes no difference that pages leave memory.
func TestSpillConforms(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(map[bool]string{false: "Done", true: "Pending"}[async], func(t *testing.T) {
			runSuite(t, func(t testing.TB) Fixture {
				f := pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: RegionPages, Async: async})
				return withSpill(t, Fixture{Table: f, Start: func(t testing.TB, proc pagetable.ProcID) Program {
					if err := f.Attach(proc, -1, 0); err != nil {
						t.Fatal(err)
					}
					return fakeProgram{f, proc}
				}})
			})
		})
	}
	t.Run("Sigsegv", func(t *testing.T) {
		notInShort(t)
		runSuite(t, func(t testing.TB) Fixture {
			return withSpill(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, undisturbed))
		})
	})
	t.Run("Uffd", func(t *testing.T) {
		notInShort(t)
		runSuite(t, func(t testing.TB) Fixture { return withSpill(t, newFixture(t)) })
	})
}
