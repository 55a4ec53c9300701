package barnes

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"dsmd/bench/kernels/vec"
)

// A vector is a point or a direction in space.
type vector = vec.Vector

// A body is what everybody reads of a body: in the force phase every thread reads nearly all of
// them.
type body struct {
	pos  vector
	mass float64
	// cost is how many interactions the body had in the last force phase. It is the measure by
	// which the next step divides the bodies among the threads.
	cost int64
}

// A motion is what only the thread needs that moves the body. It lies apart from the body, so that
// reading positions does not bring these along.
type motion struct {
	vel, acc vector
	phi      float64
}

// random is the original program's generator, a linear congruential one of 31 bits.
type random uint64

// between returns the next number, at least low and below high.
func (r *random) between(low, high float64) float64 {
	unit := float64(*r) / (1 << 31)
	*r = (*r*1103515245 + 12345) & (1<<31 - 1)
	return low + float64((high-low)*unit)
}

// shell returns a random direction of the given length: a point of the unit ball, stretched.
func (r *random) shell(length float64) vector {
	for {
		v := vector{r.between(-1, 1), r.between(-1, 1), r.between(-1, 1)}
		if square := v.Dot(v); square <= 1 {
			return v.Scaled(length / math.Sqrt(square))
		}
	}
}

const (
	// seed is the one of the original program's input files.
	seed = 123
	// massFraction is the part of a Plummer model's mass at which it is cut off, and largestRadius
	// the radius.
	massFraction  = 0.999
	largestRadius = 9
	// offset is by how much the second cluster is moved against the first, in each coordinate.
	offset = 4
)

// plummer generates two equal clusters of n bodies in all, each a Plummer model (Aarseth, Hénon and
// Wielen, Astronomy and Astrophysics 37, 1974), in the frame in which the centre of mass rests at
// the origin. The second is the first, moved. Every process generates all bodies for itself, and
// keeps those that it needs.
func plummer(n int) ([]body, []motion) {
	bodies, motions := make([]body, n), make([]motion, n)
	half := (n + 1) / 2
	r := random(seed)
	var centre, drift vector
	for i := range half {
		bodies[i].pos, motions[i].vel = r.plummerBody()
		centre, drift = centre.Add(bodies[i].pos), drift.Add(motions[i].vel)
	}
	for i := half; i < n; i++ {
		bodies[i].pos = bodies[i-half].pos.Add(vector{offset, offset, offset})
		motions[i].vel = motions[i-half].vel
		centre, drift = centre.Add(bodies[i].pos), drift.Add(motions[i].vel)
	}
	centre, drift = centre.Over(float64(n)), drift.Over(float64(n))
	for i := range bodies {
		bodies[i].pos = bodies[i].pos.Sub(centre)
		bodies[i].mass = 1 / float64(n)
		bodies[i].cost = 1
		motions[i].vel = motions[i].vel.Sub(drift)
	}
	return bodies, motions
}

// keyLevels is down to which level of the tree the bodies are put in order: as many as have room in
// a word, at three bits each.
const keyLevels = 21

// orderInSpace returns the bodies' numbers in the order in which the tree of the first step has
// them. The error is for bodies of which no tree can be built.
func orderInSpace(bodies []body) ([]int32, error) {
	all := newExtent()
	for i := range bodies {
		all.include(bodies[i].pos)
	}
	box := newBox(all.low, all.high)
	keys, order := make([]uint64, len(bodies)), make([]int32, len(bodies))
	for i := range bodies {
		at, err := box.locate(bodies[i].pos)
		if err != nil {
			return nil, fmt.Errorf("locating body %d: %w", i, err)
		}
		order[i] = int32(i)
		for level := range keyLevels {
			keys[i] = keys[i]<<3 | uint64(at.octant(level))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(keys[a], keys[b]) })
	return order, nil
}

// plummerBody draws a body of one cluster: its radius from the distribution of mass, its speed from
// the distribution of speeds at that radius (by rejection), and their directions.
func (r *random) plummerBody() (pos, vel vector) {
	const lengthScale = 9 * math.Pi / 16
	speedScale := math.Sqrt(1 / lengthScale)
	radius := math.Inf(1)
	for radius > largestRadius {
		radius = 1 / math.Sqrt(math.Pow(r.between(0, massFraction), -2.0/3.0)-1)
	}
	pos = r.shell(lengthScale * radius)
	for {
		x := r.between(0, 1)
		y := r.between(0, 0.1)
		if y <= float64(float64(x*x)*math.Pow(1-float64(x*x), 3.5)) {
			speed := math.Sqrt2 * x / math.Pow(1+float64(radius*radius), 0.25)
			return pos, r.shell(speedScale * speed)
		}
	}
}
