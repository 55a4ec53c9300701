package water

import (
	"fmt"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// order is that of the method: beside its place, each atom has this many derivatives by time, in
// units of the step and divided by the factorial.
const order = 6

// corrections are Gear's coefficients for the place and its derivatives.
var corrections = [order + 1]float64{863. / 6048, 665. / 1008, 1, 25. / 36, 35. / 144, 1. / 24, 1. / 360}

// sums are over all molecules. Each thread adds its part, once in a step. (The original does it
// four times, as it computes them.)
type sums struct {
	virial                        float64
	kinetic                       [3]float64 // by direction
	inner, between, reactionField float64    // potential energies
}

func (s *sums) add(part *sums) {
	s.virial += part.virial
	for dir, x := range part.kinetic {
		s.kinetic[dir] += x
	}
	s.inner += part.inner
	s.between += part.between
	s.reactionField += part.reactionField
}

// An energy is a step's figures, in kT per atom but for the temperature.
type energy struct {
	kinetic, inner, between, field, total float64
	temperature, virial                   float64 // means over all steps so far
}

// figures adds the energies under the names of the original's columns.
func (e energy) figures(step int, to map[string]any) {
	for name, x := range map[string]float64{
		"TEN": e.kinetic, "POTA": e.inner, "POTR": e.between, "POTRF": e.field,
		"total": e.total, "temperature": e.temperature, "virial": e.virial,
	} {
		to[fmt.Sprintf("step %d %s", step, name)] = x
	}
}

// A worker is one thread, which has molecules lo to hi-1.
type worker struct {
	*kernel.Thread
	run         *run
	lo, hi      int
	derivatives [order][]vectors // of its molecules; the first is the velocity
	forces      forces           // on its molecules
	exerted     []vectors        // forces by this thread's pairs, on all molecules
	part        sums             // its part of the step's sums
	energies    []energy         // by step
	meanKinetic float64          // these two are sums over the steps
	meanVirial  float64
}

func newWorker(r *run, t *kernel.Thread) *worker {
	w := &worker{Thread: t, run: r, exerted: make([]vectors, r.system.n)}
	w.lo, w.hi = t.Mine(r.system.n)
	w.forces = r.forces[t.Index]
	for i := range w.derivatives {
		w.derivatives[i] = make([]vectors, w.hi-w.lo)
	}
	return w
}

// simulate is the whole program of one thread.
func (w *worker) simulate() {
	w.begin()
	for step := range steps {
		w.move()
		w.measure()
		w.Done(step+1, steps)
	}
}

// begin computes the accelerations at the start, from the forces between molecules only, as the
// original does.
func (w *worker) begin() {
	for mol := w.lo; mol < w.hi; mol++ {
		w.run.places[mol].locate()
		*w.forces.on(mol) = vectors{}
	}
	w.interact()
	for mol := w.lo; mol < w.hi; mol++ {
		w.derivatives[1][mol-w.lo] = *w.forces.on(mol)
	}
}

// move advances the molecules by a step. Before it everybody has read the sums of the step before;
// after it there has been no barrier since the molecules moved.
func (w *worker) move() {
	w.part = sums{}
	if w.Index == 0 {
		*w.run.sums = sums{}
	}
	w.Wait(w.run.barrier, "before predicting")
	w.predict()
	w.bend()
	w.interact()
	w.correct()
	w.addKinetic()
}

// predict extends each atom's Taylor series by a step.
func (w *worker) predict() {
	for mol := w.lo; mol < w.hi; mol++ {
		series := w.series(mol)
		for dir := range 3 {
			for atom := range 3 {
				for k := range order {
					sum := 0.0
					choose := float64(k + 1) // l+1 over k
					for l := k; l < order; l++ {
						sum += choose * series[l+1][dir][atom]
						choose = choose * float64(l+2) / float64(l+2-k)
					}
					series[k][dir][atom] += sum
				}
			}
		}
	}
}

// series is a molecule's place and its derivatives.
func (w *worker) series(mol int) [order + 1]*vectors {
	s := [order + 1]*vectors{&w.run.places[mol].atoms}
	for k := range order {
		s[k+1] = &w.derivatives[k][mol-w.lo]
	}
	return s
}

// bend sets the forces to those within molecules.
func (w *worker) bend() {
	for mol := w.lo; mol < w.hi; mol++ {
		p := &w.run.places[mol]
		p.locate()
		f := p.innerForces()
		for dir := range f {
			for atom := range f[dir] {
				w.part.virial += p.atoms[dir][atom] * f[dir][atom]
			}
		}
		*w.forces.on(mol) = f
	}
}

// interact adds the forces between molecules to the forces, and turns them into accelerations. All
// threads have set their molecules' places and forces before, without a barrier.
func (w *worker) interact() {
	w.Wait(w.run.barrier, "before computing the forces")
	w.fetch()
	clear(w.exerted)
	virial := 0.0
	w.eachPair(func(a, b int, p *pair) {
		f, part := p.strengths()
		virial += part
		p.push(&f, &w.exerted[a], &w.exerted[b])
	})
	w.part.virial += virial
	w.deposit()
	w.Wait(w.run.barrier, "after adding the forces")
	kernel.Fetch(w.Thread, w.forces.sheets, dsm.Write)
	for mol := w.lo; mol < w.hi; mol++ {
		for dir := range 3 {
			f := &w.forces.on(mol)[dir]
			f[hydrogen1] *= w.run.system.hydrogenFactor
			f[oxygen] *= w.run.system.oxygenFactor
			f[hydrogen2] *= w.run.system.hydrogenFactor
		}
	}
}

// reach is how many molecules from lo on this thread's pairs have, the last ones modulo n.
func (w *worker) reach() int {
	if w.lo == w.hi {
		return 0
	}
	return min(w.hi-w.lo+w.run.system.n/2, w.run.system.n)
}

// fetch brings the places that this thread's pairs have here.
func (w *worker) fetch() {
	w.GoOn()
	n, end := w.run.system.n, w.lo+w.reach()
	kernel.Fetch(w.Thread, w.run.places[w.lo:min(end, n)], dsm.Read)
	kernel.Fetch(w.Thread, w.run.places[:max(end-n, 0)], dsm.Read)
}

// eachPair calls f for the pairs of this thread's molecules that are not too far apart.
func (w *worker) eachPair(f func(a, b int, p *pair)) {
	n := w.run.system.n
	var p pair
	for a := w.lo; a < w.hi; a++ {
		for next := a + 1; next <= a+partners(n, a); next++ {
			b := next
			if b >= n {
				b -= n
			}
			if p.measure(w.run.system, &w.run.places[a], &w.run.places[b]) {
				f(a, b, &p)
			}
		}
	}
}

// partners is with how many of the molecules that follow it a molecule makes a pair: half of the
// others. If n is even, there is one too many for that, and the molecules of every opposite two
// take turns.
func partners(n, mol int) int {
	half := n / 2
	if n%2 == 0 && (mol >= half && mol%2 == 0 || mol < half && (mol+half)%2 == 1) {
		return half - 1
	}
	return half
}

// deposit adds what this thread's pairs exerted to the forces, a thread's molecules after
// another's, beginning with its own.
func (w *worker) deposit() {
	n, end := w.run.system.n, w.lo+w.reach()
	for k, at := w.Index, w.lo; at < end; k = (k + 1) % w.Total {
		lo, hi := w.Block(n, k)
		hi = min(hi, lo+end-at)
		w.depositOn(w.run.forces[k], hi)
		at += hi - lo
	}
}

// depositOn adds to the forces on the first molecules of a thread's, up to hi-1, sheet by sheet.
func (w *worker) depositOn(f forces, hi int) {
	kernel.Fetch(w.Thread, f.sheets[:sheetsFor(hi-f.lo)], dsm.Write)
	for first := f.lo; first < hi; first += lockSpan {
		w.Locked(f.lock(first), func() {
			for mol := first; mol < min(first+lockSpan, hi); mol++ {
				f.on(mol).add(&w.exerted[mol])
			}
		})
	}
}

func (v *vectors) add(x *vectors) {
	for dir := range v {
		for atom := range v[dir] {
			v[dir][atom] += x[dir][atom]
		}
	}
}

// correct moves the predictions by how far the acceleration is from what was predicted, and
// molecules that have left the box to its other side.
func (w *worker) correct() {
	box := w.run.system.box
	for mol := w.lo; mol < w.hi; mol++ {
		series := w.series(mol)
		force := w.forces.on(mol)
		for dir := range 3 {
			for atom := range 3 {
				off := force[dir][atom] - series[2][dir][atom]
				for k := range series {
					series[k][dir][atom] += corrections[k] * off
				}
			}
			x := &series[0][dir]
			shift := 0.0
			if x[oxygen] > box {
				shift = -box
			} else if x[oxygen] < 0 {
				shift = box
			}
			for atom := range x {
				x[atom] += shift
			}
		}
	}
}

// addKinetic adds twice the molecules' kinetic energies to the sums.
func (w *worker) addKinetic() {
	for _, v := range w.derivatives[0] {
		for dir, v := range v {
			h1, o, h2 := v[hydrogen1], v[oxygen], v[hydrogen2]
			w.part.kinetic[dir] += (h1*h1+h2*h2)*hydrogenMass + o*o*oxygenMass
		}
	}
}

// measure computes the potential energies, and with them the step's figures.
func (w *worker) measure() {
	for mol := w.lo; mol < w.hi; mol++ {
		p := &w.run.places[mol]
		p.locate()
		w.part.inner += p.innerEnergy()
	}
	w.Wait(w.run.barrier, "before computing the energies")
	w.fetch()
	w.eachPair(func(_, _ int, p *pair) {
		potential, reaction := p.energies()
		w.part.between += potential
		w.part.reactionField += reaction
	})
	w.Locked(w.run.sumsLock, func() { w.run.sums.add(&w.part) })
	w.Wait(w.run.barrier, "after computing the energies")
	w.record(*w.run.sums)
	w.Wait(w.run.barrier, "after reading the energies")
}

// record appends the figures of a step.
func (w *worker) record(s sums) {
	scale, n := w.run.system, float64(len(w.energies)+1)
	kinetic := s.kinetic[0] + s.kinetic[1] + s.kinetic[2]
	w.meanKinetic += kinetic
	w.meanVirial -= s.virial
	e := energy{
		kinetic: kinetic * scale.kineticScale,
		inner:   s.inner * scale.potentialScale, between: s.between * scale.potentialScale, field: s.reactionField * scale.potentialScale,
		temperature: w.meanKinetic * scale.kineticScale * temperature * 2 / (3 * n),
		virial:      w.meanVirial * scale.potentialScale * 0.5 / n,
	}
	e.total = e.inner + e.between + e.field + e.kinetic
	w.energies = append(w.energies, e)
}
