package pagetable_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"

	"dsmd/pagetable"
)

// runPages is the length of the runs that the suite operates on, less than there can be only with
// large pages.
func (r *Rig) runPages() int { return min(5, pagetable.MaxRunBytes/r.table.PageBytes()) }

// Operate does an operation on a run of pages and waits until all of it is done.
func (r *Rig) Operate(run pagetable.Run) {
	r.Helper()
	outcomes := freshOutcomes(run.Count)
	err := r.table.Operate(&run, outcomes)
	for i := range run.Data {
		run.Data[i] = 0xEE // the table must have read it
	}
	for i, out := range outcomes {
		page := run.First + pagetable.Page(i)
		r.Finish(run.Op, page, out, err)
		switch run.Op {
		case pagetable.OpInstall:
			r.pages[page] = run.Writable
		case pagetable.OpRevoke:
			delete(r.pages, page)
		default:
			r.pages[page] = run.Op == pagetable.OpMakeWritable
		}
	}
}

// freshOutcomes are outcomes that no table leaves as they are.
func freshOutcomes(count int) []pagetable.Outcome {
	outcomes := make([]pagetable.Outcome, count)
	for i := range outcomes {
		outcomes[i] = 0xFF
	}
	return outcomes
}

// filledRun is the contents of pages whose words are v in the first, v+1 in the second, and so on.
func (r *Rig) filledRun(v uint64, count int) (data []byte) {
	for i := range count {
		data = append(data, r.Filled(v+uint64(i))...)
	}
	return data
}

// buffers are pages to be written over.
func (r *Rig) buffers(count int) [][]byte {
	into := make([][]byte, count)
	for i := range into {
		into[i] = bytes.Repeat([]byte{0xDD}, r.table.PageBytes())
	}
	return into
}

func runInstalled(r *Rig) {
	p, id := r.Start()
	n := r.runPages()
	last := pagetable.Page(4 + n - 1)
	loads := []*Access{p.Load(4, 0), p.Load(last, 8)}
	for _, page := range []pagetable.Page{4, last} {
		r.Fault(id, page, false)
	}
	r.Operate(pagetable.Run{Op: pagetable.OpInstall, First: 4, Count: n, Data: r.filledRun(10, n), Proc: id})
	r.Want(r.Value(loads[0]), 10, "the word of the first page")
	r.Want(r.Value(loads[1]), uint64(10+n-1), "the word of the last page")
	for i := range n {
		r.Want(r.Value(p.Load(4+pagetable.Page(i), 16)), uint64(10+i), "a word in the run")
	}
	store := p.Store(4, 0, 1)
	r.Fault(id, 4, true)
	r.StillWaits(store, "the run is read-only")
	for _, page := range []pagetable.Page{3, last + 1} {
		load := p.Load(page, 0)
		r.Fault(id, page, false)
		r.StillWaits(load, "its page is beside the run")
	}
}

func runOfZeros(r *Rig) {
	p, id := r.Start()
	n := r.runPages()
	for first, writable := range map[pagetable.Page]bool{0: false, 32: true} {
		r.Operate(pagetable.Run{Op: pagetable.OpInstall, First: first, Count: n, Writable: writable, Proc: id})
		for i := range n {
			r.Want(r.Value(p.Load(first+pagetable.Page(i), 8)), 0, "a word of zeros")
		}
		store := p.Store(first+1, 8, 7)
		if !writable {
			r.Fault(id, first+1, true)
			r.StillWaits(store, "the run is read-only")
			continue
		}
		r.Value(store)
		r.Want(Word(r.Read(first+1), 8), 7, "the word stored")
	}
}

// runForNobody: several programs are attached, and the run is installed for none, or for one that
// has left.
func runForNobody(r *Rig) {
	p, _ := r.Start()
	q, _ := r.Start()
	n := r.runPages()
	for first, proc := range map[pagetable.Page]pagetable.ProcID{8: pagetable.AllProcs, 24: 77} {
		waiting := p.Load(first, 0)
		r.Operate(pagetable.Run{Op: pagetable.OpInstall, First: first, Count: n, Data: r.filledRun(20, n), Writable: true, Proc: proc})
		r.Want(r.Value(waiting), 20, "the word that was waited for")
		for i := range n {
			r.Want(r.Value(q.Load(first+pagetable.Page(i), 0)), uint64(20+i), "a word in the run")
		}
	}
}

func runUpgradedAndDowngraded(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	n := r.runPages()
	r.Operate(pagetable.Run{Op: pagetable.OpInstall, First: 4, Count: n, Data: r.filledRun(0, n), Proc: pid})
	for i := range n {
		r.Value(q.Load(4+pagetable.Page(i), 0))
	}
	a, b := p.Store(4, 8, 100), q.Store(pagetable.Page(4+n-1), 16, 200)
	r.Fault(pid, 4, true)
	r.Fault(qid, pagetable.Page(4+n-1), true)
	r.Operate(pagetable.Run{Op: pagetable.OpMakeWritable, First: 4, Count: n})
	r.Value(a)
	r.Value(b)
	for i := range n {
		r.Value(p.Store(4+pagetable.Page(i), 24, uint64(i)))
	}

	r.Operate(pagetable.Run{Op: pagetable.OpDowngrade, First: 4, Count: n})
	for i := range n {
		page := 4 + pagetable.Page(i)
		r.Want(r.Value(q.Load(page, 24)), uint64(i), "the word after the downgrade")
		store := p.Store(page, 24, 99)
		r.Fault(pid, page, true)
		r.StillWaits(store, "the run was downgraded")
	}
	r.Want(Word(r.Read(4), 8), 100, "the first program's word")
	r.Want(Word(r.Read(pagetable.Page(4+n-1)), 16), 200, "the second program's word")
}

func runRevoked(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	n := r.runPages()
	for round := range uint64(3) {
		r.Operate(pagetable.Run{Op: pagetable.OpInstall, First: 4, Count: n, Data: r.filledRun(10*round, n), Writable: true, Proc: pid})
		for i := range n {
			r.Value(q.Store(4+pagetable.Page(i), 8, 100+uint64(i)))
		}
		var into [][]byte
		if round < 2 {
			into = r.buffers(n)
		}
		r.Operate(pagetable.Run{Op: pagetable.OpRevoke, First: 4, Count: n, Into: into})
		for i, page := range into {
			r.Want(Word(page, 0), 10*round+uint64(i), "a word installed")
			r.Want(Word(page, 8), 100+uint64(i), "a word stored")
		}
	}
	for i := range n {
		page := 4 + pagetable.Page(i)
		a, b := p.Load(page, 0), q.Store(page, 0, 1)
		r.Fault(pid, page, false)
		r.Fault(qid, page, true)
		r.StillWaits(a, "the run was revoked")
		r.StillWaits(b, "the run was revoked")
		r.Want(Word(r.Read(page), 8), 0, "a word of an absent page")
	}
}

func runRead(r *Rig) {
	p, id := r.Start()
	n := r.runPages()
	for i := 0; i < n; i += 2 {
		page := 4 + pagetable.Page(i)
		r.Value(r.Installed(p, id, page, uint64(100+i), true))
		r.Value(p.Store(page, 8, uint64(200+i)))
	}
	into := r.buffers(n)
	if err := r.table.Read(4, into...); err != nil {
		r.Fatalf("Read of %d pages: %v", n, err)
	}
	for i, page := range into {
		want := r.Filled(0)
		if i%2 == 0 {
			want = r.Read(4 + pagetable.Page(i))
			r.Want(Word(page, 8), uint64(200+i), "a word stored")
		}
		if !bytes.Equal(page, want) {
			r.Errorf("page %d of the run is not as it is alone", i)
		}
	}
}

func badRunsPanic(r *Rig) {
	half := make([]byte, r.table.PageBytes()/2)
	tooMany := pagetable.MaxRunBytes/r.table.PageBytes() + 1
	for name, run := range map[string]pagetable.Run{
		"a run beyond the region":             {Op: pagetable.OpDowngrade, First: RegionPages - 1, Count: 2},
		"a run of nothing":                    {Op: pagetable.OpDowngrade},
		"too long a run":                      {Op: pagetable.OpDowngrade, Count: tooMany},
		"a run with contents of half a page":  {Op: pagetable.OpInstall, Count: 1, Data: half},
		"a run into half a page":              {Op: pagetable.OpRevoke, Count: 1, Into: [][]byte{half}},
		"a run into fewer pages than it has":  {Op: pagetable.OpRevoke, Count: 2, Into: r.buffers(1)},
		"a run that is mapped":                {Op: pagetable.OpMap, Count: 1},
		"a run of which one page is unwanted": {Op: pagetable.OpRevoke, Count: 2, Into: [][]byte{r.Filled(0), nil}},
	} {
		wantPanic(r, name, func() { r.table.Operate(&run, make([]pagetable.Outcome, run.Count)) })
	}
	wantPanic(r, "a run with fewer outcomes than pages", func() {
		r.table.Operate(&pagetable.Run{Op: pagetable.OpDowngrade, Count: 2}, make([]pagetable.Outcome, 1))
	})
	wantPanic(r, "a read of too many pages", func() { r.table.Read(0, r.buffers(tooMany)...) })
	wantPanic(r, "a read into half a page", func() { r.table.Read(0, half) })
}

func wantPanic(r *Rig, name string, call func()) {
	defer func() {
		if recover() == nil {
			r.Errorf("%s did not panic", name)
		}
	}()
	call()
}

func runAfterClose(r *Rig) {
	if err := r.table.Close(); err != nil {
		r.Fatalf("Close: %v", err)
	}
	n := r.runPages()
	for _, op := range []pagetable.Op{pagetable.OpInstall, pagetable.OpMakeWritable, pagetable.OpDowngrade, pagetable.OpRevoke} {
		if err := r.table.Operate(&pagetable.Run{Op: op, Count: n}, freshOutcomes(n)); !errors.Is(err, pagetable.ErrClosed) {
			r.Errorf("%v of a run after Close: %v, want ErrClosed", op, err)
		}
	}
	if err := r.table.Read(0, r.buffers(n)...); !errors.Is(err, pagetable.ErrClosed) {
		r.Errorf("Read of a run after Close: %v, want ErrClosed", err)
	}
}

// randomRuns does random operations on runs, and accesses in between, and compares every value with
// a plain array.
func randomRuns(r *Rig) {
	const pages = 12
	rng, progs := r.chance(1)
	var model [pages]uint64
	for step := range 100 * *longer {
		proc := pagetable.ProcID(1 + rng.IntN(2))
		first := pagetable.Page(rng.IntN(pages))
		run := r.uniform(first, 1+rng.IntN(min(r.runPages(), pages-int(first))), proc, rng)
		if run.Op == pagetable.OpInstall && run.Data == nil {
			clear(model[first:][:run.Count])
		} else if run.Op == pagetable.OpInstall {
			for i := range run.Count {
				model[int(first)+i] = Word(run.Data[i*r.table.PageBytes():], 0)
			}
		}
		r.Operate(run)
		for i, into := range run.Into {
			r.Want(Word(into, 8*int(proc)), model[int(first)+i], fmt.Sprintf("step %d: revoked page %d", step, int(first)+i))
		}
		page := pagetable.Page(rng.IntN(pages))
		if writable, present := r.pages[page]; present {
			if writable {
				model[page] = uint64(1000 + step)
				for _, off := range []int{0, 8, 16} {
					r.Value(progs[proc].Store(page, off, model[page]))
				}
			}
			r.Want(r.Value(progs[3-proc].Load(page, 16)), model[page], fmt.Sprintf("step %d: page %d", step, page))
		}
	}
}

// uniform is an operation on as much of a run as is like its first page.
func (r *Rig) uniform(first pagetable.Page, count int, proc pagetable.ProcID, rng *rand.Rand) pagetable.Run {
	writable, present := r.pages[first]
	run := pagetable.Run{First: first, Count: 1, Proc: proc}
	for ; run.Count < count; run.Count++ {
		if w, p := r.pages[first+pagetable.Page(run.Count)]; w != writable || p != present {
			break
		}
	}
	choice := rng.IntN(4)
	switch {
	case !present:
		run.Op, run.Writable = pagetable.OpInstall, choice < 2
		if choice%2 == 0 {
			run.Data = r.filledRun(rng.Uint64N(1<<20), run.Count)
		}
	case choice == 0:
		run.Op, run.Into = pagetable.OpRevoke, r.buffers(run.Count)
	case choice == 1:
		run.Op = pagetable.OpRevoke
	case writable:
		run.Op = pagetable.OpDowngrade
	default:
		run.Op = pagetable.OpMakeWritable
	}
	return run
}
