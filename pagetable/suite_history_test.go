package pagetable_test

import (
	"dsmd/pagetable"
	"fmt"
	"math/rand/v2"
)

// chance starts the programs 1 and 2 of a random test, and returns them by their numbers with a
// source of randomness, whose seed is printed if the test fails.
func (r *Rig) chance(stream uint64) (*rand.Rand, []Program) {
	seed := rand.Uint64()
	r.Cleanup(func() {
		if r.Failed() {
			r.Logf("seed %d", seed)
		}
	})
	progs := []Program{nil}
	for range 2 {
		p, _ := r.Start()
		progs = append(progs, p)
	}
	return rand.New(rand.NewPCG(seed, stream)), progs
}

// randomHistory does random accesses and operations one after the other and compares every value
// with a plain array.
func randomHistory(r *Rig) {
	const pages = 6
	rng, progs := r.chance(0)
	var model [pages]uint64
	for step := range 130 * *longer {
		r.faults = r.faults[:0] // no access is under way: these are repeats of what was settled
		page, proc := pagetable.Page(rng.IntN(pages)), pagetable.ProcID(1+rng.IntN(2))
		off := 8 * int(page)
		writable, present := r.pages[page]
		switch op := rng.IntN(6); {
		case op == 0 && present:
			r.Want(Word(r.Revoke(page), off), model[page], fmt.Sprintf("step %d: revoked page %d", step, page))
		case op == 1 && present && writable:
			r.Downgrade(page)
		case op == 2 && present:
			r.MakeWritable(page)
		case op == 3:
			store := progs[proc].Store(page, off, uint64(step))
			r.grant(page, proc, true, model[page])
			model[page] = uint64(step)
			r.Value(store)
		default:
			load := progs[proc].Load(page, off)
			r.grant(page, proc, false, model[page])
			r.Want(r.Value(load), model[page], fmt.Sprintf("step %d: page %d in program %d", step, page, proc))
		}
	}
}

// grant gives an access that was just made the page that it needs.
func (r *Rig) grant(page pagetable.Page, proc pagetable.ProcID, write bool, v uint64) {
	r.Helper()
	writable, present := r.pages[page]
	switch {
	case !present:
		r.Fault(proc, page, write)
		r.Install(page, r.Filled(v), write, proc)
	case write && !writable:
		r.Fault(proc, page, true)
		r.MakeWritable(page)
	}
}
