package collections

import (
	"context"
	"errors"
	"sync/atomic"

	"dsmd/dsm"
)

// table is the pages of a map, whatever is in them. The first bits of a hash, as many as the depth
// of a page, say in which page it is.
type table struct {
	*owner
	kind       string // what people know it as: a Map, or a Set
	control    *control
	memory     []atomic.Uint64
	pageWords  int
	valueWords int
	firstDepth int // of new pages
	lastDepth  int // there are as many pages as hashes have first bits of this number
	// hints are the depths of pages, as this process has seen them: at most the present ones. 0 is
	// unknown. The method hint finds that of a page.
	hints []atomic.Uint32
}

// hint is the hint of a page. Those of the first pages lie together, so that they fit into caches.
func (t *table) hint(n int) *atomic.Uint32 {
	later := t.lastDepth - t.firstDepth
	return &t.hints[n>>later|n&(1<<later-1)<<t.firstDepth]
}

func (t *table) page(n int) page { return t.memory[n*t.pageWords:][:t.pageWords] }

// place is the page in which a hash is, if pages there have this depth.
func (t *table) place(hash uint64, depth int) int {
	return int(hash>>(64-t.lastDepth)) &^ (1<<(t.lastDepth-depth) - 1)
}

// seek returns the page of a hash, as far as this process knows. If it is not, the page is one from
// which that was split.
func (t *table) seek(hash uint64) (n, depth int) {
	n, depth = t.place(hash, t.firstDepth), t.firstDepth
	for split := depth; ; split++ {
		depth = max(depth, int(t.hint(n).Load()))
		if split > depth {
			return n, depth
		}
		if child := t.place(hash, split); child != n {
			n, depth = child, split
		}
	}
}

// covers reports whether the page is that of the hash, and learns its depth. born is what seek has
// found.
func (t *table) covers(n, born int, hash uint64) bool {
	depth := t.depth(n, born)
	if depth > born {
		t.hint(n).Store(uint32(depth))
	}
	return t.place(hash, depth) == n
}

// depth is that of a page which had this one at least when it was new.
func (t *table) depth(n, born int) int { return max(int(t.page(n)[depthWord].Load()), born) }

// hashAt is the hash of the key of a record.
func hashAt(p page, at int) uint64 {
	var buffer [64]byte
	return hashOf(p.keyAt(at, buffer[:0]))
}

// read calls visit with the page of a hash, or with a copy of it, as it was at one moment. visit is
// called again if it was none.
func (t *table) read(ctx context.Context, hash uint64, visit func(p page, depth int)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var err error
	lost := dsm.Guard(func() {
		for look := 0; err == nil; look++ {
			n, born := t.seek(hash)
			p := t.page(n)
			version := p[versionWord].Load()
			if version%2 == 0 && t.covers(n, born, hash) {
				visit(p, t.depth(n, born))
				if p[versionWord].Load() == version {
					return
				}
			}
			err = t.await(ctx, p, look, t.mend(n))
		}
	})
	return errors.Join(lost, err)
}

// mend makes a page as it should be whose owner died.
func (t *table) mend(n int) func(page) {
	return func(p page) {
		depth := int(p[depthWord].Load())
		p.sweep(func(at int) bool { return depth == 0 || t.place(hashAt(p, at), depth) == n })
	}
}
