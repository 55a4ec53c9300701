package pagetable_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/pagetable"
)

// TestLostPageWithoutPoison: where the kernel can't make an access fail (before Linux 6.6), a
// program that waits for a lost page is given up, so that its daemon ends it: it goes on neither
// with zeros nor for ever. Others, which touch no such page, are served.
func TestLostPageWithoutPoison(t *testing.T) {
	fx := flakyFixture(t, pagetable.Config{Pages: RegionPages}, flaky{noPoison: true})
	r := NewRig(t, fx)
	p, pid := r.Start()
	q, qid := r.Start()
	load := p.Load(4, 0)
	r.Fault(pid, 4, false)
	r.Lose(4)
	gone := r.UntilGone("the program that waits for a lost page")
	if gone.Proc != pid || !errors.Is(gone.Err, pagetable.ErrNoPoison) {
		t.Errorf("got %+v, want that program %d is gone with ErrNoPoison", gone, pid)
	}
	r.StillWaits(load, "its page is lost")
	r.Want(r.Value(r.Installed(q, qid, 5, 6, true)), 6, "the word of another program")
	r.Table().Detach(pid, false)
}

// TestSystemCallOnLostPage: the kernel's own access to a lost page fails as the program's does.
func TestSystemCallOnLostPage(t *testing.T) {
	b := newLab(t)
	p, _ := b.start()
	b.Lose(4)
	for _, call := range []command{cmdWriteCall, cmdReadCall} {
		for round := range 2 {
			if _, err := b.Result(p.order(call, 4, 0, 1)); !errors.Is(err, unix.EFAULT) {
				t.Errorf("system call %d, round %d, on a lost page: %v, want EFAULT", call, round, err)
			}
		}
	}
	b.Fails(p.Load(4, 0), "a load")
}

// TestLoseOfStrayPage: a program has the memory file, and can make a page present there that was
// never installed. Such a page is no copy, so it can be declared lost like any other that is
// absent, and nobody is given what the program put there.
func TestLoseOfStrayPage(t *testing.T) {
	for name, fixture := range map[string]func(t *testing.T) Fixture{
		"uffd": func(t *testing.T) Fixture { return newFixture(t) },
		"sigsegv": func(t *testing.T) Fixture {
			return sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, undisturbed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRig(t, fixture(t))
			p, pid := r.Start()
			q, _ := r.Start()
			load := p.Load(4, 0)
			r.Fault(pid, 4, false)
			if _, err := unix.Pwrite(r.Table().MemFD(), r.Filled(9), int64(4*r.Table().PageBytes())); err != nil {
				t.Fatal(err)
			}
			r.Lose(4)
			r.Fails(load, "a load that waited")
			r.Fails(q.Store(4, 0, 1), "a store of another program")
			r.Want(Word(r.Read(4), 0), 0, "a word of the lost page in the table")
			r.Install(4, r.Filled(7), false, pid)
			r.Want(r.Value(q.Load(4, 0)), 7, "the word installed at last")
		})
	}
}
