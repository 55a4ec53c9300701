package pagetable_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
)

// TestLostPageWithoutPoison: where the kernel can't make an access fail (before Linux 6.6), a program that waits for a lost page is given up, so that
// its daemon ends it: it goes on neither with zeros nor for ever. Others, which touch no such page, are served.
func TestLostPageWithoutPoison(t *testing.T) {
	fx := flakyFixture(t, pagetable.UffdConfig{Pages: pagetabletest.RegionPages}, flaky{noPoison: true})
	r := pagetabletest.NewRig(t, fx)
	p, pid := r.Start()
	q, qid := r.Start()
	load := p.Load(4, 0)
	r.Fault(pid, 4, false)
	r.Lose(4)
	var gone pagetable.Event
	for deadline := time.Now().Add(10 * time.Second); gone.Kind != pagetable.ProcGone; {
		if time.Now().After(deadline) {
			t.Fatal("the program that waits for a lost page is not reported gone")
		}
		var events [1]pagetable.Event
		n, err := r.Table().Poll(events[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			gone = events[0]
		}
	}
	if gone.Proc != pid || !errors.Is(gone.Err, pagetable.ErrNoPoison) {
		t.Errorf("got %+v, want that program %d is gone with ErrNoPoison", gone, pid)
	}
	r.StillWaits(load, "its page is lost")
	r.Want(r.Value(r.Installed(q, qid, 5, 6, true)), 6, "the word of another program")
	r.Table().Detach(pid)
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

// TestLosePanicsWhenPresent: a page that is here is not lost; to say so is to lose it.
func TestLosePanicsWhenPresent(t *testing.T) {
	for name, open := range map[string]func() (pagetable.Table, error){
		"uffd":    func() (pagetable.Table, error) { return pagetable.NewUffd(pagetable.UffdConfig{Pages: 8}) },
		"sigsegv": func() (pagetable.Table, error) { return pagetable.NewSigsegv(pagetable.SigsegvConfig{Pages: 8}) },
	} {
		t.Run(name, func(t *testing.T) {
			table, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer table.Close()
			data := make([]byte, table.PageBytes())
			done(t)(table.Install(3, data, true, pagetable.AllProcs))
			done(t)(table.Lose(2))
			defer func() {
				if recover() == nil {
					t.Error("a page that is here was declared lost")
				}
			}()
			table.Lose(3)
		})
	}
}
