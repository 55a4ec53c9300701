package backing

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"dsmd/pagetable"
)

// unloadable is a table all of whose pages are present, read-only, and as in a file, or elsewhere.
type unloadable struct {
	*Table
	t          *testing.T
	deliveries deliveries
	asked      []pagetable.Page // of Fetch
	left, came int
}

func newUnloadable(t *testing.T, table *Table, elsewhere bool) *unloadable {
	t.Helper()
	u := &unloadable{Table: table, t: t, deliveries: deliveries{Table: table}}
	f := contents(t)
	table.Origin = func(p pagetable.Page) Location {
		if elsewhere {
			return Elsewhere
		}
		return in(f, p)
	}
	table.Fetch = func(p pagetable.Page) { u.asked = append(u.asked, p) }
	table.Left, table.Came = func(pagetable.Page) { u.left++ }, func(pagetable.Page) { u.came++ }
	for _, p := range all() {
		if out, err := table.Install(p, filled(p), false, 1); err != nil {
			t.Fatal(err)
		} else if out == pagetable.Pending {
			ended(t, table, 1)
		}
	}
	return u
}

// unload has pages leave, and waits until they have.
func (u *unloadable) unload(list ...pagetable.Page) {
	u.t.Helper()
	before := u.left
	if n, err := u.Unload(list...); n != len(list) || err != nil {
		u.t.Fatalf("%d of %d pages leave, %v", n, len(list), err)
	}
	until(u.t, u.Table, "they have left", func(events []pagetable.Event) bool {
		if len(events) > 0 {
			u.t.Fatalf("%+v, and nobody has asked for anything", events)
		}
		return u.left == before+len(list)
	})
}

// deliver delivers what was asked for, in any order, and returns how much that was.
func (u *unloadable) deliver() int {
	list := u.asked
	u.asked = nil
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, p := range list {
		u.deliveries.deliver(p, filled(p), nil)
	}
	return len(list)
}

// do does an operation that must end later, or at once.
func (u *unloadable) do(want pagetable.Outcome, o pagetable.Operation) {
	u.t.Helper()
	if out, err := pagetable.Perform(u.Table, &o); out != want || err != nil {
		u.t.Fatalf("%v of page %d: %v, %v, want %v", o.Op, o.Page, out, err, want)
	}
}

// forAllUnloadable runs a test on tables of all kinds, whose pages are in a file or elsewhere.
func forAllUnloadable(t *testing.T, f func(t *testing.T, u *unloadable, elsewhere bool)) {
	for _, elsewhere := range []bool{false, true} {
		t.Run(map[bool]string{false: "File", true: "Elsewhere"}[elsewhere], func(t *testing.T) {
			forAll(t, func(t *testing.T, table *Table) { f(t, newUnloadable(t, table, elsewhere), elsewhere) })
		})
	}
}

// TestReadOfWhatUnloads: pages that are leaving are read where they are, though memory has them no
// longer and Poll has not said so yet.
func TestReadOfWhatUnloads(t *testing.T) {
	forAllUnloadable(t, func(t *testing.T, u *unloadable, elsewhere bool) {
		if n, err := u.Unload(all()...); n != pages || err != nil {
			t.Fatalf("%d of %d pages leave, %v", n, pages, err)
		}
		got := make([]byte, 4096)
		for u.left < pages {
			if _, err := u.Poll(make([]pagetable.Event, 1)); err != nil {
				t.Fatal(err)
			}
			for _, p := range all() {
				if err := u.Read(p, got); elsewhere != errors.Is(err, errElsewhere) || !elsewhere && !bytes.Equal(got, filled(p)) {
					t.Fatalf("page %d of %d, of which %d have left, is read as %d, %v", p, pages, u.left, got[0], err)
				}
			}
		}
	})
}

// TestUnload: pages leave together, are written nowhere, and count as present. They come back when
// somebody wants them, and then count as pages that come back.
func TestUnload(t *testing.T) {
	forAllUnloadable(t, func(t *testing.T, u *unloadable, elsewhere bool) {
		for round := range 3 {
			list := all()
			if round == 1 { // not neighbours
				list = slices.DeleteFunc(list, func(p pagetable.Page) bool { return p%3 != 0 })
			}
			u.unload(list...)
			if n, err := u.Unload(list...); n != 0 || err != nil {
				t.Errorf("%d pages leave once more, %v", n, err)
			}
			for _, p := range list {
				if !u.Spilled(p) || !u.Unloaded(p) || u.Stored() != 0 {
					t.Fatalf("page %d: spilled %t, unloaded %t; %d are in the spill file", p, u.Spilled(p), u.Unloaded(p), u.Stored())
				}
			}
			got := make([]byte, 4096)
			if err := u.Read(list[1], got); elsewhere != errors.Is(err, errElsewhere) || !elsewhere && !bytes.Equal(got, filled(list[1])) {
				t.Errorf("it is read as %d, %v", got[0], err)
			}
			for _, p := range list {
				u.do(pagetable.Done, pagetable.Operation{Op: pagetable.OpDowngrade, Page: p})
				u.do(pagetable.Pending, pagetable.Operation{Op: pagetable.OpMap, Page: p, Proc: 1})
			}
			if u.Loading() != len(list) || !u.Unloaded(list[0]) || u.Spilled(list[0]) {
				t.Errorf("%d pages of %d are on their way back", u.Loading(), len(list))
			}
			u.Flush()
			if n := u.deliver(); elsewhere && n != len(list) || !elsewhere && n != 0 {
				t.Errorf("%d pages were asked for elsewhere", n)
			}
			for _, ev := range ended(t, u.Table, len(list)) {
				if ev.Op != pagetable.OpMap || ev.Err != nil {
					t.Fatalf("%+v", ev)
				}
			}
			if u.came != u.left || u.Unloaded(list[0]) || u.deliveries.made != u.deliveries.over {
				t.Errorf("%d pages have left, and %d have come back; %d were delivered, %d are over", u.left, u.came, u.deliveries.made, u.deliveries.over)
			}
			want(t, u.Table)
			clean(t, u.Table)
		}
	})
}

// TestOperationsOnUnloaded: each operation on a page that has left, or is just leaving, does what
// it does to one in memory.
func TestOperationsOnUnloaded(t *testing.T) {
	taken := make([]byte, 4096)
	for name, o := range map[string]pagetable.Operation{
		"take": {Op: pagetable.OpRevoke, Into: taken}, "revoke": {Op: pagetable.OpRevoke},
		"makeWritable": {Op: pagetable.OpMakeWritable}, "map": {Op: pagetable.OpMap, Proc: 1},
	} {
		for _, early := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "", true: "Early"}[early], func(t *testing.T) {
				forAllUnloadable(t, func(t *testing.T, u *unloadable, elsewhere bool) {
					o.Page = 9
					clear(taken)
					if early {
						if n, err := u.Unload(8, 9, 10); n != 3 || err != nil {
							t.Fatal(n, err)
						}
					} else {
						u.unload(8, 9, 10)
					}
					out, err := pagetable.Perform(u.Table, &o)
					if err != nil || out == pagetable.Done && (o.Op != pagetable.OpRevoke || o.Into != nil) {
						t.Fatal(out, err)
					}
					var list []pagetable.Event
					until(t, u.Table, "it is over", func(events []pagetable.Event) bool {
						u.deliver()
						list = append(list, events...)
						return out == pagetable.Done && u.left == 3 || len(list) > 0
					})
					if len(list) > 1 || len(list) == 1 && (list[0].Op != o.Op || list[0].Page != 9 || list[0].Err != nil) {
						t.Fatalf("%+v", list)
					}
					if o.Into != nil && !bytes.Equal(taken, filled(9)) {
						t.Errorf("what was taken holds %d", taken[0])
					}
					if u.Unloaded(9) || u.Spilled(9) || !u.Unloaded(8) || !u.Unloaded(10) {
						t.Errorf("page 9 is unloaded, %t, spilled, %t, its neighbours %t, %t", u.Unloaded(9), u.Spilled(9), u.Unloaded(8), u.Unloaded(10))
					}
					if o.Op == pagetable.OpRevoke {
						if out, err := u.Install(9, filled(99), true, 1); err != nil {
							t.Fatal(err)
						} else if out == pagetable.Pending {
							ended(t, u.Table, 1)
						}
					}
					got, want := make([]byte, 4096), filled(9)
					if o.Op == pagetable.OpRevoke {
						want = filled(99)
					}
					if err := u.Read(9, got); err != nil || !bytes.Equal(got, want) {
						t.Errorf("page 9 holds %d, %v", got[0], err)
					}
					clean(t, u.Table)
				})
			})
		}
	}
}

// TestOperationsQueueForUnloaded: what is done to a page that comes back waits, in order.
func TestOperationsQueueForUnloaded(t *testing.T) {
	forAllUnloadable(t, func(t *testing.T, u *unloadable, elsewhere bool) {
		u.unload(4)
		taken := make([]byte, 4096)
		ops := []pagetable.Operation{
			{Op: pagetable.OpMap, Page: 4, Proc: 1}, {Op: pagetable.OpMakeWritable, Page: 4}, {Op: pagetable.OpDowngrade, Page: 4},
			{Op: pagetable.OpRevoke, Page: 4, Into: taken},
		}
		for _, o := range ops {
			u.do(pagetable.Pending, o)
		}
		if elsewhere && !slices.Equal(u.asked, []pagetable.Page{4}) {
			t.Errorf("asked for are %v", u.asked)
		}
		u.deliver()
		for i, ev := range ended(t, u.Table, len(ops)) {
			if ev.Op != ops[i].Op || ev.Err != nil {
				t.Errorf("%+v, want the end of %v", ev, ops[i].Op)
			}
		}
		if !bytes.Equal(taken, filled(4)) || u.Unloaded(4) {
			t.Errorf("what was taken holds %d; it is unloaded: %t", taken[0], u.Unloaded(4))
		}
		clean(t, u.Table)
	})
}

// TestDropOfUnloaded: pages are freed that have left, are leaving, or are on their way back. What
// comes later is nobody's, and the pages are absent.
func TestDropOfUnloaded(t *testing.T) {
	forAllUnloadable(t, func(t *testing.T, u *unloadable, elsewhere bool) {
		u.unload(all()[:200]...)
		events := 0
		for p := range pagetable.Page(100) {
			u.do(pagetable.Pending, pagetable.Operation{Op: pagetable.OpMap, Page: p, Proc: 1})
			events++
		}
		if n, err := u.Unload(all()[200:]...); n != pages-200 || err != nil {
			t.Fatal(n, err)
		}
		late := u.asked
		out, err := u.Drop(0, pages)
		if err != nil {
			t.Fatal(err)
		}
		if out == pagetable.Pending {
			events++
		}
		for _, p := range late {
			u.deliveries.deliver(p, filled(p+1), nil)
		}
		ended(t, u.Table, events)
		clean(t, u.Table)
		if u.touches(0, pages) || u.Unloaded(5) || u.Unloaded(150) || u.Unloaded(250) || u.Loading() != 0 || u.deliveries.made != u.deliveries.over {
			t.Errorf("pages are unloaded that are freed: %t, %t, %t", u.Unloaded(5), u.Unloaded(150), u.Unloaded(250))
		}
		for _, p := range all() {
			if out, err := u.Install(p, filled(p), true, 1); err != nil {
				t.Fatal(err)
			} else if out == pagetable.Pending {
				ended(t, u.Table, 1)
			}
		}
		want(t, u.Table)
	})
}

// TestUnloadedFails: a page whose contents don't come back stays unloaded, what has waited for it
// fails, and it can be wanted again.
func TestUnloadedFails(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		u := newUnloadable(t, table, true)
		u.unload(6)
		lost := errors.New("lost")
		u.do(pagetable.Pending, pagetable.Operation{Op: pagetable.OpMap, Page: 6, Proc: 1})
		u.deliveries.deliver(6, nil, lost)
		if ev := ended(t, table, 1)[0]; ev.Op != pagetable.OpMap || !errors.Is(ev.Err, lost) {
			t.Errorf("%+v", ev)
		}
		if !u.Unloaded(6) || !u.Spilled(6) || u.Loading() != 0 {
			t.Errorf("it is unloaded, %t, spilled, %t; %d are on their way back", u.Unloaded(6), u.Spilled(6), u.Loading())
		}
		u.asked = nil
		// What is fetched may also be there at once.
		table.Fetch = func(p pagetable.Page) { u.deliveries.deliver(p, filled(p), nil) }
		u.do(pagetable.Pending, pagetable.Operation{Op: pagetable.OpMakeWritable, Page: 6})
		if ev := ended(t, table, 1)[0]; ev.Op != pagetable.OpMakeWritable || ev.Err != nil {
			t.Errorf("%+v", ev)
		}
		want(t, table)
		clean(t, table)
	})
}

// TestUnloadNotThose: pages don't leave about which something is under way.
func TestUnloadNotThose(t *testing.T) {
	table := empty(t, true, true)
	u := newUnloadable(t, table, false)
	u.do(pagetable.Pending, pagetable.Operation{Op: pagetable.OpMakeWritable, Page: 3})
	if n, err := u.Spill(5); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := u.Unload(2, 3, 4, 5, 6); n != 3 || err != nil || u.Unloaded(3) || u.Unloaded(5) {
		t.Errorf("%d pages leave, of which one is being made writable and one is spilled, %v", n, err)
	}
	until(t, table, "all have left", func([]pagetable.Event) bool { return u.left == 4 && u.Stored() == 1 })
	want(t, table)
}
