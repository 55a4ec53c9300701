package pagetable_test

import (
	"testing"

	"dsmd/pagetable"
)

// The benchmarks time the table's operations on a program that has the page mapped but does
// nothing, and whole misses: from the load or store of a program that does nothing else to its end,
// with this process polling without a pause.

func BenchmarkPollNothing(b *testing.B) {
	lab := newLab(b)
	lab.start()
	events := make([]pagetable.Event, 16)
	for b.Loop() {
		if n, err := lab.u.Poll(events); n != 0 || err != nil {
			b.Fatalf("%d events, %v", n, err)
		}
	}
}

func BenchmarkUpgradeDowngrade(b *testing.B) {
	lab := newLab(b)
	_, id := lab.start()
	lab.Install(4, lab.Filled(1), false, id)
	for b.Loop() {
		done(b)(lab.u.MakeWritable(4))
		done(b)(lab.u.Downgrade(4))
	}
}

func BenchmarkInstallRevoke(b *testing.B) {
	lab := newLab(b)
	_, id := lab.start()
	data, into := lab.Filled(1), make([]byte, lab.u.PageBytes())
	for _, c := range []struct {
		name       string
		data, into []byte
	}{{"data", data, into}, {"zeros", nil, into}, {"unread", data, nil}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				done(b)(lab.u.Install(4, c.data, true, id))
				done(b)(lab.u.Revoke(4, c.into))
			}
		})
	}
}

func BenchmarkReadMiss(b *testing.B) {
	eachTable(b, func(b *testing.B, t pagetable.Table) { benchmarkMiss(b, t, 0) })
}

func BenchmarkWriteUpgrade(b *testing.B) {
	eachTable(b, func(b *testing.B, t pagetable.Table) { benchmarkMiss(b, t, 1) })
}

// BenchmarkRevokeMapped times taking away a page that the program has written to since it got it,
// and giving it back: what an agent's help costs.
func BenchmarkRevokeMapped(b *testing.B) {
	eachTable(b, func(b *testing.B, u pagetable.Table) {
		p := attachProgram(b, u, 1, programOptions{unpreempted: true})
		into := make([]byte, u.PageBytes())
		for left := b.N; left > 0; {
			b.StopTimer()
			count := min(left, missPages)
			for i := range count {
				done(b)(u.Install(pagetable.Page(i), nil, true, 1))
			}
			scanned := p.answer(p.order(cmdScan, 0, 1, uint64(count)))
			if err := <-scanned; err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			for i := range count {
				finish(b, u, pagetable.OpRevoke, pagetable.Page(i))(u.Revoke(pagetable.Page(i), into))
			}
			left -= count
		}
	})
}

// finish polls until an operation that may be pending is done.
func finish(b *testing.B, u pagetable.Table, op pagetable.Op, page pagetable.Page) func(pagetable.Outcome, error) {
	return func(out pagetable.Outcome, err error) {
		var events [1]pagetable.Event
		for out == pagetable.Pending && err == nil {
			var n int
			if n, err = u.Poll(events[:]); n == 1 && events[0].Kind == pagetable.Completed && events[0].Op == op && events[0].Page == page {
				out, err = pagetable.Done, events[0].Err
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// missPages is how many pages a program touches before they are all taken away again.
const missPages = 4096

// eachTable runs a benchmark on each back end.
func eachTable(b *testing.B, run func(*testing.B, pagetable.Table)) {
	b.Run("uffd", func(b *testing.B) { run(b, fixtureOf(b, pagetable.Config{Pages: missPages}).Table) })
	b.Run("sigsegv", func(b *testing.B) {
		run(b, sigsegvFixture(b, pagetable.Config{Pages: missPages}, programOptions{}).Table)
	})
}

// benchmarkMiss has a program touch all pages of the region over and over: missing ones, by loads,
// or read-only ones, by stores.
func benchmarkMiss(b *testing.B, u pagetable.Table, store int) {
	const pages = missPages
	p := attachProgram(b, u, 1, programOptions{unpreempted: true})
	data := make([]byte, u.PageBytes())
	var events [16]pagetable.Event
	for left := b.N; left > 0; {
		b.StopTimer()
		finish(b, u, pagetable.OpDrop, 0)(u.Drop(0, pages))
		count := min(left, pages)
		for i := range count {
			if store != 0 {
				done(b)(u.Install(pagetable.Page(i), data, false, 1))
			}
		}
		b.StartTimer()
		p.order(cmdScan, 0, store, uint64(count))
		for answered := 0; answered < count; {
			n, err := u.Poll(events[:])
			if err != nil {
				b.Fatal(err)
			}
			for _, ev := range events[:n] {
				if store != 0 {
					done(b)(u.MakeWritable(ev.Page))
				} else {
					done(b)(u.Install(ev.Page, data, false, 1))
				}
			}
			answered += n
		}
		left -= count
	}
}

// done fails the benchmark unless an operation is done.
func done(b testing.TB) func(pagetable.Outcome, error) {
	return func(out pagetable.Outcome, err error) {
		if out != pagetable.Done || err != nil {
			b.Fatalf("outcome %d, %v", out, err)
		}
	}
}
