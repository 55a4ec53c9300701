package radix

import "dsmd/bench/kernel"

// keyBytes is the length of a key in memory.
const keyBytes = 4

// A division says where in a slice the parts of the threads are. Each begins on a page, so that no
// page has two writers.
type division struct{ n, threads, stride int }

func newDivision(n, threads, pageBytes int) division {
	page := max(1, pageBytes/keyBytes)
	longest := (n + threads - 1) / threads
	return division{n: n, threads: threads, stride: (longest + page - 1) / page * page}
}

// length is that of the slice.
func (d division) length() int { return d.threads * d.stride }

// part is a thread's part of the keys.
func (d division) part(keys []int32, thread int) []int32 {
	lo, hi := kernel.Block(d.n, d.threads, thread)
	return keys[thread*d.stride:][:hi-lo]
}

// ends are, for each digit, the number of keys with this digit or a lower one. They are 4 KiB long,
// a whole page on most machines, so that threads share none.
type ends [digits]int32

// of is where the keys with a digit are, among keys that are sorted by it.
func (e *ends) of(digit int) (from, to int) {
	if digit > 0 {
		from = int(e[digit-1])
	}
	return from, int(e[digit])
}

// digitOf is the digit of a key that is shift bits, fewer than 32, from the lowest. (The compiler
// needs to be told so, or it checks.)
func digitOf(key int32, shift uint) int32 { return key >> (shift & 31) & (digits - 1) }

// distribute moves the keys of runs to the given place, sorted by the digit that is shift bits from
// the lowest. Keys of the same digit stay in order.
func distribute(to []int32, runs [][]int32, shift uint) (next ends) {
	var count ends
	for _, run := range runs {
		for _, key := range run {
			count[digitOf(key, shift)]++
		}
	}
	for digit := 1; digit < digits; digit++ {
		next[digit] = next[digit-1] + count[digit-1]
	}
	for _, run := range runs {
		for _, key := range run {
			digit := digitOf(key, shift)
			to[next[digit]] = key
			next[digit]++
		}
	}
	return next
}

// sorted are keys of which each thread's part is sorted by one digit.
type sorted struct {
	division
	keys []int32
	ends []ends // by thread, of its part
}

// runs are what comes in places lo to hi-1 when all keys are sorted by the digit: run after run,
// and, for each thread, those keys of its part that are in them.
func (s sorted) runs(lo, hi int) (runs, needed [][]int32) {
	var all ends
	for thread := range s.ends {
		for digit, end := range s.ends[thread][:] {
			all[digit] += end
		}
	}
	needed = make([][]int32, s.threads)
	for digit := range digits {
		at, end := all.of(digit)
		if end <= lo || at >= hi {
			continue
		}
		for thread := range s.ends {
			from, to := s.ends[thread].of(digit)
			first, last := from+max(lo-at, 0), from+min(hi-at, to-from)
			at += to - from
			if first < last {
				part := s.part(s.keys, thread)
				runs = append(runs, part[first:last])
				before := first - len(needed[thread])
				needed[thread] = part[before:last]
			}
		}
	}
	return runs, needed
}
