package main

import (
	"context"
	"errors"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/parallel"
)

// frame is what operators run on. Every rank calls them. They do nothing after the first error.
type frame struct {
	ctx  context.Context
	c    *dsm.Cluster
	team *parallel.Team
	err  error
}

func (f *frame) try(do func() error) {
	if f.err == nil {
		f.err = do()
	}
}

// column makes a column of n values.
func column[T any](f *frame, name string, n int, value func(row int) (T, error)) (all []T) {
	f.try(func() (err error) { all, err = dsm.Alloc[T](f.ctx, f.c, name, n); return err })
	f.try(func() error {
		return f.team.For(f.ctx, n, func(row int) (err error) { all[row], err = value(row); return err })
	})
	return all
}

// filter returns which of n rows are kept, in order. Rows are counted by blocks first. Then each
// block knows where its rows begin.
func (f *frame) filter(name string, n int, keep func(row int) bool) (rows []int32) {
	visit := func(b int, found func(row int)) {
		for row := b * block; row < min((b+1)*block, n); row++ {
			if keep(row) {
				found(row)
			}
		}
	}
	starts := []int{0}
	for _, count := range column(f, name+"/counts", (n+block-1)/block, func(b int) (count int, _ error) {
		visit(b, func(int) { count++ })
		return count, nil
	}) {
		starts = append(starts, starts[len(starts)-1]+count)
	}
	blocks := len(starts) - 1
	f.try(func() (err error) { rows, err = dsm.Alloc[int32](f.ctx, f.c, name, starts[blocks]); return err })
	f.try(func() error {
		return f.team.For(f.ctx, blocks, func(b int) error {
			next := rows[starts[b]:]
			visit(b, func(row int) { next[0], next = int32(row), next[1:] })
			return nil
		})
	})
	return rows
}

// join returns, for each of n rows, the row of another table with the same key, or unknown. Every
// rank looks keys up in an index of the other table, whose pages come to it once.
func (f *frame) join(name string, n int, key func(i int) int32, keys []int32) []int32 {
	index := newMap[int32](f, name+"/index", len(keys))
	collect(f, index, len(keys), dsm.Min, func(row int) (int32, int32) { return keys[row], int32(row) })
	return column(f, name, n, func(i int) (int32, error) {
		row, there, err := index.Load(f.ctx, key(i))
		if !there {
			row = unknown
		}
		return row, err
	})
}

// sums adds up the values of n rows that have the same key, of about so many keys.
func (f *frame) sums(name string, keys, n int, of func(i int) (key int32, value int64)) map[int32]int64 {
	groups, found := newMap[int64](f, name, keys), map[int32]int64{}
	collect(f, groups, n, dsm.Sum, of)
	f.try(func() error {
		for e, err := range groups.All(f.ctx) {
			if err != nil {
				return err
			}
			found[e.Key] = e.Value
		}
		return nil
	})
	return found
}

func newMap[V comparable](f *frame, name string, keys int) (m *collections.Map[int32, V]) {
	f.try(func() (err error) { m, err = collections.NewMap[int32, V](f.ctx, f.c, name, keys); return err })
	return m
}

// collect merges values of n rows that have the same key into a map, on each rank first.
func collect[V comparable](f *frame, into *collections.Map[int32, V], n int, merge func(a, b V) V, of func(i int) (key int32, value V)) {
	f.try(func() error {
		own := into.Combine(merge)
		err := f.team.For(f.ctx, n, func(i int) error {
			key, value := of(i)
			return own.Add(f.ctx, key, value)
		})
		return errors.Join(err, own.FlushAll(f.ctx, f.c))
	})
}
