package pagetable_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/pagetable/pagetabletest"
	"dsmd/pagetable/snapshot"
)

// photographed is a table of whose pages snapshots are taken all the time, whatever is under way
// about them. Some begin with what they have elsewhere, too.
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
	rounds  int // snapshots that have begun
	// fetched are pages of this one that the table beneath reads later.
	fetched int
	kept    map[pagetable.Page][]byte // of this snapshot and those before
	members map[pagetable.Page]bool   // pages of this one that were not handed over before moment
	begun   map[pagetable.Page][]byte // with what pages began that must not have changed yet
	began   int
}

// withSnapshots takes snapshots of the pages of a fixture, at random.
func withSnapshots(t testing.TB, fx Fixture) Fixture {
	seed := rand.Uint64()
	r := &photographed{Table: snapshot.New(fx.Table), t: t, rng: rand.New(rand.NewPCG(seed, 1)), present: map[pagetable.Page]bool{}, kept: map[pagetable.Page][]byte{},
		begun: map[pagetable.Page][]byte{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed of the snapshots %d, %d pages taken, %d began", seed, r.taken, r.began)
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

// Recycle implements snapshot.Sink.
func (r *photographed) Recycle([]byte) {}

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

// Fetch implements snapshot.Sink.
func (r *photographed) Fetch(p pagetable.Page, buf []byte) (bool, error) {
	beneath, is := r.Table.Table.(*restless)
	if !is || !backing.InFile(beneath.Table, p) {
		return false, nil
	}
	round, early := r.rounds, r.moment == nil
	err := backing.Copy(beneath.Table, p, func(contents []byte, why error) {
		switch {
		case why != nil:
			r.t.Errorf("page %d can't be copied: %v", p, why)
		case round == r.rounds && r.under && early:
			r.kept[p] = bytes.Clone(contents)
		case round == r.rounds && r.under:
			r.Take(p, append(buf[:0], contents...))
		}
		if round == r.rounds {
			r.fetched--
		}
	})
	if err != nil {
		return false, err
	}
	if r.fetched++; early {
		delete(r.members, p)
	}
	return true, nil
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
		r.rounds, r.fetched = r.rounds+1, 0
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
		check(r.End(r.fetched > 0 || r.rng.IntN(4) == 0))
	default:
		left, err := r.More()
		check(err)
		if r.under = left || r.fetched > 0; !r.under {
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

// begin makes a page present of which it is known since when it has not changed.
func (r *photographed) begin(o *pagetable.Operation) {
	if len(o.Data) == r.PageBytes() && r.rng.IntN(2) == 0 {
		r.Begins(o.Page, o.Writable)
		o.Writable = false
		r.begun[o.Page] = bytes.Clone(o.Data)
		r.began++
	}
}

// mayChange notes that pages need not be as they began any longer.
func (r *photographed) mayChange(first pagetable.Page, count int) {
	for i := range count {
		delete(r.begun, first+pagetable.Page(i))
	}
}

// areAsTheyBegan checks what is known of pages that nobody has changed.
func (r *photographed) areAsTheyBegan() {
	buf := make([]byte, r.PageBytes())
	for p, want := range r.begun {
		if !r.IsUnchanged(p) {
			r.t.Errorf("page %d has changed, and nobody could store to it", p)
		}
		if _, here := r.present[p]; !here {
			continue
		}
		if err := r.Read(p, buf); err != nil || !bytes.Equal(buf, want) {
			r.t.Errorf("page %d, which nobody has changed, holds %x, and began with %x; %v", p, buf[:8], want[:8], err)
		}
	}
}

// did notes what an operation has made of a page.
func (r *photographed) did(op pagetable.Op, p pagetable.Page, writable bool) {
	if (op == pagetable.OpMakeWritable || op == pagetable.OpRevoke) && r.IsUnchanged(p) {
		r.t.Errorf("after %v page %d is as it began", op, p)
	}
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
	writable := o.Writable
	switch o.Op {
	case pagetable.OpInstall:
		r.begin(&o)
	case pagetable.OpRevoke:
		delete(r.present, o.Page)
		r.mayChange(o.Page, 1)
	case pagetable.OpMakeWritable:
		r.mayChange(o.Page, 1)
	}
	out, err := pagetable.Perform(r.Table, &o)
	if err == nil && (out == pagetable.Done || o.Op == pagetable.OpInstall) {
		r.did(o.Op, o.Page, writable)
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
	if writable { // somebody may be about to store
		r.mayChange(p, 1)
	}
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
	r.mayChange(first, int(count))
	out, err := r.Table.Drop(first, count)
	for p := first; p < first+pagetable.Page(count); p++ {
		if r.IsUnchanged(p) {
			r.t.Errorf("page %d is freed, and as it began", p)
		}
	}
	return out, err
}

func (r *photographed) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
	if run.Op == pagetable.OpInstall && r.rng.IntN(2) == 0 {
		return pagetable.OneByOne(r, run, outcomes) // some begin
	}
	r.early(run.First, run.Count)
	if run.Op == pagetable.OpRevoke || run.Op == pagetable.OpMakeWritable || run.Op == pagetable.OpMap && run.Writable {
		r.mayChange(run.First, run.Count)
	}
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
	var n int
	var err error
	_, spills := r.Table.Table.(*restless)
	// as its user, who else sleeps
	if r.closed || spills || r.Due() || waitReadable(r.t, r.WaitFD(), 0) {
		n, err = r.Table.Poll(events)
	}
	for _, ev := range events[:n] {
		if ev.Kind == pagetable.Completed && ev.Op != pagetable.OpInstall {
			r.did(ev.Op, ev.Page, false)
		}
	}
	if err == nil && !r.under && !r.closed {
		r.photograph()
	}
	if err == nil && !r.closed {
		r.areAsTheyBegan()
	}
	return n, err
}

// nowhere is a Sink of snapshots that nobody takes.
type nowhere struct{}

func (nowhere) Buffer(bool) []byte                         { return make([]byte, 4096) }
func (nowhere) Recycle([]byte)                             {}
func (nowhere) Take(pagetable.Page, []byte)                {}
func (nowhere) Lost(pagetable.Page)                        {}
func (nowhere) Fetch(pagetable.Page, []byte) (bool, error) { return false, nil }

// TestBegins: a page that begins writable is read-only beneath, and unchanged, until somebody
// stores to it or it leaves; loads, snapshots and the loss of write access leave it so.
func TestBegins(t *testing.T) {
	const proc, page = 1, 5
	for _, writable := range []bool{false, true} {
		for name, end := range map[string]func(t *testing.T, s *snapshot.Table){
			"MakeWritable": func(t *testing.T, s *snapshot.Table) { isOver(t)(s.MakeWritable(page)) },
			"Revoke":       func(t *testing.T, s *snapshot.Table) { isOver(t)(s.Revoke(page, nil)) },
			"Take":         func(t *testing.T, s *snapshot.Table) { isOver(t)(s.Revoke(page, make([]byte, 4096))) },
			"Drop":         func(t *testing.T, s *snapshot.Table) { isOver(t)(s.Drop(page-1, 3)) },
			"Run": func(t *testing.T, s *snapshot.Table) {
				outcomes := make([]pagetable.Outcome, 2)
				if err := s.Operate(&pagetable.Run{Op: pagetable.OpRevoke, First: page, Count: 2}, outcomes); err != nil {
					t.Fatal(err)
				}
			},
			"Close": func(t *testing.T, s *snapshot.Table) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			},
		} {
			t.Run(name+map[bool]string{false: "", true: "Writable"}[writable], func(t *testing.T) {
				f := pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: 16})
				s := snapshot.New(f)
				t.Cleanup(func() { s.Close() })
				if err := s.Attach(proc, -1, 0); err != nil {
					t.Fatal(err)
				}
				for p := pagetable.Page(page); p < page+2; p++ {
					s.Begins(p, writable)
					isOver(t)(f.Install(p, bytes.Repeat([]byte{9}, 4096), false, proc))
				}
				unchanged := func(what string) {
					t.Helper()
					if !s.IsUnchanged(page) || !s.IsUnchanged(page+1) || s.IsUnchanged(page+2) {
						t.Fatalf("%s: it has changed", what)
					}
				}
				unchanged("at first")
				if err := f.Access(proc, page, false, func([]byte) {}); err != nil {
					t.Fatal(err)
				}
				isOver(t)(s.Map(page, false, proc))
				unchanged("after a load")
				s.Begin(nowhere{}, true)
				if taken, err := s.Take(page, writable); !taken || err != nil {
					t.Fatal(taken, err)
				}
				if err := s.Seal(); err != nil {
					t.Fatal(err)
				}
				for left := true; left; {
					var err error
					if left, err = s.More(); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.End(true); err != nil {
					t.Fatal(err)
				}
				unchanged("after a snapshot")
				if !writable {
					isOver(t)(s.Downgrade(page + 1))
					unchanged("after the loss of write access")
				} else {
					unchanged("before the store")
					storeTo(t, f, s, proc, page+1)
					if s.IsUnchanged(page + 1) {
						t.Error("it is unchanged after a store")
					}
				}
				end(t, s)
				if s.IsUnchanged(page) {
					t.Error("it is unchanged")
				}
			})
		}
	}
}

// TestWithhold: a page that is withheld is writable to who has the table, and read-only beneath
// until a program stores to it and is told that it may. It can lose write access, leave, be freed
// and be part of a snapshot like any other.
func TestWithhold(t *testing.T) {
	const proc, page = 1, 5
	for name, end := range map[string]func(t *testing.T, f *pagetabletest.Fake, s *snapshot.Table){
		"Store": func(t *testing.T, f *pagetabletest.Fake, s *snapshot.Table) {
			storeTo(t, f, s, proc, page)
			if err := f.Access(proc, page, true, func(b []byte) { b[1] = 1 }); err != nil {
				t.Fatal(err) // nobody would answer if it were reported
			}
		},
		"Downgrade": func(t *testing.T, f *pagetabletest.Fake, s *snapshot.Table) { isOver(t)(s.Downgrade(page)) },
		"Drop":      func(t *testing.T, f *pagetabletest.Fake, s *snapshot.Table) { isOver(t)(s.Drop(page, 1)) },
		"Revoke": func(t *testing.T, f *pagetabletest.Fake, s *snapshot.Table) {
			into := make([]byte, 4096)
			if isOver(t)(s.Revoke(page, into)); into[0] != 9 {
				t.Errorf("it held %d", into[0])
			}
		},
		"Snapshot": func(t *testing.T, f *pagetabletest.Fake, s *snapshot.Table) {
			r := &photographed{Table: s, t: t, rng: rand.New(rand.NewPCG(1, 1)), kept: map[pagetable.Page][]byte{}}
			s.Begin(r, true)
			if is, err := s.Take(page, true); !is || err != nil {
				t.Fatal(is, err)
			}
			if err := s.Seal(); err != nil || !s.Sealed() {
				t.Fatal(err)
			}
			for r.kept[page] == nil {
				if _, err := s.More(); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.End(false); err != nil {
				t.Fatal(err)
			}
			storeTo(t, f, s, proc, page)
			if r.kept[page][0] != 9 {
				t.Errorf("the snapshot has %d", r.kept[page][0])
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: 16})
			s := snapshot.New(f)
			t.Cleanup(func() { s.Close() })
			if err := s.Attach(proc, -1, 0); err != nil {
				t.Fatal(err)
			}
			isOver(t)(s.Install(page, bytes.Repeat([]byte{9}, 4096), false, proc))
			if !s.Withhold(page) {
				t.Fatal("it could not be withheld, and nothing is under way about it")
			}
			if err := f.Access(proc, page, false, func([]byte) {}); err != nil {
				t.Fatal(err)
			}
			end(t, f, s)
			if name == "Downgrade" {
				isOver(t)(s.MakeWritable(page))
			}
			if name == "Drop" || name == "Revoke" {
				isOver(t)(s.Install(page, nil, true, proc))
			}
			if err := f.Access(proc, page, true, func(b []byte) { b[0] = 2 }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// isOver checks that an operation is over.
func isOver(t *testing.T) func(pagetable.Outcome, error) {
	return func(out pagetable.Outcome, err error) {
		t.Helper()
		if out != pagetable.Done || err != nil {
			t.Fatal(out, err)
		}
	}
}

// storeTo has a program store to a page that is writable, and serves the fault that this must be.
func storeTo(t *testing.T, f *pagetabletest.Fake, s *snapshot.Table, proc pagetable.ProcID, page pagetable.Page) {
	t.Helper()
	stored := make(chan error, 1)
	go func() { stored <- f.Access(proc, page, true, func(b []byte) { b[0] = 1 }) }()
	var events [4]pagetable.Event
	for n := 0; n == 0; {
		var err error
		if n, err = s.Poll(events[:]); err != nil {
			t.Fatal(err)
		}
	}
	if ev := events[0]; ev.Kind != pagetable.Fault || ev.Page != page || !ev.Write {
		t.Fatalf("the store is %+v", ev)
	}
	isOver(t)(s.Map(page, true, proc))
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
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
	t.Run("Spilling", func(t *testing.T) {
		notInShort(t)
		runSuite(t, func(t testing.TB) Fixture {
			f := pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: RegionPages, Async: true})
			fx := withSpill(t, Fixture{Table: f, Start: func(t testing.TB, proc pagetable.ProcID) Program {
				if err := f.Attach(proc, -1, 0); err != nil {
					t.Fatal(err)
				}
				return fakeProgram{f, proc}
			}})
			fx.Table.(*restless).known = true
			return withSnapshots(t, fx)
		})
	})
	t.Run("Sigsegv", func(t *testing.T) {
		notInShort(t)
		runSuite(t, func(t testing.TB) Fixture {
			return withSnapshots(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, undisturbed))
		})
	})
	t.Run("Uffd", func(t *testing.T) {
		notInShort(t)
		runSuite(t, func(t testing.TB) Fixture { return withSnapshots(t, newFixture(t)) })
	})
}

// faint is a Sink that gives the snapshot up when a page of it is freed.
type faint struct {
	nowhere
	t *testing.T
	s *snapshot.Table
}

func (f *faint) Lost(pagetable.Page) {
	if err := f.s.End(true); err != nil {
		f.t.Error(err)
	}
}

// fourTaken begins a snapshot for a sink, and seals it with pages 4 to 7 in it.
func fourTaken(t *testing.T, sink func(*snapshot.Table) snapshot.Sink) *snapshot.Table {
	f := pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: 16})
	s := snapshot.New(f)
	t.Cleanup(func() { s.Close() })
	s.Begin(sink(s), true)
	for p := pagetable.Page(4); p < 8; p++ {
		isOver(t)(f.Install(p, bytes.Repeat([]byte{9}, 4096), true, pagetable.AllProcs))
		if is, err := s.Take(p, true); !is || err != nil {
			t.Fatalf("page %d is taken: %t, %v", p, is, err)
		}
	}
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDropEndsSnapshot: pages that are freed before they are handed over end a snapshot once.
func TestDropEndsSnapshot(t *testing.T) {
	s := fourTaken(t, func(s *snapshot.Table) snapshot.Sink { return &faint{t: t, s: s} })
	isOver(t)(s.Drop(4, 4))
	if left, err := s.More(); left || err != nil {
		t.Errorf("after that there is more: %t, %v", left, err)
	}
}

// full is a Sink that gives the snapshot up at the first page that it takes, and counts its
// buffers.
type full struct {
	faint
	lent int
}

func (f *full) Buffer(bool) []byte { f.lent++; return make([]byte, 4096) }

func (f *full) Recycle([]byte) { f.lent-- }

func (f *full) Take(p pagetable.Page, buf []byte) {
	f.Recycle(buf)
	f.Lost(p)
}

// TestTakeEndsSnapshot: a sink that takes pages gives the snapshot up in the middle of a run. It is
// handed nothing more, and has its buffers back.
func TestTakeEndsSnapshot(t *testing.T) {
	var sink *full
	s := fourTaken(t, func(s *snapshot.Table) snapshot.Sink {
		sink = &full{faint: faint{t: t, s: s}}
		return sink
	})
	for range 2 {
		if _, err := s.More(); err != nil {
			t.Fatal(err)
		}
	}
	if sink.lent != 0 {
		t.Errorf("%d buffers are left with the table", sink.lent)
	}
	isOver(t)(s.Drop(4, 4))
}
