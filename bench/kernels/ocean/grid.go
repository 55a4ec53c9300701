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
	frame  []float64 // the outermost rows and columns of what the thread owns, as published last
}

// row returns local row i, 0 to rows+1.
func (g *grid) row(i int) []float64 {
	stride := g.cols + 2
	return g.points[i*stride : (i+1)*stride : (i+1)*stride]
}

// owned returns the points of row i that the thread owns.
func (g *grid) owned(i int) []float64 { return g.row(i)[g.left : g.right+1] }

// The four sides of the frame: rows 1 and rows, columns 1 and cols, each with both of its border
// points.
func (g *grid) north() []float64 { return g.frame[:g.cols+2] }
func (g *grid) south() []float64 { return g.frame[g.cols+2 : 2*(g.cols+2)] }
func (g *grid) westSide() []float64 {
	return g.frame[2*(g.cols+2) : 2*(g.cols+2)+g.rows+2]
}
func (g *grid) eastSide() []float64 { return g.frame[2*(g.cols+2)+g.rows+2:] }

// publish copies the sides at which there are neighbours to the frame. The neighbours may call
// fetch after a barrier, and the next publish must come after another one.
func (g *grid) publish() {
	if g.up != none {
		copy(g.north(), g.row(1))
	}
	if g.down != none {
		copy(g.south(), g.row(g.rows))
	}
	stride := g.cols + 2
	if g.west != none {
		for i, side := 0, g.westSide(); i < len(side); i++ {
			side[i] = g.points[i*stride+1]
		}
	}
	if g.east != none {
		for i, side := 0, g.eastSide(); i < len(side); i++ {
			side[i] = g.points[i*stride+g.cols]
		}
	}
}

// fetch copies the neighbours' points to the border: sides and corners. all is the same grid of all
// threads. At the basin's edge, where a corner of the border belongs to a neighbour beside this
// thread, that neighbour's side contains it.
func (g *grid) fetch(all func(thread int) *grid) {
	stride := g.cols + 2
	if g.up != none {
		copy(g.row(0)[g.left:g.right+1], all(g.up).south()[g.left:])
	}
	if g.down != none {
		copy(g.row(g.rows + 1)[g.left:g.right+1], all(g.down).north()[g.left:])
	}
	if g.west != none {
		side := all(g.west).eastSide()
		for i := g.top; i <= g.bottom; i++ {
			g.points[i*stride] = side[i]
		}
	}
	if g.east != none {
		side := all(g.east).westSide()
		for i := g.top; i <= g.bottom; i++ {
			g.points[i*stride+g.cols+1] = side[i]
		}
	}
	g.fetchCorners(all)
}

// fetchCorners copies the four points that are diagonally opposite.
func (g *grid) fetchCorners(all func(thread int) *grid) {
	upper, lower := g.points, g.points[len(g.points)-min(len(g.points), g.cols+2):]
	if g.up != none && g.west != none {
		from := all(g.up - 1)
		upper[0] = from.south()[from.cols]
	}
	if g.up != none && g.east != none {
		upper[g.cols+1] = all(g.up + 1).south()[1]
	}
	if g.down != none && g.west != none {
		from := all(g.down - 1)
		lower[0] = from.north()[from.cols]
	}
	if g.down != none && g.east != none {
		lower[g.cols+1] = all(g.down + 1).north()[1]
	}
}

// parity is 1 if the point at local indices (i, j) is black.
func (a area) parity(i, j int) int { return (a.row0 + i + a.col0 + j) & 1 }

// first is the first local index from 1 on, 1 or 2, of a point of the colour, in row i, or in
// column i (which is the same: only the sum counts).
func (a area) first(i, colour int) int { return 1 + a.parity(i, 1+colour) }

// publishColour is publish for the interior points of one colour.
func (g *grid) publishColour(colour int) {
	if g.up != none {
		every2nd(g.north()[:g.cols+1], g.row(1), g.first(1, colour))
	}
	if g.down != none {
		every2nd(g.south()[:g.cols+1], g.row(g.rows), g.first(g.rows, colour))
	}
	stride := g.cols + 2
	if g.west != none {
		side := g.westSide()
		for i := g.first(1, colour); i <= g.rows; i += 2 {
			side[i] = g.points[i*stride+1]
		}
	}
	if g.east != none {
		side := g.eastSide()
		for i := g.first(g.cols, colour); i <= g.rows; i += 2 {
			side[i] = g.points[i*stride+g.cols]
		}
	}
}

// fetchColour is fetch for the points of one colour, without corners: the neighbours may be
// publishing the other colour.
func (g *grid) fetchColour(colour int, all func(thread int) *grid) {
	if g.up != none {
		every2nd(g.row(0)[:g.cols+1], all(g.up).south(), g.first(0, colour))
	}
	if g.down != none {
		every2nd(g.row(g.rows + 1)[:g.cols+1], all(g.down).north(), g.first(g.rows+1, colour))
	}
	stride := g.cols + 2
	if g.west != none {
		side := all(g.west).eastSide()
		for i := g.first(0, colour); i <= g.rows; i += 2 {
			g.points[i*stride] = side[i]
		}
	}
	if g.east != none {
		side := all(g.east).westSide()
		for i := g.first(g.cols+1, colour); i <= g.rows; i += 2 {
			g.points[i*stride+g.cols+1] = side[i]
		}
	}
}

// every2nd copies every second element from start on.
func every2nd(to, from []float64, start int) {
	for j := start; j < len(to); j += 2 {
		to[j] = from[j]
	}
}
