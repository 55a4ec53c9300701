package cholesky

// leafVolume is the number of grid points at or below which a box is not dissected.
const leafVolume = 16

// A box is the grid points from low (inclusive) to high (exclusive).
type box struct{ low, high [3]int }

func (b box) volume() int {
	return (b.high[0] - b.low[0]) * (b.high[1] - b.low[1]) * (b.high[2] - b.low[2])
}

// grid is the matrix of a cubic grid, every point of which is connected with its six neighbours, in
// an order of elimination that keeps the factor sparse: two halves first, and last the plane of
// points between them, which separates them; and the halves likewise (nested dissection, George
// 1973).
func grid(edge int) *matrix {
	points := edge * edge * edge
	starts, rows := make([]int32, 1, points+1), make([]int32, 0, 3*points)
	for point := range points {
		rows = append(rows, later(point, edge)...)
		starts = append(starts, int32(len(rows)))
	}
	return newMatrix(starts, rows).permuted(dissect(box{high: [3]int{edge, edge, edge}}, edge, nil))
}

// later are the points next to a point that have larger numbers.
func later(point, edge int) (points []int32) {
	for _, stride := range []int{1, edge, edge * edge} {
		if point/stride%edge < edge-1 {
			points = append(points, int32(point+stride))
		}
	}
	return points
}

// dissect appends the points of a box to those that are ordered already.
func dissect(b box, edge int, order []int32) []int32 {
	if b.volume() <= leafVolume {
		return b.appendTo(order, edge)
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
	order = dissect(left, edge, order)
	order = dissect(right, edge, order)
	return plane.appendTo(order, edge)
}

func (b box) appendTo(order []int32, edge int) []int32 {
	for z := b.low[2]; z < b.high[2]; z++ {
		for y := b.low[1]; y < b.high[1]; y++ {
			for x := b.low[0]; x < b.high[0]; x++ {
				order = append(order, int32((z*edge+y)*edge+x))
			}
		}
	}
	return order
}
