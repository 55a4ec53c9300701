package pagetable_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/pagetable/pagetabletest"
)

// restless is a table whose pages leave memory again and again, whatever is under way about them.
// Some come from a file where they are to be installed.
type restless struct {
	*backing.Table
	t       testing.TB
	rng     *rand.Rand
	present map[pagetable.Page]bool
	left    int
	from    *os.File
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
	fx.Table = &restless{Table: table, t: t, rng: rand.New(rand.NewPCG(seed, 1)), present: map[pagetable.Page]bool{}, from: from}
	return fx
}

// spill has some pages leave.
func (r *restless) spill() {
	var pages []pagetable.Page
	for p := range pagetable.Page(r.Pages()) {
		if r.present[p] && r.rng.IntN(3) == 0 {
			pages = append(pages, p)
		}
	}
	n, err := r.Spill(pages...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.left += n
}

// did notes what an operation has made of a page.
func (r *restless) did(op pagetable.Op, p pagetable.Page) {
	if op == pagetable.OpInstall {
		r.present[p] = true
	}
}

func (r *restless) Install(p pagetable.Page, data []byte, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	if len(data) == r.PageBytes() && r.rng.IntN(2) == 0 {
		at := int64(p) * int64(len(data))
		if _, err := r.from.WriteAt(data, at); err != nil {
			r.t.Fatal(err)
		}
		return r.Bring(p, backing.Location{FD: int(r.from.Fd()), Offset: at}, writable, proc)
	}
	out, err := r.Table.Install(p, data, writable, proc)
	if out == pagetable.Done && err == nil {
		r.did(pagetable.OpInstall, p)
	}
	return out, err
}

func (r *restless) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	delete(r.present, p)
	return r.Table.Revoke(p, into)
}

func (r *restless) Drop(first pagetable.Page, count uint64) (pagetable.Outcome, error) {
	for p := first; p < first+pagetable.Page(count); p++ {
		delete(r.present, p)
	}
	return r.Table.Drop(first, count)
}

func (r *restless) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
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
	n, err := r.Table.Poll(events)
	for _, ev := range events[:n] {
		if ev.Kind == pagetable.Completed {
			r.did(ev.Op, ev.Page)
		}
	}
	if err == nil {
		r.spill()
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
		runSuite(t, func(t testing.TB) Fixture {
			return withSpill(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
		})
	})
	t.Run("Uffd", func(t *testing.T) {
		runSuite(t, func(t testing.TB) Fixture { return withSpill(t, newFixture(t)) })
	})
}
