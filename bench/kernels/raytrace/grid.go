package raytrace

import "math"

const (
	// worldCells is the number of cells along each edge of the outermost grid, and innerCells that
	// of grids in its cells. A cell with more than crowd primitives gets a grid of its own, down to
	// deepestGrid grids in each other.
	worldCells  = 16
	innerCells  = 5
	crowd       = 8
	deepestGrid = 3
	// skin is added around primitives when they are put into cells, so that one that touches a
	// cell's side is found from both sides whatever the rounding.
	skin = 1e-9
)

// A grid is a cube of n*n*n cells.
type grid struct {
	low   vector
	cell  float64 // edge of a cell
	n     int32
	first int32 // its first cell in hierarchy.cells; x runs fastest
}

// A hierarchy is a uniform grid, some of whose cells hold uniform grids. It is made of slices
// without pointers, so that it can lie in shared memory. The first grid is the outermost, the cube
// from 0 to 1.
type hierarchy struct {
	grids []grid
	// cells are 0 (nothing), i+1 (the list at lists[i]), or -g (grid g).
	cells []int32
	// lists are the numbers of primitives in cells: their count, then the numbers.
	lists []int32
}

// newHierarchy puts primitives, which lie in the cube from 0 to 1, into grids.
func newHierarchy(p *primitives) *hierarchy {
	h := &hierarchy{}
	all := make([]int32, p.count())
	for i := range all {
		all[i] = int32(i)
	}
	h.build(p, all, grid{cell: 1.0 / worldCells, n: worldCells}, 1)
	return h
}

// build makes cells for a grid of the given primitives, and returns its number.
func (h *hierarchy) build(p *primitives, members []int32, g grid, depth int) int32 {
	number, n := int32(len(h.grids)), g.n
	g.first = int32(len(h.cells))
	h.grids = append(h.grids, g)
	h.cells = append(h.cells, make([]int32, n*n*n)...)
	contents := make([][]int32, n*n*n)
	for _, member := range members {
		g.cover(p, member, func(at int32) { contents[at] = append(contents[at], member) })
	}
	for at, inside := range contents {
		entry := int32(0)
		switch {
		case len(inside) == 0:
			continue
		case len(inside) > crowd && depth < deepestGrid:
			entry = -h.build(p, inside, grid{low: g.corner(int32(at)), cell: g.cell / innerCells, n: innerCells}, depth+1)
		default:
			entry = int32(len(h.lists)) + 1
			h.lists = append(append(h.lists, int32(len(inside))), inside...)
		}
		h.cells[g.first+int32(at)] = entry
	}
	return number
}

// corner is the lowest corner of cell at.
func (g *grid) corner(at int32) vector {
	x, y, z := at%g.n, at/g.n%g.n, at/(g.n*g.n)
	return g.low.Add(vector{float64(float64(x) * g.cell), float64(float64(y) * g.cell), float64(float64(z) * g.cell)})
}

// index is the number along axis k of the cell in which coordinate x is, or the nearest.
func (g *grid) index(x float64, k int) int32 {
	return min(max(int32(math.Floor((x-g.low[k])/g.cell)), 0), g.n-1)
}

// cover calls put for each cell that the primitive may touch.
func (g *grid) cover(p *primitives, number int32, put func(at int32)) {
	low, high := p.box(number)
	ball := p.sphere(number)
	var from, to [3]int32
	for k := range low {
		from[k], to[k] = g.index(low[k]-skin, k), g.index(high[k]+skin, k)
	}
	for z := from[2]; z <= to[2]; z++ {
		for y := from[1]; y <= to[1]; y++ {
			for x := from[0]; x <= to[0]; x++ {
				at := (z*g.n+y)*g.n + x
				if ball == nil || g.touches(at, ball.centre, ball.radius+skin) {
					put(at)
				}
			}
		}
	}
}

// touches reports whether a sphere and a cell have a point in common.
func (g *grid) touches(at int32, centre vector, radius float64) bool {
	low := g.corner(at)
	square := 0.0
	for k, c := range centre {
		nearest := min(max(c, low[k]), low[k]+g.cell)
		square += float64((c - nearest) * (c - nearest))
	}
	return square <= float64(radius*radius)
}
