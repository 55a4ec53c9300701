package ocean

// The sweeps work on what a thread owns and need no synchronisation. The conversions of products
// forbid the compiler to fuse a multiplication and an addition on processors that can, which would
// round differently from one to another.

// copy sets g to x, with the border.
func (g *grid) copy(x *grid) { copy(g.points, x.points) }

// copyInterior sets g to x, but for the fixed edge.
func (g *grid) copyInterior(x *grid) {
	for i := 1; i <= g.rows; i++ {
		copy(g.row(i)[1:g.cols+1], x.row(i)[1:])
	}
}

// subtract sets g to x-y, also in the nearest row of each neighbour.
func (g *grid) subtract(x, y *grid) {
	g.bordered(func(i int, to []float64) {
		x, y := x.row(i)[:len(to)], y.row(i)[:len(to)]
		for j := range to {
			to[j] = x[j] - y[j]
		}
	})
}

// add adds a*x to g.
func (g *grid) add(a float64, x *grid) {
	g.each(func(i int, to []float64) {
		x := x.row(i)[:len(to)]
		for j := range to {
			to[j] += float64(a * x[j])
		}
	})
}

// combine sets g, which may be x, to a*x + b*y.
func (g *grid) combine(a float64, x *grid, b float64, y *grid) {
	g.each(func(i int, to []float64) {
		x, y := x.row(i)[:len(to)], y.row(i)[:len(to)]
		for j := range to {
			to[j] = float64(a*x[j]) + float64(b*y[j])
		}
	})
}

// addCoriolis adds the Coriolis parameter, f, to the vorticity. On the western and eastern edge it
// takes the row's number for the column's, as the original does; no result depends on these points.
func (g *grid) addCoriolis(f []float64) {
	g.each(func(i int, to []float64) {
		for j := range to {
			at := j
			if (j == 0 || j == g.cols+1) && !g.fixedRow(i) {
				at = g.row0 + i
			}
			to[j] += f[at]
		}
	})
}

// clearEdge sets the fixed edge to zero.
func (g *grid) clearEdge() {
	g.each(func(i int, row []float64) {
		if g.fixedRow(i) {
			clear(row)
		}
		row[0], row[len(row)-1] = 0, 0
	})
}

// laplacian sets g to the Laplacian of x, whose sides have been fetched, and its fixed edge to
// zero.
func (g *grid) laplacian(x *grid) {
	for i := 1; i <= g.rows; i++ {
		above, row, below, to := x.row(i-1), x.row(i), x.row(i+1), g.row(i)
		above, below, to = above[:len(row)], below[:len(row)], to[:len(row)]
		for j := 1; j < len(row)-1; j++ {
			to[j] = laplacianFactor * (below[j] + above[j] + row[j+1] + row[j-1] - float64(4*row[j]))
		}
	}
	g.clearEdge()
}

// jacobian sets g to the Jacobian of x and y, whose borders have been fetched, in Arakawa's form,
// and its fixed edge to zero.
func (g *grid) jacobian(x, y *grid) {
	for i := 1; i <= g.rows; i++ {
		jacobianRow(g.row(i),
			[3][]float64{x.row(i - 1), x.row(i), x.row(i + 1)},
			[3][]float64{y.row(i - 1), y.row(i), y.row(i + 1)})
	}
	g.clearEdge()
}

// jacobianRow takes the rows above, at and below the one to compute.
func jacobianRow(to []float64, x, y [3][]float64) {
	xa, x0, xb := x[0][:len(to)], x[1][:len(to)], x[2][:len(to)]
	ya, y0, yb := y[0][:len(to)], y[1][:len(to)], y[2][:len(to)]
	for j := 1; j < len(to)-1; j++ {
		w, e := j-1, j+1
		f1 := float64((y0[w] + yb[w] - y0[e] - yb[e]) * (xb[j] - x0[j]))
		f2 := float64((ya[w] + y0[w] - ya[e] - y0[e]) * (x0[j] - xa[j]))
		f3 := float64((yb[j] + yb[e] - ya[j] - ya[e]) * (x0[e] - x0[j]))
		f4 := float64((yb[w] + yb[j] - ya[w] - ya[j]) * (x0[j] - x0[w]))
		f5 := float64((yb[j] - y0[e]) * (xb[e] - x0[j]))
		f6 := float64((y0[w] - ya[j]) * (x0[j] - xa[w]))
		f7 := float64((y0[e] - ya[j]) * (xa[e] - x0[j]))
		f8 := float64((yb[j] - y0[w]) * (x0[j] - xb[w]))
		to[j] = jacobianFactor * (f1 + f2 + f3 + f4 + f5 + f6 + f7 + f8)
	}
}

// rightHandSides sets ga and gb, of the equations for the layers' difference and for their mean.
func (b *basin) rightHandSides() {
	perDepth, perUpper := 1/depth, 1/upperDepth
	b.ga.each(func(i int, ga []float64) {
		n := len(ga)
		gb, wind, stretch := b.gb.row(i)[:n], b.tauz.row(i)[:n], b.work6.row(i)[:n]
		upper, lower := b.work5[0].row(i)[:n], b.work5[1].row(i)[:n]
		upperDrag, lowerDrag := b.work7[0].row(i)[:n], b.work7[1].row(i)[:n]
		for j := range ga {
			ga[j] = upper[j] - lower[j] + float64(eig2*stretch[j]) + float64(perUpper*wind[j]) +
				float64(lateral*upperDrag[j]) - float64(lateral*lowerDrag[j])
			gb[j] = float64(upperShare*upper[j]) + float64(lowerShare*lower[j]) + float64(perDepth*wind[j]) +
				float64(lateral*upperShare*upperDrag[j]) + float64(lateral*lowerShare*lowerDrag[j])
		}
	})
}
