package collections

import (
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestPage: a page has what was put there, and its records fill it, each after the other.
func TestPage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const words = 256
		p, want := make(page, words), map[string]string{}
		keyOf := func(text string) *key {
			return &key{hashOf([]byte(text)), len(text), pack(nil, []byte(text))}
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			number := rapid.IntRange(0, 30).Draw(t, "key")
			name := fmt.Sprint(number)
			k := keyOf(name)
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0: // who changed it has died, before or after the header was stored
				before := make(page, words)
				for i := range p {
					before[i].Store(p[i].Load())
				}
				size := rapid.IntRange(1, 20).Draw(t, "size")
				if at := p.reserve(size, 0, k); at != 0 && rapid.Bool().Draw(t, "before") {
					p[at].Store(before[at].Load())
				}
				p.sweep(func(int) bool { return true })
			case 1, 2, 3:
				l, at := p.find(k)
				if _, there := want[name]; there != (at != 0) {
					t.Fatalf("%q is at %d, there: %t", name, at, there)
				}
				if at != 0 {
					p.remove(l, at)
					delete(want, name)
				}
			default:
				value := make([]byte, 8*(number%7)) // always as long
				for i := range len(value) / 8 {
					binary.LittleEndian.PutUint64(value[8*i:], rapid.Uint64().Draw(t, "word"))
				}
				if p.put(k, value) {
					want[name] = string(value)
				} else if at, room := p.search(1 + wordsFor(len(value)) + len(k.words)); at != 0 {
					t.Fatalf("%q has no room, and there are %d words at %d", name, room, at)
				}
			}
			wantWhole(t, p)
			for name, value := range want {
				_, at := p.find(keyOf(name))
				got := make([]byte, len(value))
				if p.unpack(at+1, got); at == 0 || string(got) != value {
					t.Fatalf("%q is %x at %d, want %x", name, got, at, value)
				}
			}
		}
	})
}

// wantWhole wants that the records of a page fill it, that those in chains are the ones that are
// not free, and that the one to look at first is free.
func wantWhole(t *rapid.T, p page) {
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
