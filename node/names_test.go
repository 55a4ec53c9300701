package node

import (
	"testing"

	"dsmd/internal/attach"
)

// TestBindWaitsForWhatIsFreed: what a program asks for fits only when the memory of another is free
// that has just ended. It waits for that, as do those that ask for the same, or for less, after it;
// and one that asks for more than there will be is refused.
func TestBindWaitsForWhatIsFreed(t *testing.T) {
	const small, large = testPages / 64, testPages * 40 / 64
	c := start(t, setup{nodes: 2, ranks: 4})
	a, b, d := c.members[1].join(), c.members[0].join(), c.members[0].join()
	a.bind("small", small)
	a.bind("large", large)
	if first := b.bind("small", small); first != 0 {
		t.Fatalf("small is at page %d", first)
	}
	c.net.Stall(0, 1) // nobody learns that memory is being freed
	before := c.members[0].counter("messages_received")
	a.die()
	eventually(t, "the program's end is known", func() bool { return c.members[0].counter("messages_received") > before })
	c.members[0].ask()
	_, first := b.call(bindCall("large", large*512))
	b.sync()
	_, second := d.call(bindCall("large", large*512))
	cancelled, third := d.call(bindCall("other", small*512))
	d.sync()
	_, more := b.call(bindCall("more", (testPages-small+1)*512))
	b.sync()
	select {
	case r := <-first:
		t.Fatalf("while memory is being freed the answer is %v", r.Status)
	default:
	}
	d.cancel(cancelled)
	if r := d.answer(third); r.Status != attach.StatusCanceled {
		t.Fatalf("a cancelled call: %v", r.Status)
	}
	c.net.Resume(0, 1)
	for _, answer := range []chan attach.Reply{first, second} {
		if r := b.answer(answer); r.Status != attach.StatusOK {
			t.Errorf("when memory was freed the answer is %v", r.Status)
		}
	}
	if r := b.answer(more); r.Status != attach.StatusNoSpace {
		t.Errorf("more than there is: %v", r.Status)
	}
	b.die()
	d.die()
	eventually(t, "all memory is free", func() bool {
		e := c.members[0].join()
		defer e.die()
		r := e.do(bindCall("all", testPages*512))
		return r.Status == attach.StatusOK
	})
	c.quiet()
}
