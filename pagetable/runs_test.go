package pagetable_test

import (
	"fmt"
	"testing"

	"dsmd/pagetable"
)

// installRun installs pages 4 to 8 of a program, with words 40 to 44.
func (b lab) installRun(id pagetable.ProcID, writable bool) {
	b.Helper()
	run := pagetable.Run{Op: pagetable.OpInstall, First: 4, Count: 5, Writable: writable, Proc: id}
	for i := range uint64(5) {
		run.Data = append(run.Data, b.Filled(40+i)...)
	}
	b.Operate(run)
}

// TestTrapRunStopsHalfWay: where a copy stops in the middle of a run, at a page that is there
// although nobody installed it, the pages before are not written again: a thread that waited for
// one has stored to it already.
func TestTrapRunStopsHalfWay(t *testing.T) {
	for _, writable := range []bool{false, true} {
		t.Run(fmt.Sprintf("writable=%v", writable), func(t *testing.T) {
			b := newLab(t)
			p, id := b.start()
			var store *Access
			if writable {
				store = p.Store(4, 8, 7)
				b.Fault(id, 4, true)
			}
			if err := b.u.PutBehindItsBack(6, b.Filled(0)); err != nil {
				t.Fatal(err)
			}
			load := p.Load(8, 0)
			b.Fault(id, 8, false)
			b.installRun(id, writable)
			b.Want(b.Value(load), 44, "the word of the last page, which was waited for")
			for i := range pagetable.Page(5) {
				b.Want(b.Value(p.Load(4+i, 0)), 40+uint64(i), "a word of the run")
			}
			if writable {
				b.Value(store)
				b.Want(Word(b.Read(4), 8), 7, "the word stored")
				return
			}
			for i := range pagetable.Page(5) {
				store := p.Store(4+i, 0, 1)
				b.Fault(id, 4+i, true)
				b.StillWaits(store, "the run is read-only")
			}
		})
	}
}

// TestTrapRunRegisteredInPart: operations reach what a program has registered of a run, and the
// rest waits in the file.
func TestTrapRunRegisteredInPart(t *testing.T) {
	b := newLab(t)
	p := attachProgram(t, b.u, 1, programOptions{unregistered: true})
	b.Value(p.order(cmdRegister, 0, 0, 6))
	b.installRun(1, true)
	b.Want(b.Value(p.Load(5, 0)), 41, "the word of a page that is registered")
	b.Operate(pagetable.Run{Op: pagetable.OpDowngrade, First: 4, Count: 5})
	store := p.Store(5, 0, 1)
	b.Fault(1, 5, true)
	b.StillWaits(store, "the run was downgraded")
	b.Operate(pagetable.Run{Op: pagetable.OpMakeWritable, First: 4, Count: 5})
	b.Value(store)
	into := make([][]byte, 5)
	for i := range into {
		into[i] = b.Filled(0)
	}
	b.Operate(pagetable.Run{Op: pagetable.OpRevoke, First: 4, Count: 5, Into: into})
	for i, want := range []uint64{40, 1, 42, 43, 44} {
		b.Want(Word(into[i], 0), want, "a word of the run")
	}
}

// TestLongestRun: the longest run there can be, of the smallest pages.
func TestLongestRun(t *testing.T) {
	b := newLab(t)
	_, id := b.start()
	count := pagetable.MaxRunBytes / b.u.PageBytes()
	run := pagetable.Run{Op: pagetable.OpInstall, First: 8, Count: count, Proc: id}
	into := make([][]byte, count)
	for i := range into {
		run.Data = append(run.Data, b.Filled(uint64(i))...)
		into[i] = b.Filled(99)
	}
	b.Operate(run)
	if err := b.u.Read(8, into...); err != nil {
		t.Fatal(err)
	}
	for i := range into {
		b.Want(Word(into[i], 0), uint64(i), "a word of the run")
	}
}

// TestNoAllocationPerRun: neither do runs of pages make garbage.
func TestNoAllocationPerRun(t *testing.T) {
	const count = 4
	b := newLab(t)
	_, id := b.start()
	size := b.u.PageBytes()
	outcomes, data := make([]pagetable.Outcome, count), make([]byte, count*size)
	into := make([][]byte, count)
	for i := range into {
		into[i] = make([]byte, size)
	}
	runs := []pagetable.Run{
		{Op: pagetable.OpInstall, Data: data, Proc: id}, {Op: pagetable.OpMakeWritable}, {Op: pagetable.OpDowngrade}, {Op: pagetable.OpRevoke, Into: into},
	}
	if n := testing.AllocsPerRun(100, func() {
		for i := range runs {
			runs[i].First, runs[i].Count = 4, count
			if err := b.u.Operate(&runs[i], outcomes); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.u.Read(4, into...); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations in a round of runs, want none", n)
	}
}

// BenchmarkRuns is what an operation costs for each page of a run.
func BenchmarkRuns(b *testing.B) {
	for _, count := range []int{1, 16} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			lab := newLab(b)
			_, id := lab.start()
			size := lab.u.PageBytes()
			outcomes, data := make([]pagetable.Outcome, count), make([]byte, count*size)
			into := make([][]byte, count)
			for i := range into {
				into[i] = make([]byte, size)
			}
			runs := []pagetable.Run{{Op: pagetable.OpInstall, Data: data, Writable: true, Proc: id}, {Op: pagetable.OpDowngrade}, {Op: pagetable.OpRevoke, Into: into}}
			for b.Loop() {
				for i := range runs {
					runs[i].First, runs[i].Count = 4, count
					if err := lab.u.Operate(&runs[i], outcomes); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*count), "ns/page")
		})
	}
}

// TestRunOfEndedProgram: a program that has ended holds up no run.
func TestRunOfEndedProgram(t *testing.T) {
	b := newLab(t)
	p, id := b.start()
	q, _ := b.start()
	p.Load(4, 0)
	b.Fault(id, 4, false)
	p.Kill()
	b.installRun(id, false)
	b.Operate(pagetable.Run{Op: pagetable.OpMakeWritable, First: 4, Count: 5})
	b.Value(q.Store(6, 0, 9))
	b.Operate(pagetable.Run{Op: pagetable.OpDowngrade, First: 4, Count: 5})
	b.Want(Word(b.Read(6), 0), 9, "the word stored")
}
