package cholesky

// leafVolume is the number of grid points at or below which a box is not dissected. Their columns are treated as one
// dense block, although some of it is zero: a few operations more, and far fewer and larger blocks.
const leafVolume = 16

// A box is the grid points from low (inclusive) to high (exclusive).
type box struct{ low, high [3]int }

func (b box) volume() int {
	return (b.high[0] - b.low[0]) * (b.high[1] - b.low[1]) * (b.high[2] - b.low[2])
}

// A part is a box of grid points that are eliminated together: a separator, or what was not dissected further.
type part struct {
	box
	first, end int // its columns are first to end-1
	// children are the parts directly below in the tree of dissections: none or two.
	children []int
	// threads that own its panels are from owners[0] to owners[1]-1.
	owners [2]int
}

// A dissection is an order of elimination of the points of a cubic grid: two halves first, and last the plane of points
// between them, which separates them; and the halves likewise (nested dissection, George 1973).
type dissection struct {
	edge   int
	parts  []part
	column []int // of each point, by its number in the grid
	point  []int // of each column
}

// dissect orders the grid of edge*edge*edge points. The threads are dealt out with the halves, so that what is below some
// separators is one thread's alone; the order does not depend on them.
func dissect(edge, threads int) *dissection {
	d := &dissection{edge: edge, column: make([]int, edge*edge*edge)}
	d.divide(box{high: [3]int{edge, edge, edge}}, [2]int{0, threads})
	return d
}

// divide orders the points of a box after those that are ordered already, and returns the number of its last part.
func (d *dissection) divide(b box, owners [2]int) int {
	if b.volume() <= leafVolume {
		return d.append(b, nil, owners)
	}
	axis := 0
	for k := range b.high {
		if b.high[k]-b.low[k] > b.high[axis]-b.low[axis] {
			axis = k
		}
	}
	middle := (b.low[axis] + b.high[axis]) / 2
	left, plane, right := b, b, b
	left.high[axis] = middle
	plane.low[axis], plane.high[axis] = middle, middle+1
	right.low[axis] = middle + 1
	ofLeft, ofRight := owners, owners
	if owners[1]-owners[0] > 1 {
		half := (owners[0] + owners[1]) / 2
		ofLeft[1], ofRight[0] = half, half
	}
	children := []int{d.divide(left, ofLeft), d.divide(right, ofRight)}
	return d.append(plane, children, owners)
}

func (d *dissection) append(b box, children []int, owners [2]int) int {
	p := part{box: b, first: len(d.point), children: children, owners: owners}
	for z := b.low[2]; z < b.high[2]; z++ {
		for y := b.low[1]; y < b.high[1]; y++ {
			for x := b.low[0]; x < b.high[0]; x++ {
				point := (z*d.edge+y)*d.edge + x
				d.column[point] = len(d.point)
				d.point = append(d.point, point)
			}
		}
	}
	p.end = len(d.point)
	d.parts = append(d.parts, p)
	return len(d.parts) - 1
}

// neighbours calls each with the columns of the grid points next to that of a column.
func (d *dissection) neighbours(column int, each func(int)) {
	point := d.point[column]
	stride := 1
	for range 3 {
		at := point / stride % d.edge
		if at > 0 {
			each(d.column[point-stride])
		}
		if at < d.edge-1 {
			each(d.column[point+stride])
		}
		stride *= d.edge
	}
}

// conductance is minus the matrix's element for two neighbours. It varies with both, so that a number in a wrong place changes the result.
func (d *dissection) conductance(a, b int) float64 {
	low, high := min(d.point[a], d.point[b]), max(d.point[a], d.point[b])
	return 0.5 + float64((low*37+high*101)%1009)/2018
}

// leak is by how much the elements of the diagonal exceed what flows to the neighbours. With it the matrix is positive definite.
const leak = 0.1

// diagonal is the matrix's element on the diagonal.
func (d *dissection) diagonal(column int) float64 {
	sum := leak
	d.neighbours(column, func(other int) { sum += d.conductance(column, other) })
	return sum
}
