package tsp

import (
	"cmp"
	"math"
	"slices"

	"dsmd/bench/kernels/random"
)

const (
	// maxCities bounds the number of cities, so that a set of them is a word and a tour has a fixed
	// length, as things in shared memory must.
	maxCities = 48
	// mapEdge is the edge of the square in which the cities are.
	mapEdge = 10000
)

// A path is an order of cities; how many of them count depends on where it is. The first is city 0.
type path [maxCities]uint8

// A tour is the beginning of a round trip.
type tour struct {
	bound  int32 // no round trip with this beginning is shorter
	length int32 // so far
	depth  int32 // number of cities so far
	path   path
}

// set is a set of cities.
type set uint64

func (s set) has(city int) bool    { return s>>city&1 == 1 }
func (s set) without(city int) set { return s &^ (1 << city) }

// A cityMap is the distances between n cities, rounded to integers, so that lengths do not depend
// on the order of additions.
type cityMap struct {
	n        int
	distance [maxCities][maxCities]int32
	nearest  [maxCities][]uint8 // the other cities, nearest first
}

// newMap places n cities at random, always in the same way.
func newMap(n int) *cityMap {
	m := &cityMap{n: n}
	source := random.Rand48(uint32(n))
	var x, y [maxCities]int
	for i := range n {
		x[i], y[i] = int(mapEdge*source.Float64()), int(mapEdge*source.Float64())
	}
	for i := range n {
		for j := range n {
			dx, dy := x[i]-x[j], y[i]-y[j]
			m.distance[i][j] = int32(math.Round(math.Sqrt(float64(dx*dx + dy*dy))))
		}
	}
	for i := range n {
		m.nearest[i] = m.byDistance(i)
	}
	return m
}

func (m *cityMap) byDistance(from int) []uint8 {
	var order []uint8
	for city := range m.n {
		if city != from {
			order = append(order, uint8(city))
		}
	}
	slices.SortStableFunc(order, func(a, b uint8) int { return cmp.Compare(m.distance[from][a], m.distance[from][b]) })
	return order
}

// all is the set of all cities.
func (m *cityMap) all() set { return set(1<<m.n - 1) }

// greedy is the length of the round trip that goes to the nearest city each time: the first upper
// bound.
func (m *cityMap) greedy() int64 {
	length := int64(0)
	left := m.all().without(0)
	at := 0
	for left != 0 {
		for _, next := range m.nearest[at] {
			if city := int(next); left.has(city) {
				length += int64(m.distance[at][city])
				left = left.without(city)
				at = city
				break
			}
		}
	}
	return length + int64(m.distance[at][0])
}

// remaining is a lower bound of the way from city last through all cities of left to city 0: the
// shortest edge from last into left, the minimum spanning tree of left, and the shortest edge from
// there to 0.
func (m *cityMap) remaining(last int, left set) int32 {
	if left == 0 {
		return m.distance[last][0]
	}
	var cities [maxCities]uint8
	count := 0
	out, home := int32(math.MaxInt32), int32(math.MaxInt32)
	for city := range m.n {
		if left.has(city) {
			cities[count] = uint8(city)
			count++
			out = min(out, m.distance[last][city])
			home = min(home, m.distance[0][city])
		}
	}
	return out + m.spanningTree(cities[:count]) + home
}

// spanningTree is the length of the minimum spanning tree (Prim's algorithm). It reorders cities.
func (m *cityMap) spanningTree(cities []uint8) int32 {
	var gap [maxCities]int32 // of each city not in the tree, to the tree
	last := len(cities) - 1
	newest := cities[last]
	cities = cities[:last]
	for i := range cities {
		gap[i] = math.MaxInt32
	}
	total := int32(0)
	for len(cities) > 0 {
		nearest := 0
		from := &m.distance[newest]
		for i, city := range cities {
			gap[i] = min(gap[i], from[city])
			if gap[i] < gap[nearest] {
				nearest = i
			}
		}
		total += gap[nearest]
		newest = cities[nearest]
		last := len(cities) - 1
		cities[nearest], gap[nearest] = cities[last], gap[last]
		cities = cities[:last]
	}
	return total
}

// allowed reports whether city may come next when left are still to be visited. Of the two
// directions of each round trip only the one that comes to city 1 before city 2 counts.
func allowed(city int, left set) bool { return city != 2 || !left.has(1) }
