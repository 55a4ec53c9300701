package pagetable_test

import (
	"os"
	"testing"
	"time"

	"dsmd/internal/uffd/uffdtest"
	"dsmd/pagetable"
)

// TestDetachCutsOffStores: from the moment of Detach no store of the program goes through, without
// any operation. It does not help the program to close its own descriptor. When it has ended, the
// table keeps nothing of it.
func TestDetachCutsOffStores(t *testing.T) {
	b := newLab(t)
	p, pid := b.start()
	q, _ := b.start()
	for page := pagetable.Page(4); page < 6; page++ {
		b.Value(b.Installed(p, pid, page, 1, true))
		b.Value(p.Store(page, 0, 2))
	}
	kernel := new(flaky)
	b.setKernel(pid, kernel)
	b.u.Detach(pid, false)
	store := p.Store(4, 0, 99)
	b.NoEffect([]*Access{store}, "its program was detached")
	b.Value(p.order(cmdCloseTrap, 0, 0, 0))
	b.NoEffect([]*Access{store, p.Store(5, 0, 99), p.Store(6, 0, 99)}, "its program was detached")
	for page := pagetable.Page(4); page < 6; page++ {
		b.Want(b.Value(q.Load(page, 0)), 2, "the word in another program")
	}
	if left, sealing := b.u.LeftCount(); left != 1 || sealing != 0 {
		t.Errorf("%d programs are detached and alive, %d of them unprotected; want 1 and none", left, sealing)
	}
	p.Kill()
	b.start()
	if left, _ := b.u.LeftCount(); left != 0 {
		t.Errorf("%d programs are kept that have ended", left)
	}
	if !kernel.closed {
		t.Error("its descriptor is open")
	}
}

// TestDetachOfProgramThatUnmapped: a program that has left in order leaves no descriptor behind.
func TestDetachOfProgramThatUnmapped(t *testing.T) {
	b := newLab(t)
	_, pid := b.start()
	b.u.Detach(pid, true)
	if left, _ := b.u.LeftCount(); left != 0 {
		t.Errorf("%d programs are kept", left)
	}
}

// TestDetachWithHoles: a program has registered parts of the region only, so the kernel protects it
// part by part.
func TestDetachWithHoles(t *testing.T) {
	b := newLab(t)
	const pid = 1
	p := attachProgram(t, b.u, pid, programOptions{unregistered: true})
	for _, first := range []pagetable.Page{3, 20, 41} {
		b.Value(p.order(cmdRegister, first, 0, 7))
	}
	var written []pagetable.Page
	for _, page := range []pagetable.Page{3, 9, 20, 26, 41, 47} {
		b.Value(b.Installed(p, pid, page, 1, true))
		written = append(written, page)
	}
	b.u.Detach(pid, false)
	var stores []*Access
	for _, page := range written {
		stores = append(stores, p.Store(page, 0, 99))
	}
	b.NoEffect(stores, "its program was detached")
	for _, page := range written {
		b.Want(Word(b.Read(page), 0), 1, "the word in the table")
	}
}

// TestDetachOfLargeProgram: where a program was given more than is protected in one go, the rest
// follows in later polls, and each page before it is given up.
func TestDetachOfLargeProgram(t *testing.T) {
	uffdtest.Require(t)
	const count = 2*pagetable.SealAtOnce + 1
	step := pagetable.Page(pagetable.StretchBytes / os.Getpagesize())
	fx := fixtureOf(t, pagetable.Config{Pages: count * uint64(step)})
	b := lab{NewRig(t, fx), fx.Table.(*pagetable.Uffd)}
	p, pid := b.start()
	for i := range pagetable.Page(count) {
		done(t)(b.u.Install(i*step, nil, true, pid))
	}
	last, other := (count-1)*step, (count-2)*step
	b.Value(p.Store(last, 0, 1))
	b.Value(p.Store(other, 0, 1))
	b.u.Detach(pid, false)
	if _, sealing := b.u.LeftCount(); sealing != 1 {
		t.Error("all was protected in one go, and this test tests nothing")
	}
	done(t)(b.u.Downgrade(last))
	store := p.Store(last, 0, 99)
	var events [8]pagetable.Event
	for sealing := 1; sealing != 0; _, sealing = b.u.LeftCount() {
		awaitReadable(t, b.u.WaitFD(), "there is more to protect")
		if n, err := b.u.Poll(events[:]); n != 0 || err != nil {
			t.Fatalf("polled %+v, %v; want nothing", events[:n], err)
		}
	}
	b.NoEffect([]*Access{store, p.Store(other, 0, 99)}, "its program was detached, and all was protected")
	b.Want(Word(b.Read(last), 0), 1, "the word of the last page")
	b.Want(Word(b.Read(other), 0), 1, "the word of the last page but one")
	if waitReadable(t, b.u.WaitFD(), 0) {
		t.Error("WaitFD is readable without anything to report")
	}
}

// TestDetachOfProgramThatRefuses: a detached program whose address space is always changing, as
// only one can make it appear that has opened its userfaultfd by rules of its own, holds nobody up
// for ever.
func TestDetachOfProgramThatRefuses(t *testing.T) {
	t.Parallel()
	b := newLab(t)
	p, pid := b.start()
	b.Value(b.Installed(p, pid, 4, 1, true))
	b.setKernel(pid, &flaky{eagain: 1 << 30})
	b.u.Detach(pid, false)
	out, err := b.u.Downgrade(4)
	if out != pagetable.Pending || err != nil {
		t.Fatalf("Downgrade: %v, %v; want it to be pending", out, err)
	}
	b.Finish(pagetable.OpDowngrade, 4, out, err)
	if _, sealing := b.u.LeftCount(); sealing != 0 {
		t.Error("the program is still waited for")
	}
}

// TestEndOfDetachedProgramIsQuiet: what had to be protected in a detached program, and needs it no
// more because the program has ended, does not wake the reactor for ever.
func TestEndOfDetachedProgramIsQuiet(t *testing.T) {
	b := newLab(t)
	p, pid := b.start()
	b.Value(b.Installed(p, pid, 4, 1, true))
	b.setKernel(pid, &flaky{eagain: 1})
	b.u.Detach(pid, false)
	if _, sealing := b.u.LeftCount(); sealing != 1 {
		t.Error("all was protected at once, and this test tests nothing")
	}
	p.Kill()
	b.start() // finds the end
	var events [8]pagetable.Event
	for range 100 {
		if !waitReadable(t, b.u.WaitFD(), 20*time.Millisecond) {
			return
		}
		if n, err := b.u.Poll(events[:]); n != 0 || err != nil {
			t.Fatalf("polled %+v, %v; want nothing", events[:n], err)
		}
	}
	t.Error("WaitFD is readable without anything to report")
}

// TestGivenUpProgramIsCutOff: a program that is served no more, and not detached yet, loses stores
// with the others.
func TestGivenUpProgramIsCutOff(t *testing.T) {
	b := newLab(t)
	p, pid := b.start()
	q, _ := b.start()
	b.Value(b.Installed(p, pid, 4, 1, true))
	b.Value(q.Store(4, 0, 2))
	b.setKernel(pid, &flaky{noPoison: true})
	waits := p.Load(5, 0)
	b.Fault(pid, 5, false)
	b.Lose(5)
	b.UntilGone("the program, whose fault can't be made to fail")
	b.Downgrade(4)
	b.NoEffect([]*Access{waits, p.Store(4, 0, 99)}, "its program was given up, and the page was downgraded")
	b.Want(b.Value(q.Load(4, 0)), 2, "the word in another program")
}
