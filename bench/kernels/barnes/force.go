package barnes

import "math"

const (
	// tolerance is the ratio of a cell's side to its distance above which it is opened, and
	// softening the length that keeps near bodies from flinging each other away. Both are the
	// original input files'.
	tolerance = 1.0
	softening = 0.05
)

// A pull is what the others do to a body: acceleration, potential, and how many interactions it
// took.
type pull struct {
	acc  vector
	phi  float64
	cost int64
}

// A walker computes the pull on one body.
type walker struct {
	*tree
	self int32
	at   vector
	pull pull
}

// pullOn walks the tree for one body.
func (t *tree) pullOn(number int32, side float64) pull {
	w := walker{tree: t, self: number, at: t.bodies[number].pos}
	w.walk(cellRef(root), float64(side*side))
	return w.pull
}

// walk adds the pull of node r, the square of whose side is sideSquare: as one mass if it is far
// enough, else of each of its parts.
func (w *walker) walk(r ref, sideSquare float64) {
	if r > 0 {
		c := &w.cells[r.cell()]
		d := c.pos.Sub(w.at)
		square := d.Dot(d)
		if !near(square, sideSquare) {
			w.add(d, square, c.mass)
			return
		}
		for k := range c.sub {
			// Nobody changes the tree in this phase, so that a plain load will do.
			if child := ref(c.sub[k]); child != 0 {
				w.walk(child, sideSquare/4)
			}
		}
		return
	}
	l := &w.leaves[r.leaf()]
	d := l.pos.Sub(w.at)
	square := d.Dot(d)
	if !near(square, sideSquare) {
		w.add(d, square, l.mass)
		return
	}
	for _, number := range l.bodies[:l.count] {
		if number == w.self {
			continue
		}
		p := &w.bodies[number]
		d := p.pos.Sub(w.at)
		w.add(d, d.Dot(d), p.mass)
	}
}

func near(square, sideSquare float64) bool {
	return float64(tolerance*tolerance*square) < sideSquare
}

// add adds the pull of a mass at d, whose square is given.
func (w *walker) add(d vector, square, mass float64) {
	square += softening * softening
	distance := math.Sqrt(square)
	phi := mass / distance
	w.pull.phi -= phi
	w.pull.acc = w.pull.acc.Add(d.Scaled(phi / square))
	w.pull.cost++
}

const (
	timeStep = 0.025
	halfStep = timeStep / 2
)

// advance moves a body by one time step (leapfrog) under the given pull. Except in the first step
// the change of acceleration corrects the velocity to second order.
func advance(p *body, m *motion, by pull, firstStep bool) {
	if !firstStep {
		m.vel = m.vel.Add(by.acc.Sub(m.acc).Scaled(halfStep))
	}
	m.acc, m.phi, p.cost = by.acc, by.phi, by.cost
	kick := m.acc.Scaled(halfStep)
	middle := m.vel.Add(kick)
	p.pos = p.pos.Add(middle.Scaled(timeStep))
	m.vel = middle.Add(kick)
}
