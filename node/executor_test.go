package node

import (
	"fmt"
	"slices"
	"testing"

	"dsmd/pagetable"
	"dsmd/protocol"
)

// diary is a table that does nothing and notes what it was asked for.
type diary struct {
	*bareTable
	calls   []string
	pages   map[pagetable.Op]map[pagetable.Page]int // how often an operation was done to a page
	pending bool                                    // operations come to no end
}

// opRead stands for reading, which is no operation, in a diary.
const opRead pagetable.Op = 0

// keepDiary puts a diary in the place of a node's table.
func keepDiary(n *Node) *diary {
	d := &diary{bareTable: n.drive.exec.store.Table.(*bareTable), pages: map[pagetable.Op]map[pagetable.Page]int{}}
	n.drive.exec.table = d
	return d
}

func (d *diary) note(op pagetable.Op, first pagetable.Page, count int) (pagetable.Outcome, error) {
	what := "read"
	if op != opRead {
		what = op.String()
	}
	d.calls = append(d.calls, fmt.Sprintf("%s %d+%d", what, first, count))
	if d.pages[op] == nil {
		d.pages[op] = map[pagetable.Page]int{}
	}
	for i := range count {
		d.pages[op][first+pagetable.Page(i)]++
	}
	if d.pending {
		return pagetable.Pending, nil
	}
	return pagetable.Done, nil
}

func (d *diary) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
	out, err := d.note(run.Op, run.First, run.Count)
	for i := range outcomes {
		outcomes[i] = out
	}
	return err
}

func (d *diary) Install(p pagetable.Page, _ []byte, _ bool, _ pagetable.ProcID) (pagetable.Outcome, error) {
	return d.note(pagetable.OpInstall, p, 1)
}
func (d *diary) MakeWritable(p pagetable.Page) (pagetable.Outcome, error) {
	return d.note(pagetable.OpMakeWritable, p, 1)
}
func (d *diary) Downgrade(p pagetable.Page) (pagetable.Outcome, error) {
	return d.note(pagetable.OpDowngrade, p, 1)
}
func (d *diary) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	if err := d.bareTable.Read(p, into); err != nil {
		return pagetable.Done, err
	}
	return d.note(pagetable.OpRevoke, p, 1)
}
func (d *diary) Read(first pagetable.Page, into ...[]byte) error {
	if _, err := d.note(opRead, first, len(into)); err != nil {
		return err
	}
	return d.bareTable.Read(first, into...)
}

// TestNeighboursTogether: what a walk over an array makes two nodes do to many pages is done by few
// calls, to each page once.
func TestNeighboursTogether(t *testing.T) {
	const pages = 60
	for _, write := range []bool{false, true} {
		t.Run(fmt.Sprintf("write=%v", write), func(t *testing.T) {
			p := newPair(t)
			for _, n := range p.nodes {
				withoutHolds(n) // they are waiting, and would part what comes together
				n.intake.extents.Add(0, pages, "")
			}
			for page := range pagetable.Page(pages) {
				p.gain(0, page, true)
			}
			there, here := keepDiary(p.nodes[0]), keepDiary(p.nodes[1])
			p.thread = 1 << 20
			for page := range pagetable.Page(pages) {
				if p.nodes[1].drive.engine.Access(protocol.PageObject(uint64(page))) == protocol.None {
					p.gain(1, page, write)
					p.thread = 1 << 20
				}
			}
			taking := []pagetable.Op{opRead, pagetable.OpDowngrade}
			if write {
				taking = []pagetable.Op{pagetable.OpRevoke}
			}
			for _, op := range taking {
				wantTogether(t, "the owner", there, op, pages)
			}
			wantTogether(t, "the reader", here, pagetable.OpInstall, pages)
		})
	}
}

func wantTogether(t *testing.T, who string, d *diary, op pagetable.Op, pages int) {
	t.Helper()
	if len(d.pages[op]) != pages {
		t.Errorf("%s did it to %d pages, want %d: %v", who, len(d.pages[op]), pages, d.calls)
	}
	for page, times := range d.pages[op] {
		if times != 1 {
			t.Errorf("%s did it to page %d %d times: %v", who, page, times, d.calls)
		}
	}
	name := "read "
	if op != opRead {
		name = op.String() + " "
	}
	calls := 0
	for _, call := range d.calls {
		if len(call) > len(name) && call[:len(name)] == name {
			calls++
		}
	}
	if calls > pages/3 {
		t.Errorf("%s took %d calls for %d pages: %v", who, calls, pages, d.calls)
	}
}

// TestBatchesKeepTheOrder: what is to be sent is read before anything is done to the page, nothing
// overtakes it, and a batch ends where the next page or another operation does not continue it.
func TestBatchesKeepTheOrder(t *testing.T) {
	n := newPair(t).nodes[0]
	d := keepDiary(n)
	d.pending = true // so that the engine, which has decided none of this, hears nothing of it
	out := n.net.Transport.(*ringNet).out
	grant := func(page uint64) {
		n.drive.exec.send(&protocol.Effect{Source: protocol.SourcePage, Message: protocol.Grant{Access: protocol.Read, Contents: protocol.PageContents}.To(1, protocol.PageObject(page))})
	}
	operate := func(op pagetable.Op, page pagetable.Page) {
		n.drive.exec.start(pagetable.Operation{Op: op, Page: page, Proc: 1})
	}
	grant(5)
	grant(6)
	grant(9)
	operate(pagetable.OpDowngrade, 3)
	operate(pagetable.OpDowngrade, 4)
	operate(pagetable.OpMakeWritable, 5) // another operation
	operate(pagetable.OpMakeWritable, 7) // not the next page
	if got, want := d.calls, []string{"read 5+2", "read 9+1", "downgrade 3+2", "make writable 5+1"}; !slices.Equal(got, want) {
		t.Errorf("within the turn the table was asked for %q, want %q", got, want)
	}
	grant(20)
	n.drive.exec.send(&protocol.Effect{Message: protocol.Done{Access: protocol.Read}.To(1, protocol.PageObject(21))})
	n.drive.end()
	if got, want := d.calls[4:], []string{"read 20+1", "make writable 7+1"}; !slices.Equal(got, want) {
		t.Errorf("at its end the table was asked for %q, want %q", got, want)
	}
	var order []uint64
	for i := range out.tail {
		m, err := protocol.DecodeMessage(out.frames[i].control)
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, m.Object.Page())
	}
	if want := []uint64{5, 6, 9, 20, 21}; !slices.Equal(order, want) {
		t.Errorf("sent about pages %v, want %v", order, want)
	}
}

// TestFullBatchLeavesAtOnce: a peer gets the pages of a batch while the next are still dealt with.
func TestFullBatchLeavesAtOnce(t *testing.T) {
	n := newPair(t).nodes[0]
	d := keepDiary(n)
	out := n.net.Transport.(*ringNet).out
	most := n.drive.exec.batch.most
	for page := range most + 1 {
		n.drive.exec.send(&protocol.Effect{Source: protocol.SourcePage, Message: protocol.Grant{Access: protocol.Read, Contents: protocol.PageContents}.To(1, protocol.PageObject(uint64(page)))})
	}
	if out.flushed != most {
		t.Errorf("within the turn %d of %d pages have left, want %d", out.flushed, most+1, most)
	}
	n.drive.end()
	n.drive.exec.out.flush()
	if out.flushed != most+1 {
		t.Errorf("after the turn %d of %d pages have left", out.flushed, most+1)
	}
	if want := []string{fmt.Sprintf("read 0+%d", most), fmt.Sprintf("read %d+1", most)}; !slices.Equal(d.calls, want) {
		t.Errorf("the table was asked for %q, want %q", d.calls, want)
	}
}

// TestLongBatchComesAfterMessages: what waits to be sent leaves before a long batch is operated on,
// and stays together with what follows from a short one.
func TestLongBatchComesAfterMessages(t *testing.T) {
	for _, count := range []int{1, longBatch - 1, longBatch} {
		n := newPair(t).nodes[0]
		keepDiary(n).pending = true
		n.drive.exec.send(&protocol.Effect{Message: protocol.Request{Access: protocol.Read}.To(1, protocol.PageObject(30))})
		for page := range pagetable.Page(count) {
			n.drive.exec.start(pagetable.Operation{Op: pagetable.OpDowngrade, Page: page})
		}
		n.drive.end()
		left := n.net.Transport.(*ringNet).out.flushed
		if want := count / longBatch; left != want {
			t.Errorf("with a batch of %d pages %d messages have left before the end of the look, want %d", count, left, want)
		}
	}
}
