package collections

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestPage: a page has what was put there, and its records fill it, each after the other.
//
// Every rank that tests of this package start is this binary. A library for drawing, such as rapid,
// would take a third of the time of its start.
func TestPage(t *testing.T) {
	for range 100 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { onPage(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

// onPage puts and removes what r draws, or dies in between.
func onPage(t *testing.T, r *rand.Rand) {
	const words = 256
	p, want := make(page, words), map[string]string{}
	keyOf := func(text string) *key {
		return &key{hashOf([]byte(text)), len(text), pack(nil, []byte(text))}
	}
	for range 1 + r.IntN(200) {
		number := r.IntN(31)
		name := fmt.Sprint(number)
		k := keyOf(name)
		switch r.IntN(10) {
		case 0: // who changed it has died, before or after the header was stored
			before := make(page, words)
			for i := range p {
				before[i].Store(p[i].Load())
			}
			if at := p.reserve(1+r.IntN(20), 0, k); at != 0 && r.IntN(2) == 0 {
				p[at].Store(before[at].Load())
			}
			p.sweep(func(int) bool { return true })
		case 1, 2, 3:
			s := p.find(k)
			if _, there := want[name]; there != (s.at != 0) {
				t.Fatalf("%q is at %d, there: %t", name, s.at, there)
			}
			if s.at != 0 {
				p.remove(s)
				delete(want, name)
			}
		default:
			value := make([]byte, 8*(number%7)) // always as long
			for i := range len(value) / 8 {
				binary.LittleEndian.PutUint64(value[8*i:], r.Uint64())
			}
			if p.put(p.find(k), k, value) {
				want[name] = string(value)
			} else if at, room := p.search(1 + wordsFor(len(value)) + len(k.words)); at != 0 {
				t.Fatalf("%q has no room, and there are %d words at %d", name, room, at)
			}
		}
		wantWhole(t, p)
		for name, value := range want {
			at := p.find(keyOf(name)).at
			got := make([]byte, len(value))
			if p.unpack(at+1, got); at == 0 || string(got) != value {
				t.Fatalf("%q is %x at %d, want %x", name, got, at, value)
			}
		}
	}
}

// wantWhole wants that the records of a page fill it, that those in chains are the ones that are
// not free, and that the one to look at first is free.
func wantWhole(t *testing.T, p page) {
	t.Helper()
	begins, used := map[int]bool{}, 0
	at := firstRecord(len(p))
	for at < len(p) && p[at].Load() != 0 {
		h := header(p[at].Load())
		if begins[at] = h.free(); !h.free() {
			used++
		}
		at += h.size()
	}
	if at > len(p) {
		t.Fatalf("the last record ends at %d of %d", at, len(p))
	}
	begins[at] = true // nobody has used what is behind it
	chained := 0
	p.records(func(_ link, at int) bool {
		if free, is := begins[at]; free || !is {
			t.Fatalf("the record at %d is free (%t), or none begins there (%t)", at, free, is)
		}
		chained++
		return true
	})
	if chained != used {
		t.Fatalf("%d records are in chains, and %d not free", chained, used)
	}
	if spare := int(p[spareWord].Load()); spare != 0 && !begins[spare] {
		t.Fatalf("the record at %d is to be looked at first: %v", spare, begins)
	}
}
