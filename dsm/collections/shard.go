package collections

import "slices"

// A shard of a map is a page: a lock, a version, and a hash table of records. So whatever holds for
// a page holds for a shard: it is at one place, and is lost as a whole or not at all. Besides, a
// program may die between any two of its stores here, or the page may go back to what it was
// between them (dsm.Replicated). Therefore each change takes effect by one store, and what comes
// before and after that is only room that sweep finds again.
const (
	lockWord    = iota // the id of the handle that changes the page, or 0
	versionWord        // odd while the page is being changed
	depthWord          // how many first bits all hashes here have in common; 0: as many as at first
	spareWord          // a record that is free, where reserve looks first; 0: none is known
	headsWord          // from here on the heads of chains, four in a word
)

// wordsPerHeads is how many words of a page have a word of heads: about three records have a chain.
const wordsPerHeads = 32

// firstRecord is where the records of a page of so many words begin. They fill the rest, each
// after the other.
func firstRecord(words int) int { return headsWord + words/wordsPerHeads }

// header is the first word of a record; its value and its key follow. A header of 0 is free up to
// the end of the page, as in a page that nobody has used.
type header uint64

func newHeader(size, next, keyBytes int, hash uint64) header {
	return header(size) | header(next)<<nextShift | header(keyBytes+1)<<32 | header(uint16(hash>>16))<<48
}

const nextShift = 16

func (h header) size() int     { return int(uint16(h)) } // in words
func (h header) next() int     { return int(uint16(h >> nextShift)) }
func (h header) keyBytes() int { return int(uint16(h>>32)) - 1 } // -1: it is free
func (h header) free() bool    { return h.keyBytes() < 0 }
func (h header) like(k *key) bool {
	const ofKey = ^header(1<<32 - 1)
	return h&ofKey == newHeader(0, 0, k.bytes, k.hash)&ofKey
}

// key is a key as shards have it.
type key struct {
	hash  uint64
	bytes int
	words []uint64
}

// link is where the number of a record stands: in a chain's head, or in the record before.
type link struct{ word, shift int }

func (p page) head(chain int) link { return link{headsWord + chain/4, chain % 4 * 16} }

func (p page) chains() int { return len(p) / wordsPerHeads * 4 }

func (p page) follow(l link) int { return int(uint16(p[l.word].Load() >> l.shift)) }

func (p page) point(l link, to int) {
	p.set(l.word, p[l.word].Load()&^(0xffff<<l.shift)|uint64(to)<<l.shift)
}

// spot is where a key is: its record, or 0, and the link to it, or to where the chain ends.
type spot struct {
	link link
	at   int
}

// find looks for a key. Of a page that is being changed it returns anything.
func (p page) find(k *key) spot {
	l := p.head(int(k.hash) & (p.chains() - 1))
	for range p { // in such a page a chain may be a circle
		at := p.follow(l)
		if at == 0 || at >= len(p) {
			break
		}
		if h := header(p[at].Load()); h.like(k) && p.has(at+h.size()-len(k.words), k.words) {
			return spot{l, at}
		}
		l = link{at, nextShift}
	}
	return spot{l, 0}
}

func (p page) has(at int, words []uint64) bool {
	if at < 0 || at+len(words) > len(p) {
		return false
	}
	for i, w := range words {
		if p[at+i].Load() != w {
			return false
		}
	}
	return true
}

// keyAt appends the bytes of a record's key.
func (p page) keyAt(at int, b []byte) []byte {
	h := header(p[at].Load())
	b = slices.Grow(b, h.keyBytes())[:len(b)+h.keyBytes()]
	p.unpack(at+h.size()-wordsFor(h.keyBytes()), b[len(b)-h.keyBytes():])
	return b
}

// put stores a key with its value where find has looked for it, and reports whether there was room.
func (p page) put(s spot, k *key, value []byte) bool {
	words := wordsFor(len(value))
	if s.at != 0 && words <= 1 {
		p.pack(s.at+1, value)
		return true
	}
	next := 0
	if s.at != 0 {
		next = header(p[s.at].Load()).next()
	}
	at := p.reserve(1+words+len(k.words), next, k)
	if at == 0 {
		return false
	}
	p.pack(at+1, value)
	p.store(at+1+words, k.words)
	p.point(s.link, at)
	if s.at != 0 {
		p.release(s.at)
	}
	return true
}

// remove takes a record out.
func (p page) remove(s spot) {
	p.point(s.link, header(p[s.at].Load()).next())
	p.release(s.at)
}

// release frees a record.
func (p page) release(at int) {
	p.set(at, uint64(header(p[at].Load()).size()))
	p.set(spareWord, uint64(at))
}

// reserve returns room for a record of so many words, with its header, or 0 if there is none.
func (p page) reserve(size, next int, k *key) int {
	at, room := p.spare()
	if room < size { // there may be some elsewhere, or more with what is free behind it
		if at, room = p.search(size); at == 0 {
			return 0
		}
	}
	spare := 0
	if room > size {
		spare = at + size
		p.set(spare, p.rest(spare, room-size))
	}
	p.set(spareWord, uint64(spare))
	p.set(at, uint64(newHeader(size, next, k.bytes, k.hash)))
	return at
}

// spare is the record to look at first, with its room, or room 0. The word may say anything if the
// page has gone back to a checkpoint (`dsmd run --lost checkpoint`) while it was being changed.
func (p page) spare() (at, room int) {
	at = int(p[spareWord].Load())
	if at < firstRecord(len(p)) || at >= len(p) || !header(p[at].Load()).free() {
		return 0, 0
	}
	if room = p.room(at); at+room > len(p) {
		return 0, 0
	}
	return at, room
}

// room is how many words a record has that is free: all up to the end, if nobody has used them.
func (p page) room(at int) int {
	if h := header(p[at].Load()); h != 0 {
		return h.size()
	}
	return len(p) - at
}

// search returns room for so many words, with what is free behind it, or 0 if there is none. The
// room may be several records, one of them the spare: the caller sets that anew.
func (p page) search(size int) (at, room int) {
	for at = firstRecord(len(p)); at < len(p); at += room {
		for room = 0; at+room < len(p) && header(p[at+room].Load()).free(); {
			room += p.room(at + room)
		}
		if room >= size {
			return at, room
		}
		if at+room < len(p) {
			room += header(p[at+room].Load()).size()
		}
	}
	return 0, 0
}

// rest is the header of free room.
func (p page) rest(at, size int) uint64 {
	if at+size == len(p) {
		return 0
	}
	return uint64(size)
}

// records calls visit with all records that are in chains, and with the links to them, until visit
// returns false.
func (p page) records(visit func(l link, at int) bool) {
	for chain := range p.chains() {
		l := p.head(chain)
		for at := p.follow(l); at != 0; at = p.follow(l) {
			if !visit(l, at) {
				return
			}
			if p.follow(l) == at {
				l = link{at, nextShift}
			}
		}
	}
}

// sweep frees all records but those that are in a chain and wanted.
func (p page) sweep(wanted func(at int) bool) {
	used := make([]bool, len(p))
	p.records(func(l link, at int) bool {
		if used[at] = wanted(at); !used[at] {
			p.point(l, header(p[at].Load()).next())
		}
		return true
	})
	for at := firstRecord(len(p)); at < len(p); {
		h := header(p[at].Load())
		if h == 0 {
			break
		}
		if !used[at] {
			p.release(at)
		}
		at += h.size()
	}
	p.set(spareWord, 0) // who died may have left another
}
