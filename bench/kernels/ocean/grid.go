package ocean

// Points are coloured like a chessboard, by the sum of their indices.
const (
	red   = 0 // even sums
	black = 1
)

// A grid is one thread's band of one array. Its owner writes points and frame, its neighbours read
// the frame.
type grid struct {
	area
	points []float64 // row by row, with the border
	// frame is the outermost rows of what the thread owns, as published last: those beside which
	// there is a neighbour.
	frame [2]side
	turn  int // which copy of the black points was published last, by all threads
}

// The sides of a band. The opposite of a side is the other number.
const (
	north = iota
	south
)

// A side is rows as published, the outermost first: whole ones, or the black points of reach rows
// without the ends. Of these there are two copies in turn, on different pages. So a thread can
// publish without waiting until its neighbours have fetched what it published before.
type side struct {
	rows  [][]float64
	black [2][]float64
}

// row returns local row i, 1-reach to rows+reach.
func (g *grid) row(i int) []float64 {
	stride := g.cols + 2
	at := (i + reach - 1) * stride
	return g.points[at : at+stride : at+stride]
}

// outermost returns which row is the k-th from a side, 0 the outermost.
func (a area) outermost(side, k int) int { return [2]int{north: 1 + k, south: a.rows - k}[side] }

// border returns which row beyond a side is the k-th, 0 the nearest.
func (a area) border(side, k int) int { return [2]int{north: -k, south: a.rows + 1 + k}[side] }

// publish copies the sides at which there are neighbours to the frame. The neighbours may call
// fetch after a barrier, and the next publish must come after another one.
func (g *grid) publish() {
	for side := range g.frame {
		for k, to := range g.frame[side].rows {
			copy(to, g.row(g.outermost(side, k)))
		}
	}
}

// fetch copies the neighbours' points to the border. all is the same grid of all threads.
func (g *grid) fetch(all func(thread int) *grid) {
	for side, neighbour := range g.neighbours() {
		if neighbour != none {
			for k, from := range all(neighbour).frame[side^1].rows {
				copy(g.row(g.border(side, k)), from)
			}
		}
	}
}

// publishBlack is publish for the black points of a relaxed grid. All threads call it as often. A
// barrier must follow before the next one, and fetchBlack must come before the barrier after that.
func (g *grid) publishBlack() {
	g.turn ^= 1
	for side, neighbour := range g.neighbours() {
		if neighbour == none {
			continue
		}
		to := g.frame[side].black[g.turn]
		for k := range reach {
			i := g.outermost(side, k)
			row, part := g.row(i), to[k*g.cols/2:]
			for j := g.first(i, black); j <= g.cols; j += 2 {
				part[(j-1)/2] = row[j]
			}
		}
	}
}

// fetchBlack is fetch for them.
func (g *grid) fetchBlack(all func(thread int) *grid) {
	for side, neighbour := range g.neighbours() {
		if neighbour == none {
			continue
		}
		from := all(neighbour).frame[side^1].black[g.turn]
		for k := range reach {
			i := g.border(side, k)
			row, part := g.row(i), from[k*g.cols/2:]
			for j := g.first(i, black); j <= g.cols; j += 2 {
				row[j] = part[(j-1)/2]
			}
		}
	}
}

// parity is 1 if the point at local indices (i, j) is black.
func (a area) parity(i, j int) int { return (a.row0 + i + j) & 1 }

// first is the first index from 1 on, 1 or 2, of a point of the colour in local row i.
func (a area) first(i, colour int) int { return 1 + a.parity(i, 1+colour) }
