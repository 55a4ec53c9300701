// Package kv is a key-value store under the workloads A, B and C of YCSB (Cooper and others,
// "Benchmarking Cloud Serving Systems with YCSB", 2010).
//
// Records have ten fields, of eight bytes instead of a hundred, because a key and its value must
// fit into an eighth of a page. Keys are drawn by a Zipf distribution with exponent 0.99, and the
// popular ones lie anywhere. To read is to load a record; to update is to change one of its fields.
//
// The operations are the same for any number of threads, which divide them. An update adds 1 to a
// field, so that the records at the end are the same whatever the order. A record has the sum of
// its fields, by which whoever reads it finds out whether it is of one moment.
//
// On a cluster the store is a collections.Map. Beside it stands Go's map, in shards with locks.
package kv

import (
	"context"
	"fmt"
	"math"

	"dsmd/bench/kernel"
)

// The workloads. The sizes' parameter is how many records there are; Output is the fields of all
// records, in order.
var (
	A = workload("kv-a", "YCSB A: half of the operations on a key-value store update", 50)
	B = workload("kv-b", "YCSB B: one in twenty operations on a key-value store updates", 5)
	C = workload("kv-c", "YCSB C: all operations on a key-value store read", 0)
)

const (
	exponent = 0.99 // of the Zipf distribution
	fields   = 10
	// perRecord is how many operations there are for each record: so many that a run is not mainly
	// how a store is read for the first time.
	perRecord = 100
	// stride is after how many operations a thread says how far it is.
	stride = 1024
)

func workload(name, summary string, updates uint64) kernel.Kernel {
	return kernel.Kernel{
		Name: name, Summary: summary,
		Sizes:   kernel.Sizes{Parameter: "records", Test: 500, Default: 10_000, Large: 100_000, Min: 2, Max: 1 << 24},
		Problem: func(n int) kernel.Problem { return problem{n, updates} },
	}
}

type problem struct {
	records int
	updates uint64 // per cent of all operations
}

// Verify compares bit for bit.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// A record is consistent if its fields add up to the sum.
type record struct {
	Key    uint64
	Fields [fields]uint64
	Sum    uint64
}

// check says what is wrong with a record that was found under a key.
func (r *record) check(key uint64, there bool) error {
	sum := uint64(0)
	for _, f := range r.Fields {
		sum += f
	}
	if !there || r.Key != key || r.Sum != sum {
		return fmt.Errorf("the record of key %#x is %+v, there: %t; its fields add up to %d", key, *r, there, sum)
	}
	return nil
}

// An operation is on a record, and on a field of it, or on none if it reads.
type operation struct{ record, field uint32 }

const reads = fields

// Prepare draws the operations of this process's threads.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	r := &run{problem: p, operations: make([][]operation, t.Threads)}
	r.store = kernel.ShareMap(t, "kv", p.records, func(i int) (uint64, record) {
		key := mix(uint64(i))
		return key, record{Key: key}
	})
	zipf := newZipf(p.records)
	return r, t.Each(func(t *kernel.Thread) {
		lo, hi := t.Mine(p.records * perRecord)
		own := make([]operation, 0, hi-lo)
		for i := lo; i < hi; i++ {
			chance := mix(uint64(i)<<1 | 1)
			o := operation{uint32(zipf.draw(float64(chance>>11) / (1 << 53))), reads}
			if chance = mix(chance); chance%100 < p.updates {
				o.field = uint32(chance>>32) % fields
			}
			own = append(own, o)
		}
		r.operations[t.Index-t.First] = own
	})
}

type run struct {
	problem
	store      kernel.Map[uint64, record]
	operations [][]operation // of the threads of this process
}

func (r *run) Compute(t *kernel.Thread) {
	var field uint32
	var was record
	var there bool
	add := func(old record, found bool) record {
		was, there = old, found
		old.Fields[field]++
		old.Sum++
		return old
	}
	own := r.operations[t.Index-t.First]
	for i, o := range own {
		if i%stride == 0 {
			t.GoOn()
			t.Done(i, len(own))
		}
		key := mix(uint64(o.record))
		var err error
		if o.field == reads {
			was, there, err = r.store.Load(t.Context(), key)
		} else {
			field = o.field
			_, err = r.store.Update(t.Context(), key, add)
		}
		t.Check(err, "operation %d", i)
		t.Check(was.check(key, there), "operation %d", i)
	}
}

// Result has zeros for a record that cannot be loaded, which verifying finds.
func (r *run) Result() kernel.Result {
	output := make(kernel.Uint64s, 0, r.records*fields)
	updates := uint64(0)
	for i := range r.records {
		v, _, _ := r.store.Load(context.Background(), mix(uint64(i)))
		output, updates = append(output, v.Fields[:]...), updates+v.Sum
	}
	return kernel.Result{Output: output, Figures: map[string]any{
		"fnv": kernel.FNV(output), "operations": float64(r.records * perRecord), "updates": float64(updates),
	}}
}

// mix is one to one, and its values look random (the finalizer of SplitMix64; Steele and others,
// "Fast Splittable Pseudorandom Number Generators", 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// zipf draws numbers below n, of which i comes in proportion to 1/(i+1)^exponent (Gray and others,
// "Quickly Generating Billion-Record Synthetic Databases", 1994, as YCSB does).
type zipf struct{ n, zeta, eta float64 }

func newZipf(n int) zipf {
	zeta := func(n int) (sum float64) {
		for i := range n {
			sum += math.Pow(float64(i+1), -exponent)
		}
		return sum
	}
	z := zipf{n: float64(n), zeta: zeta(n)}
	z.eta = (1 - math.Pow(2/z.n, 1-exponent)) / (1 - zeta(2)/z.zeta)
	return z
}

// draw makes a number of one that is evenly distributed from 0 to below 1.
func (z zipf) draw(u float64) int {
	switch sum := u * z.zeta; {
	case sum < 1:
		return 0
	case sum < 1+math.Pow(0.5, exponent):
		return 1
	}
	return min(int(z.n*math.Pow(z.eta*(u-1)+1, 1/(1-exponent))), int(z.n)-1)
}
