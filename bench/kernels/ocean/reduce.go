package ocean

// errorNames are the names of the errors' maxima, by the copy of black points that is published
// before. After each of the two a thread misses other pages, and by the name its node can tell
// which.
var errorNames = [2]string{"ocean/error/0", "ocean/error/1"}

// max returns the largest x, none negative, of all threads. It is also a barrier. It takes one
// message per process each way, where the original takes a lock, a shared variable and two
// barriers.
func (w *worker) max(name string, x float64) float64 {
	r := w.run
	r.worst[w.Index-w.First] = x
	w.Wait(r.here, "before finding the maximum")
	if w.Index == w.First {
		r.largest = 0
		for _, brought := range r.worst {
			r.largest = max(r.largest, brought)
		}
		r.largest = w.Max(name, r.largest)
	}
	w.Wait(r.here, "after finding the maximum")
	return r.largest
}

// sum returns the sum of all threads' x, added up in the order of threads, so that it depends
// neither on which comes first nor on how the threads are distributed over processes. It contains
// one barrier, and another must come before the next sum.
func (w *worker) sum(x float64) float64 {
	w.run.partial[w.Index] = x
	w.meet("of a sum")
	total := 0.0
	for _, partial := range w.run.partial {
		total += partial
	}
	return total
}
