package backing

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
)

// await awaits a page.
func await(t *testing.T, table *Table, p pagetable.Page, writable bool) {
	t.Helper()
	if err := table.Await(p, writable, 1); err != nil {
		t.Fatalf("page %d: %v", p, err)
	}
}

// deliveries counts what is delivered, and what of it is over.
type deliveries struct {
	*Table
	made, over int
}

func (d *deliveries) deliver(p pagetable.Page, contents []byte, why error) {
	d.made++
	d.Deliver(p, contents, why, func() {
		d.over++
		clear(contents) // it is the caller's again
	})
}

// TestAwait: pages come with the contents that are delivered, in any order, and are not used before
// Poll. Each has an event of its own, and the contents are the caller's again after that.
func TestAwait(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		d := deliveries{Table: table}
		for _, p := range all() {
			await(t, table, p, true)
			if table.Spilled(p) || table.Loading() != 0 || table.Unloaded(p) {
				t.Fatalf("page %d is taken for spilled: %t; %d pages for such that come back", p, table.Spilled(p), table.Loading())
			}
		}
		if n, err := table.Poll(make([]pagetable.Event, 8)); n != 0 || err != nil {
			t.Fatalf("%d events before anything was delivered, %v", n, err)
		}
		for i, p := range rand.Perm(pages) {
			d.deliver(pagetable.Page(p), filled(pagetable.Page(p)), nil)
			if d.over != 0 {
				t.Fatalf("%d of %d are over before Poll", d.over, i)
			}
		}
		came := map[pagetable.Page]bool{}
		for _, ev := range ended(t, table, pages) {
			if ev.Kind != pagetable.Completed || ev.Op != pagetable.OpInstall || ev.Err != nil || came[ev.Page] {
				t.Fatalf("%+v", ev)
			}
			came[ev.Page] = true
		}
		if d.over != pages || table.touches(0, pages) {
			t.Errorf("%d of %d are over", d.over, pages)
		}
		want(t, table)
		clean(t, table)
		d.deliver(7, filled(8), nil) // nobody awaits it
		d.deliver(8, filled(9), errors.New("lost"))
		if d.over != pages+2 {
			t.Errorf("what nobody awaits is kept: %d are over", d.over)
		}
		if n, err := table.Poll(make([]pagetable.Event, 8)); n != 0 || err != nil {
			t.Errorf("%d events of what nobody awaits, %v", n, err)
		}
		want(t, table)
	})
}

// runsBeneath notes how many pages each run has that is installed.
type runsBeneath struct {
	pagetable.Table
	installed []int
}

func (r *runsBeneath) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
	if run.Op == pagetable.OpInstall {
		r.installed = append(r.installed, run.Count)
	}
	return r.Table.Operate(run, outcomes)
}

// TestAwaitInRuns: neighbours that are delivered before a Poll are installed together, in whatever
// order they are delivered; not those of which somebody wants more, that are to be otherwise, or
// that fail.
func TestAwaitInRuns(t *testing.T) {
	beneath := &runsBeneath{Table: pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: pages})}
	table, _, err := New(beneath, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	d := deliveries{Table: table}
	const longest = pagetable.MaxRunBytes / 4096
	for p := range pagetable.Page(2 * longest) {
		await(t, table, p, p >= longest)
	}
	for _, p := range rand.Perm(2 * longest) {
		d.deliver(pagetable.Page(p), filled(pagetable.Page(p)), nil)
	}
	ended(t, table, 2*longest)
	if !slices.Equal(beneath.installed, []int{longest, longest}) {
		t.Errorf("installed were runs of %v pages", beneath.installed)
	}
	beneath.installed = nil
	for p := pagetable.Page(100); p < 109; p++ {
		await(t, table, p, false)
	}
	if out, err := table.Map(102, false, 1); out != pagetable.Pending || err != nil {
		t.Fatal(out, err)
	}
	for p := pagetable.Page(100); p < 109; p++ {
		why := error(nil)
		if p == 106 {
			why = errors.New("no such luck")
		}
		d.deliver(p, filled(p), why)
	}
	for _, ev := range ended(t, table, 10) {
		if (ev.Err != nil) != (ev.Page == 106) {
			t.Errorf("%+v", ev)
		}
	}
	slices.Sort(beneath.installed)
	if !slices.Equal(beneath.installed, []int{2, 2, 3}) {
		t.Errorf("beside one that is wanted and one that fails, installed were runs of %v pages", beneath.installed)
	}
	got := make([]byte, 4096)
	for p := pagetable.Page(100); p < 109; p++ {
		if err := table.Read(p, got); err != nil || p != 106 && !bytes.Equal(got, filled(p)) {
			t.Errorf("page %d holds %d, %v", p, got[0], err)
		}
	}
	clean(t, table)
}

// TestAwaitFails: a page whose contents don't come is absent as before, the event says why, and
// what has waited for it fails, too. It can be awaited again.
func TestAwaitFails(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		d := deliveries{Table: table}
		lost := errors.New("the node is lost")
		await(t, table, 3, true)
		if out, err := table.Map(3, true, 1); out != pagetable.Pending || err != nil {
			t.Fatal(out, err)
		}
		d.deliver(3, nil, lost)
		list := ended(t, table, 2)
		for i, op := range []pagetable.Op{pagetable.OpInstall, pagetable.OpMap} {
			if ev := list[i]; ev.Op != op || ev.Page != 3 || !errors.Is(ev.Err, lost) || ev.Err.Error() != "backing: the node is lost" {
				t.Errorf("%+v, want the end of %v", ev, op)
			}
		}
		clean(t, table)
		await(t, table, 3, true)
		d.deliver(3, filled(3), nil)
		if ev := ended(t, table, 1)[0]; ev.Err != nil || d.over != 2 {
			t.Errorf("then %+v, and %d are over", ev, d.over)
		}
		got := make([]byte, 4096)
		if err := table.Read(3, got); err != nil || !bytes.Equal(got, filled(3)) {
			t.Errorf("page 3 holds %d, %v", got[0], err)
		}
	})
}

// TestOperationsWaitForAwait: what is done to a page that is awaited is done when it is there, in
// order.
func TestOperationsWaitForAwait(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		d := deliveries{Table: table}
		taken := make([]byte, 4096)
		ops := []pagetable.Operation{
			{Op: pagetable.OpMap, Proc: 1}, {Op: pagetable.OpMakeWritable}, {Op: pagetable.OpDowngrade}, {Op: pagetable.OpRevoke, Into: taken},
		}
		for _, p := range []pagetable.Page{5, 6} { // two, so that they could be installed together
			await(t, table, p, false)
		}
		for _, o := range ops {
			o.Page = 5
			if out, err := pagetable.Perform(table, &o); out != pagetable.Pending || err != nil {
				t.Fatalf("%v: %v, %v", o.Op, out, err)
			}
		}
		d.deliver(6, filled(6), nil)
		d.deliver(5, filled(5), nil)
		var order []pagetable.Op
		for _, ev := range ended(t, table, 2+len(ops)) {
			if ev.Err != nil {
				t.Fatal(ev.Err)
			}
			if ev.Page == 5 {
				order = append(order, ev.Op)
			}
		}
		if !slices.Equal(order, []pagetable.Op{pagetable.OpInstall, pagetable.OpMap, pagetable.OpMakeWritable, pagetable.OpDowngrade, pagetable.OpRevoke}) {
			t.Errorf("they end as %v", order)
		}
		if !bytes.Equal(taken, filled(5)) {
			t.Errorf("what is taken holds %d", taken[0])
		}
		clean(t, table)
	})
}

// TestDropOfWhatIsAwaited: a page that is freed while it is awaited, or after it was delivered,
// ends its Install, and can be awaited anew at once. What was delivered for the first has no
// effect.
func TestDropOfWhatIsAwaited(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		d := deliveries{Table: table}
		for range 20 {
			for _, p := range all() {
				await(t, table, p, true)
				if p%2 == 0 {
					d.deliver(p, filled(p+1), nil)
				}
			}
			polled := 0
			if rand.IntN(2) == 0 {
				n, err := table.Poll(make([]pagetable.Event, 8)) // some may be in memory
				if err != nil {
					t.Fatal(err)
				}
				polled = n
			}
			out, err := table.Drop(0, pages)
			if err != nil {
				t.Fatal(err)
			}
			events := pages - polled
			if out == pagetable.Pending {
				events++
			}
			for _, p := range all() {
				if p%2 == 1 && polled == 0 && out == pagetable.Done {
					await(t, table, p, true) // before the events are polled
				}
			}
			ended(t, table, events)
			if d.made != d.over {
				t.Fatalf("%d are delivered, and %d are over", d.made, d.over)
			}
			for _, p := range all() {
				if !table.touches(p, 1) {
					await(t, table, p, true)
				}
				d.deliver(p, filled(p), nil)
			}
			ended(t, table, pages)
			want(t, table)
			clean(t, table)
			if out, err := table.Drop(0, pages); err != nil {
				t.Fatal(err)
			} else if out == pagetable.Pending {
				ended(t, table, 1)
			}
		}
	})
}

// TestAwaitTwice: who awaits a page that is on its way, or here, is told so.
func TestAwaitTwice(t *testing.T) {
	table := empty(t, false, false)
	await(t, table, 3, true)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a page is awaited twice")
			}
		}()
		_ = table.Await(3, true, 1)
	}()
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	if err := table.Await(4, true, 1); !errors.Is(err, pagetable.ErrClosed) {
		t.Errorf("Await after Close: %v", err)
	}
}
