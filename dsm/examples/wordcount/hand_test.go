package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"dsmd/dsm"
)

// counted is a word with its number, in shared memory.
type counted struct {
	text [longest - 8]byte
	n    int
}

func newCounted(word string, n int) (w counted) {
	w.n = n
	copy(w.text[:], word)
	return w
}

func (w counted) hash() int {
	h := fnv.New32()
	h.Write(w.text[:])
	return int(h.Sum32() >> 8)
}

func (w counted) compare(v counted) int { return slices.Compare(w.text[:], v.text[:]) }

// byHand is what an expert writes, combined first: each rank puts its counts in the order of the
// ranks that are to add them up, which fetch what is for them at once. The result is in shared
// memory.
func byHand(ctx context.Context, c *dsm.Cluster, text []string) error {
	own := threaded(text[len(text)*c.Rank()/c.Size():len(text)*(c.Rank()+1)/c.Size()], 1)
	sorted := make([][]counted, c.Size())
	for word, n := range own {
		w := newCounted(word, n)
		to := w.hash() % c.Size()
		sorted[to] = append(sorted[to], w)
	}
	var lengths [4]int
	for to := range sorted {
		lengths[to] = len(sorted[to])
	}
	ends, err := dsm.AllGather(ctx, c, "by hand", lengths)
	if err != nil {
		return err
	}
	const room = vocabulary
	shared, err := dsm.Alloc[counted](ctx, c, "by hand", c.Size()*room)
	if err != nil {
		return err
	}
	copy(shared[c.Rank()*room:], slices.Concat(sorted...))
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	var all []counted
	for rank := range c.Size() {
		lo := rank * room
		for to := range c.Rank() {
			lo += ends[rank][to]
		}
		part := shared[lo:][:ends[rank][c.Rank()]]
		if err := dsm.Prefetch(ctx, c, part, dsm.Read); err != nil {
			return err
		}
		all = append(all, part...)
	}
	slices.SortFunc(all, counted.compare)
	result, err := dsm.Alloc[counted](ctx, c, "result", c.Size()*room)
	if err != nil {
		return err
	}
	mine := result[c.Rank()*room:][:0]
	for _, w := range all {
		if last := len(mine) - 1; last >= 0 && mine[last].text == w.text {
			mine[last].n += w.n
		} else {
			mine = append(mine, w)
		}
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	return errors.Join(dsm.Free(ctx, c, shared), dsm.Free(ctx, c, result))
}

// obvious is what one writes who comes from threads: a hash table that all share, whose parts each
// have a lock.
func obvious(ctx context.Context, c *dsm.Cluster, text []string) error {
	const parts, slots = 64, 2 * vocabulary / 64
	table, err := dsm.Alloc[counted](ctx, c, "obvious", parts*slots)
	if err != nil {
		return err
	}
	var locks [parts]*dsm.Mutex
	for i := range locks {
		locks[i] = dsm.NewMutex(c, fmt.Sprintf("obvious/%d", i))
	}
	add := func(w counted) error {
		h := w.hash()
		lock, part := locks[h%parts], table[h%parts*slots:][:slots]
		if err := lock.Lock(ctx); err != nil {
			return err
		}
		slot := h / parts % slots
		for part[slot].n > 0 && part[slot].text != w.text {
			slot = (slot + 1) % slots
		}
		w.n += part[slot].n
		part[slot] = w
		return lock.Unlock()
	}
	for _, word := range text[len(text)*c.Rank()/c.Size() : len(text)*(c.Rank()+1)/c.Size()] {
		if err := add(newCounted(word, 1)); err != nil {
			return err
		}
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	sum := 0
	for i := range table {
		sum += table[i].n
	}
	if sum != len(text) {
		return fmt.Errorf("%d words are counted, of %d", sum, len(text))
	}
	return errors.Join(c.Barrier(ctx), dsm.Free(ctx, c, table))
}
