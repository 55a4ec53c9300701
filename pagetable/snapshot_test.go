package pagetable_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
	"dsmd/pagetable/snapshot"
)

// photographed is a table of whose pages snapshots are taken all the time, whatever is under way
// about them.
type photographed struct {
	*snapshot.Table
	t       testing.TB
	rng     *rand.Rand
	present map[pagetable.Page]bool   // whether they are writable
	moment  map[pagetable.Page][]byte // what pages held when all was sealed; nil: not yet
	under   bool                      // a snapshot is under way
	refused bool                      // somebody was given no buffer
	closed  bool
	taken   int
	kept    map[pagetable.Page][]byte // of this snapshot and those before
	members map[pagetable.Page]bool   // pages of this one that were not handed over before moment
}

// withSnapshots takes snapshots of the pages of a fixture, at random.
func withSnapshots(t testing.TB, fx Fixture) Fixture {
	seed := rand.Uint64()
	r := &photographed{Table: snapshot.New(fx.Table), t: t, rng: rand.New(rand.NewPCG(seed, 1)), present: map[pagetable.Page]bool{}, kept: map[pagetable.Page][]byte{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed of the snapshots %d, %d pages taken", seed, r.taken)
		}
	})
	fx.Table = r
	return fx
}

// Buffer implements snapshot.Sink.
func (r *photographed) Buffer(bool) []byte {
	if r.rng.IntN(12) == 0 {
		r.refused = true
		return nil
	}
	return make([]byte, r.PageBytes())
}

// Take implements snapshot.Sink.
func (r *photographed) Take(p pagetable.Page, buf []byte) {
	if want := r.moment[p]; want != nil && !bytes.Equal(buf, want) {
		r.t.Errorf("the snapshot has %x in page %d, which held %x", buf[:8], p, want[:8])
	}
	r.kept[p] = buf
	r.taken++
	if r.moment == nil {
		delete(r.members, p)
	}
}

// Lost implements snapshot.Sink.
func (r *photographed) Lost(p pagetable.Page) { delete(r.kept, p) }

// photograph goes on with a snapshot, or begins one.
func (r *photographed) photograph() {
	check := func(err error) {
		if err != nil {
			r.t.Fatal(err)
		}
	}
	if r.refused {
		r.refused = false
		check(r.Resume())
	}
	if !r.under {
		r.under, r.moment, r.members = true, nil, map[pagetable.Page]bool{}
		r.Begin(r, r.rng.IntN(2) == 0)
		for p := range pagetable.Page(r.Pages()) {
			if writable, is := r.present[p]; is && r.rng.IntN(3) > 0 {
				var err error
				r.members[p], err = r.Table.Take(p, writable)
				check(err)
			}
		}
		check(r.Seal())
	}
	switch {
	case r.moment == nil:
		if !r.Sealed() {
			return
		}
		r.moment = map[pagetable.Page][]byte{}
		for p := range r.present {
			buf := make([]byte, r.PageBytes())
			check(r.Read(p, buf))
			r.moment[p] = buf
		}
	case r.rng.IntN(20) == 0:
		r.under = false
		check(r.End(r.rng.IntN(4) == 0))
	default:
		left, err := r.More()
		check(err)
		if r.under = left; !left {
			r.isWhole()
			check(r.End(false))
		}
	}
}

// isWhole checks that all pages of the snapshot were handed over with what they held, by this one
// or by an earlier one since when they have not changed.
func (r *photographed) isWhole() {
	for p, taken := range r.members {
		if want := r.moment[p]; taken && want != nil && !bytes.Equal(r.kept[p], want) {
			r.t.Errorf("page %d of the snapshot is not as it was, %x", p, want[:8])
		}
	}
}

// early notes that pages may change before the snapshot has begun in earnest.
func (r *photographed) early(first pagetable.Page, count int) {
	for p := first; r.moment == nil && p < first+pagetable.Page(count); p++ {
		delete(r.members, p)
	}
}

// did notes what an operation has made of a page.
func (r *photographed) did(op pagetable.Op, p pagetable.Page, writable bool) {
	switch op {
	case pagetable.OpInstall:
		r.present[p] = writable
		delete(r.moment, p) // another page than it was
	case pagetable.OpMakeWritable:
		r.present[p] = true
	case pagetable.OpDowngrade:
		r.present[p] = false
	}
}

func (r *photographed) operate(o pagetable.Operation) (pagetable.Outcome, error) {
	r.early(o.Page, 1)
	if o.Op == pagetable.OpRevoke {
		delete(r.present, o.Page)
	}
	out, err := pagetable.Perform(r.Table, &o)
	if err == nil && (out == pagetable.Done || o.Op == pagetable.OpInstall) {
		r.did(o.Op, o.Page, o.Writable)
	}
	return out, err
}

func (r *photographed) Install(p pagetable.Page, data []byte, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	return r.operate(pagetable.Operation{Op: pagetable.OpInstall, Page: p, Data: data, Writable: writable, Proc: proc})
}

func (r *photographed) MakeWritable(p pagetable.Page) (pagetable.Outcome, error) {
	return r.operate(pagetable.Operation{Op: pagetable.OpMakeWritable, Page: p})
}

func (r *photographed) Downgrade(p pagetable.Page) (pagetable.Outcome, error) {
	return r.operate(pagetable.Operation{Op: pagetable.OpDowngrade, Page: p})
}

func (r *photographed) Map(p pagetable.Page, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	r.early(p, 1)
	return r.Table.Map(p, writable, proc)
}

func (r *photographed) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	return r.operate(pagetable.Operation{Op: pagetable.OpRevoke, Page: p, Into: into})
}

func (r *photographed) Drop(first pagetable.Page, count uint64) (pagetable.Outcome, error) {
	for p := first; p < first+pagetable.Page(count); p++ {
		delete(r.present, p)
		delete(r.members, p)
	}
	return r.Table.Drop(first, count)
}

func (r *photographed) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
	r.early(run.First, run.Count)
	for i := range run.Count {
		if run.Op == pagetable.OpRevoke {
			delete(r.present, run.First+pagetable.Page(i))
		}
	}
	err := r.Table.Operate(run, outcomes)
	for i, out := range outcomes {
		if err == nil && (out == pagetable.Done || run.Op == pagetable.OpInstall) {
			r.did(run.Op, run.First+pagetable.Page(i), run.Writable)
		}
	}
	return err
}

func (r *photographed) Close() error {
	r.closed = true
	return r.Table.Close()
}

func (r *photographed) Poll(events []pagetable.Event) (int, error) {
	if r.under && !r.closed {
		r.photograph()
	}
	n, err := r.Table.Poll(events)
	for _, ev := range events[:n] {
		if ev.Kind == pagetable.Completed && ev.Op != pagetable.OpInstall {
			r.did(ev.Op, ev.Page, false)
		}
	}
	if err == nil && !r.under && !r.closed {
		r.photograph()
	}
	return n, err
}

// TestSnapshotConforms: to who uses a table it makes no difference that snapshots are taken. What
// they have is what the pages held when they began.
func TestSnapshotConforms(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(map[bool]string{false: "Done", true: "Pending"}[async], func(t *testing.T) {
			runSuite(t, func(t testing.TB) Fixture {
				f := pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: RegionPages, Async: async})
				return withSnapshots(t, Fixture{Table: f, Start: func(t testing.TB, proc pagetable.ProcID) Program {
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
			return withSnapshots(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
		})
	})
	t.Run("Uffd", func(t *testing.T) {
		runSuite(t, func(t testing.TB) Fixture { return withSnapshots(t, newFixture(t)) })
	})
}
