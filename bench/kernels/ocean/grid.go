package ocean

// Points are coloured like a chessboard, by the sum of their indices.
const (
	red   = 0 // even sums
	black = 1
)

// A grid is one thread's rectangle of one array. Its owner writes points and frame, its neighbours
// read the frame.
type grid struct {
	area
	points []float64 // row by row, with the border
	// frame is the outermost rows and columns of what the thread owns, as published last: those
	// beside which there is a neighbour.
	frame [4]side
}

// The sides of a rectangle. The opposite of a side is that number with its last bit changed.
const (
	north = iota
	south
	west
	east
)

// A side is a row or column as published. The points of each colour are together: while one is
// relaxed the other is read, and then they lie on different pages.
type side struct {
	colours [2][]float64 // without the line's ends
	ends    []float64    // the first and the last point, both of the border
}

// row returns local row i, 0 to rows+1.
func (g *grid) row(i int) []float64 {
	stride := g.cols + 2
	return g.points[i*stride : (i+1)*stride : (i+1)*stride]
}

// owned returns the points of row i that the thread owns.
func (g *grid) owned(i int) []float64 { return g.row(i)[g.left : g.right+1] }

// A line is a row or column of a grid with its ends, which are in the border: points 0 to n+1.
type line struct {
	points          []float64
	from, stride, n int
	colour          int // of point 0
}

func (l line) point(j int) *float64 { return &l.points[l.from+j*l.stride] }

// first is the first index from 1 on, 1 or 2, of a point of the colour.
func (l line) first(colour int) int { return 1 + (l.colour+1+colour)&1 }

// put copies the points of a colour, without the ends, to a side.
func (l line) put(to *side, colour int) {
	for j := l.first(colour); j <= l.n; j += 2 {
		to.colours[colour][(j-1)/2] = *l.point(j)
	}
}

// get copies them from one.
func (l line) get(from *side, colour int) {
	for j := l.first(colour); j <= l.n; j += 2 {
		*l.point(j) = from.colours[colour][(j-1)/2]
	}
}

// lineAt returns the outermost row or column at a side of the rectangle, or of the border around
// it.
func (g *grid) lineAt(side int, border bool) line {
	at, stride := [4]int{north: 1, south: g.rows, west: 1, east: g.cols}[side], g.cols+2
	if border {
		at += [4]int{north: -1, south: 1, west: -1, east: 1}[side]
	}
	if side == north || side == south {
		return line{points: g.points, from: at * stride, stride: 1, n: g.cols, colour: g.parity(at, 0)}
	}
	return line{points: g.points, from: at, stride: stride, n: g.rows, colour: g.parity(0, at)}
}

// publish copies the sides at which there are neighbours to the frame. The neighbours may call
// fetch after a barrier, and the next publish must come after another one.
func (g *grid) publish() {
	g.publishColour(red)
	g.publishColour(black)
	for side, neighbour := range g.neighbours() {
		if neighbour != none {
			line, ends := g.lineAt(side, false), g.frame[side].ends
			ends[0], ends[1] = *line.point(0), *line.point(line.n + 1)
		}
	}
}

// fetch copies the neighbours' points to the border: sides and corners. all is the same grid of all
// threads. At the basin's edge, where a corner of the border belongs to a neighbour beside this
// thread, that neighbour's side contains it.
func (g *grid) fetch(all func(thread int) *grid) {
	g.fetchColour(red, all)
	g.fetchColour(black, all)
	around := g.neighbours()
	for side, neighbour := range around {
		if neighbour == none {
			continue
		}
		line, ends := g.lineAt(side, true), all(neighbour).frame[side^1].ends
		first, last := west, east // what is beside the line's ends
		if side == west || side == east {
			first, last = north, south
		}
		if around[first] == none {
			*line.point(0) = ends[0]
		}
		if around[last] == none {
			*line.point(line.n + 1) = ends[1]
		}
	}
	g.fetchCorners(all)
}

// fetchCorners copies the four points that are diagonally opposite.
func (g *grid) fetchCorners(all func(thread int) *grid) {
	around := g.neighbours()
	for _, side := range []int{north, south} {
		if around[side] == none {
			continue
		}
		line := g.lineAt(side, true)
		if around[west] != none {
			from := all(around[side] - 1)
			*line.point(0) = from.published(side^1, from.cols)
		}
		if around[east] != none {
			*line.point(line.n + 1) = all(around[side]+1).published(side^1, 1)
		}
	}
}

// published returns point j, no end, of a side as published.
func (g *grid) published(side, j int) float64 {
	colour := (g.lineAt(side, false).colour + j) & 1
	return g.frame[side].colours[colour][(j-1)/2]
}

// parity is 1 if the point at local indices (i, j) is black.
func (a area) parity(i, j int) int { return (a.row0 + i + a.col0 + j) & 1 }

// first is the first local index from 1 on, 1 or 2, of a point of the colour in row i.
func (a area) first(i, colour int) int { return 1 + a.parity(i, 1+colour) }

// publishColour is publish for the interior points of one colour.
func (g *grid) publishColour(colour int) {
	for side, neighbour := range g.neighbours() {
		if neighbour != none {
			g.lineAt(side, false).put(&g.frame[side], colour)
		}
	}
}

// fetchColour is fetch for the points of one colour, without corners: the neighbours may be
// publishing the other colour.
func (g *grid) fetchColour(colour int, all func(thread int) *grid) {
	for side, neighbour := range g.neighbours() {
		if neighbour != none {
			g.lineAt(side, true).get(&all(neighbour).frame[side^1], colour)
		}
	}
}
