package readahead

import (
	"slices"
	"testing"

	"dsmd/pagetable"
	"dsmd/protocol"

	"pgregory.net/rapid"
)

// path takes steps on a trail with one thread.
type path struct {
	*Trail
	t *testing.T
}

func newPath(t *testing.T) path { return path{NewTrail(), t} }

func pagesOf(list []Prediction) (pages []pagetable.Page) {
	for _, p := range list {
		pages = append(pages, p.Page)
	}
	return pages
}

// miss has pages missed for reading that were not here, and returns what each predicts.
func (p path) miss(pages ...pagetable.Page) (predicted []pagetable.Page) {
	for _, page := range pages {
		predicted = append(predicted, pagesOf(p.Missed(Miss{Thread: 1, Page: page, Access: protocol.Read}, nil))...)
	}
	return predicted
}

func (p path) cue(id uint64) []pagetable.Page { return pagesOf(p.Cue(id, nil)) }

func (p path) untouched(page pagetable.Page) bool {
	_, is := p.Untouched(page)
	return is
}

func (p path) want(what string, got []pagetable.Page, want ...pagetable.Page) {
	p.t.Helper()
	if !slices.Equal(got, want) {
		p.t.Errorf("%s: pages %v are predicted, want %v", what, got, want)
	}
}

// TestTrail: what follows a step is predicted when the step comes again, a cue's up to the next
// cue, and nothing when it comes for the first time.
func TestTrail(t *testing.T) {
	p := newPath(t)
	p.want("the first time", p.miss(10, 20, 15, 40))
	p.want("a cue that is new", p.cue(1))
	p.want("after it", p.miss(7, 3))
	p.want("another cue that is new", p.cue(2))
	p.want("after that", p.miss(99))

	p.want("the first page again", p.miss(10), 20, 15, 40)
	p.want("where all was predicted", p.miss(20, 15, 40))
	p.want("the first cue again", p.cue(1), 7, 3)
	p.want("what came is used", p.miss(7, 3))
	p.want("the second cue again", p.cue(2), 99, 10, 20, 15, 40)
	p.want("in the middle of what was asked for", p.miss(20))
	p.want("elsewhere", p.miss(7), 3)
}

// TestTrailIsAhead: a thread that goes on is always some steps behind what was asked for.
func TestTrailIsAhead(t *testing.T) {
	const steps = 100
	p := newPath(t)
	for page := range pagetable.Page(steps) {
		p.miss(3 * page)
	}
	p.cue(1)
	asked := 0
	for page := range pagetable.Page(steps) {
		asked += len(p.miss(3 * page))
		if want := min(int(page)+stepAhead/2, steps-1); asked < want || asked > int(page)+stepAhead {
			t.Fatalf("after step %d so many pages were predicted: %d, want %d to %d", page, asked, want, page+stepAhead)
		}
	}
}

// TestTrailGoesOnAtCues: one barrier at one place in the program, with other pages after it each
// time; it is told apart by what came before.
func TestTrailGoesOnAtCues(t *testing.T) {
	p := newPath(t)
	const phases = 5
	pages := func(phase int) []pagetable.Page {
		return []pagetable.Page{pagetable.Page(100 * phase), pagetable.Page(100*phase + 7)}
	}
	for range 2 {
		p.cue(2)
		for phase := range phases {
			p.cue(1)
			p.miss(pages(phase)...)
		}
	}
	p.cue(2)
	for phase := range phases {
		p.want("a phase", p.cue(1), pages(phase)...)
		p.miss(pages(phase)...)
	}
}

// TestTrailMerges: a page that is read and then written is predicted for writing, where it was
// read; and what was asked for beyond a page is, too.
func TestTrailMerges(t *testing.T) {
	p := newPath(t)
	reach := Reach{Pages: 3, Stride: -2, Access: protocol.Read}
	for range 2 {
		p.cue(1)
		p.Missed(Miss{Thread: 1, Page: 5, Access: protocol.Read, Reach: reach}, nil)
		p.Missed(Miss{Thread: 1, Page: 5, Has: protocol.Read, Access: protocol.Write}, nil)
		p.Missed(Miss{Thread: 1, Page: 6, Has: protocol.Read, Access: protocol.Write}, nil)
	}
	want := []Prediction{{5, protocol.Write, reach}, {6, protocol.Write, Reach{}}}
	if got := p.Cue(1, nil); !slices.Equal(got, want) {
		t.Errorf("%v is predicted, want %v", got, want)
	}
}

// TestTrailDoubts: what came in vain is not predicted again before it was missed some times, nor
// what others take while it is used here.
func TestTrailDoubts(t *testing.T) {
	p := newPath(t)
	round := func() []pagetable.Page {
		got := p.cue(1)
		p.miss(5, 6)
		return got
	}
	round()
	p.want("the second round", p.cue(1), 5, 6)
	p.Ask(5, Asked{Access: protocol.Read})
	p.Ask(6, Asked{Access: protocol.Read})
	if p.Touched(6, protocol.Read); p.untouched(6) || !p.untouched(5) {
		t.Error("a page that was touched is not known as such, or another is")
	}
	if p.Gone(5, false) || !p.Gone(5, true) || p.Gone(6, true) {
		t.Error("a page is in vain that was used, or that is still here, or is not that has left")
	}
	p.miss(5, 6)
	for times := inVain; times <= 2*mostDoubt; times *= 2 {
		for range min(times, mostDoubt) - 1 {
			p.want("after it came in vain", round(), 6)
		}
		p.want("later", p.cue(1), 5, 6)
		p.Ask(5, Asked{Access: protocol.Read})
		if !p.Gone(5, true) {
			t.Error("it has come in vain once more, and is not said to")
		}
		p.miss(5, 6)
	}
	for range mostDoubt - 1 {
		p.want("after it came in vain often", round(), 6)
	}
	p.want("later", p.cue(1), 5, 6)
	p.Ask(5, Asked{Access: protocol.Read})
	p.Touched(5, protocol.Read) // then all is forgotten
	p.miss(5, 6)
	p.want("after it was used", p.cue(1), 5, 6)
	p.Ask(5, Asked{Access: protocol.Read})
	p.Gone(5, true)
	p.miss(5, 6)
	for range inVain - 1 {
		p.want("in vain for the first time again", round(), 6)
	}
	p.want("later", round(), 5, 6)

	p.Contended(6)
	for range mostDoubt {
		p.want("a contended page", round(), 5)
	}
	p.want("later", round(), 5, 6)

	p.cue(1)
	p.miss(5, 6, 5) // somebody has taken it within the phase
	for range mostDoubt {
		p.want("a page that is missed twice", round(), 6)
	}
	p.want("later", round(), 5, 6)
}

// TestTrailUpgrades: a page that was here for reading is in vain as soon as it is so again.
func TestTrailUpgrades(t *testing.T) {
	p := newPath(t)
	upgrade := Asked{Had: protocol.Read, Access: protocol.Write}
	p.Ask(5, upgrade)
	p.Ask(6, upgrade)
	if p.Touched(5, protocol.Write); p.untouched(5) {
		t.Error("a page that was stored to is untouched")
	}
	if !p.Gone(6, false) || p.untouched(6) {
		t.Error("a page that is for reading again, before it was stored to, has not come in vain")
	}
	p.Ask(9, Asked{Access: protocol.Write})
	p.Touched(9, protocol.Read)
	if a, untouched := p.Untouched(9); !untouched || a.Had != protocol.Read || p.MayAsk(9) {
		t.Error("a page that was asked for to be stored to is not waited for when somebody has loaded from it")
	}
	if p.Gone(9, false) || p.untouched(9) {
		t.Error("a page that was loaded from has come in vain, or is still waited for")
	}
	p.Ask(7, Asked{Access: protocol.Read})
	p.Ask(8, Asked{Access: protocol.Read})
	p.Freed(6, 2)
	if p.untouched(7) || !p.untouched(8) {
		t.Error("a page that is free is still waited for, or another is not")
	}
}

// TestTrailForgets: old steps are forgotten, and memory is bounded, whatever happens.
func TestTrailForgets(t *testing.T) {
	p := newPath(t)
	p.miss(1, 2)
	for page := range pagetable.Page(3 * trailSteps) {
		if page%3 > 0 {
			p.cue(uint64(page))
		}
		p.miss(1000 + page)
		p.Contended(1000 + page)
		if p.MayAsk(page) {
			p.Ask(page, Asked{Access: protocol.Read})
		}
	}
	p.want("what was forgotten", p.miss(1, 2))
	p.want("what was not", p.miss(1), 2)
	for what, n := range map[string]int{"marks": len(p.last), "steps": len(p.ring), "cues": len(p.cues), "doubts": len(p.doubts), "untouched pages": len(p.out)} {
		if n > trailSteps || n < trailSteps/10 {
			t.Errorf("%d %s are remembered, at most %d are to be", n, what, trailSteps)
		}
	}
}

// TestTrailPredictsWhatWasMissed: at random, each prediction is a page that was missed before, and
// there are never more than a window.
func TestTrailPredictsWhatWasMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		trail := NewTrail()
		seen := map[pagetable.Page]bool{}
		page := func(t *rapid.T) pagetable.Page { return pagetable.Page(rapid.IntRange(0, 12).Draw(t, "page")) }
		check := func(list []Prediction, most int) {
			if len(list) > most {
				t.Fatalf("%d pages are predicted at once, at most %d are to be", len(list), most)
			}
			for _, p := range list {
				if !seen[p.Page] {
					t.Fatalf("page %d is predicted, and was never missed", p.Page)
				}
				if p.Access != protocol.Read && p.Access != protocol.Write {
					t.Fatalf("page %d is predicted for access %v", p.Page, p.Access)
				}
				if trail.MayAsk(p.Page) {
					trail.Ask(p.Page, Asked{Access: p.Access})
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"miss": func(t *rapid.T) {
				p, access := page(t), protocol.Read
				has := protocol.Access(rapid.IntRange(0, 1).Draw(t, "has"))
				if has == protocol.Read || rapid.Bool().Draw(t, "write") {
					access = protocol.Write
				}
				seen[p] = true
				check(trail.Missed(Miss{Thread: uint32(rapid.IntRange(1, 3).Draw(t, "thread")), Page: p, Has: has, Access: access}, nil), stepAhead)
			},
			"cue":       func(t *rapid.T) { check(trail.Cue(uint64(rapid.IntRange(0, 3).Draw(t, "cue")), nil), cueAhead) },
			"touch":     func(t *rapid.T) { trail.Touched(page(t), protocol.Write) },
			"leave":     func(t *rapid.T) { trail.Gone(page(t), rapid.Bool().Draw(t, "altogether")) },
			"contended": func(t *rapid.T) { trail.Contended(page(t)) },
			"free":      func(t *rapid.T) { trail.Freed(page(t), 3) },
			"": func(t *rapid.T) {
				for page, d := range trail.doubts {
					if d.left > d.level || d.level < inVain || d.level > mostDoubt || !seen[page] {
						t.Fatalf("page %d is doubted %v times", page, d)
					}
				}
			},
		})
	})
}
