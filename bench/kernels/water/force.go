package water

import "math"

// The potential within a molecule, a polynomial of the fourth degree in the stretching of the two
// bonds, indices 1 and 2, and the bending of the angle between them, 3, times bondLength.
var (
	fc11, fc12, fc13, fc33                         = 0.512596, -0.005823, 0.016452, 0.048098
	fc111, fc333, fc112, fc113, fc123, fc133       = -0.57191, -0.007636, -0.001867, -0.002047, -0.03083, -0.0094245
	fc1111, fc3333, fc1112, fc1122, fc1113, fc1123 = 0.8431, -0.00193, -0.0030, 0.0036, -0.012, 0.0060
	fc1133, fc1233, fc1333                         = -0.0048, 0.0211, 0.006263

	perBond, perBondSquared = 1 / bondLength, 1 / bondLength * (1 / bondLength)
)

// The potential between molecules: Coulomb's between charges, with a reaction field beyond the
// cutoff, and exponentials between atoms.
var (
	// of H-H, H-center and center-center
	charge2, charge4, charge8 = 0.07152158, 2 * 0.07152158, 4 * 0.07152158

	a1, b1 = 455.313100, 5.15271070 // O-O
	a2, b2 = 0.27879839, 2.76084370 // H-H
	a3, b3 = 0.60895706, 2.96189550 // O-H
	a4, b4 = 0.11447336, 2.23326410 // O-H, attracting

	ab1, ab2, ab3, ab4 = a1 * b1, a2 * b2, a3 * b3, a4 * b4

	field1 = -charge2 / (cutoff * cutoff * cutoff)
	field2 = 2 * field1
	field4 = 2 * field2
)

// A bend is the shape of a molecule.
type bend struct {
	bond1, bond2     [3]float64 // from the hydrogen atoms to the oxygen atom
	length1, length2 float64
	cos              float64 // of the angle
	// how far it is from the shape of the molecule at rest; by is the angle's times bondLength
	stretch1, stretch2, by float64
}

func (p *place) bend() bend {
	var b bend
	var square1, square2, product float64
	for dir, x := range p.atoms {
		b.bond1[dir], b.bond2[dir] = x[oxygen]-x[hydrogen1], x[oxygen]-x[hydrogen2]
		square1 += b.bond1[dir] * b.bond1[dir]
		square2 += b.bond2[dir] * b.bond2[dir]
		product += b.bond1[dir] * b.bond2[dir]
	}
	b.length1, b.length2 = math.Sqrt(square1), math.Sqrt(square2)
	b.cos = product / (b.length1 * b.length2)
	b.stretch1, b.stretch2 = b.length1-bondLength, b.length2-bondLength
	b.by = (math.Acos(b.cos) - bondAngle) * bondLength
	return b
}

// locate computes the center.
func (p *place) locate() {
	for dir, x := range p.atoms {
		p.center[dir] = oxygenShare*x[oxygen] + eachShare*(x[hydrogen1]+x[hydrogen2])
	}
}

// innerForces are the forces within a molecule.
func (p *place) innerForces() vectors {
	b := p.bend()
	r, s, t := b.stretch1, b.stretch2, b.by
	r2, s2, t2 := r*r, s*s, t*t
	// The derivatives of the potential by r, t and s.
	byR := fc11*r + fc12*s + fc13*t +
		(3*fc111*r2+fc112*(2*r+s)*s+2*fc113*r*t+fc123*s*t+fc133*t2)*perBond +
		(4*fc1111*r2*r+fc1112*(3*r2+s2)*s+2*fc1122*r*s2+3*fc1113*r2*t+
			fc1123*(2*r+s)*s*t+(2*fc1133*r+fc1233*s+fc1333*t)*t2)*perBondSquared
	byT := fc33*t + fc13*(r+s) +
		(3*fc333*t2+fc113*(r2+s2)+fc123*r*s+2*fc133*(r+s)*t)*perBond +
		(4*fc3333*t2*t+fc1113*(r2*r+s2*s)+fc1123*(r+s)*r*s+2*fc1133*(r2+s2)*t+
			2*fc1233*r*s*t+3*fc1333*(r+s)*t2)*perBondSquared
	byS := fc11*s + fc12*r + fc13*t +
		(3*fc111*s2+fc112*(2*s+r)*r+2*fc113*s*t+fc123*r*t+fc133*t2)*perBond +
		(4*fc1111*s2*s+fc1112*(3*s2+r2)*r+2*fc1122*r2*s+3*fc1113*s2*t+
			fc1123*(2*s+r)*r*t+(2*fc1133*s+fc1233*r+fc1333*t)*t2)*perBondSquared

	sin := math.Sqrt(1 - b.cos*b.cos)
	turn1, turn2 := bondLength/(b.length1*sin), bondLength/(b.length2*sin)
	var f vectors
	for dir := range f {
		unit1, unit2 := b.bond1[dir]/b.length1, b.bond2[dir]/b.length2
		on1 := byR*unit1 + byT*(unit1*b.cos-unit2)*turn1
		on2 := byS*unit2 + byT*(unit2*b.cos-unit1)*turn2
		f[dir] = [3]float64{hydrogen1: on1, oxygen: -(on1 + on2), hydrogen2: on2}
	}
	return f
}

// innerEnergy is the potential energy within a molecule.
func (p *place) innerEnergy() float64 {
	b := p.bend()
	r, s, t := b.stretch1, b.stretch2, b.by
	r2, s2, t2, both := r*r, s*s, t*t, r+s
	return (fc11*(r2+s2)+fc33*t2)*0.5 + fc12*r*s + fc13*both*t +
		(fc111*(r2*r+s2*s)+fc333*t2*t+fc112*both*r*s+fc113*(r2+s2)*t+fc123*r*s*t+fc133*both*t2)*perBond +
		(fc1111*(r2*r2+s2*s2)+fc3333*t2*t2+fc1112*(r2+s2)*r*s+fc1122*r2*s2+fc1113*(r2*r+s2*s)*t+
			fc1123*both*r*s*t+fc1133*(r2+s2)*t2+fc1233*r*s*t2+fc1333*both*t2*t)*perBondSquared
}

// The distances between two molecules that matter: center to center; center to the other's hydrogen
// atoms (2), and the other way round (2); between hydrogen atoms (4). These are compared with the
// cutoff. Then oxygen to oxygen, and oxygen to the other's hydrogen atoms (2), and the other way
// round (2).
const (
	centers   = 0
	fromH     = 5 // the first of the four between hydrogen atoms
	oxygens   = 9
	fromO     = 10 // the first of the four between oxygen and hydrogen
	distances = 14
)

// A pair is two molecules.
type pair struct {
	apart  [3][distances]float64 // by direction; from oxygens on only for near pairs
	square [oxygens]float64      // of the distance, of those that are compared with the cutoff
	beyond int                   // how many of the first nine are beyond the cutoff
}

// measure computes the first nine distances, and says whether any is within the cutoff. If all are,
// it computes the others, too.
func (p *pair) measure(s *system, a, b *place) bool {
	for dir := range p.apart {
		x, y, d := &a.atoms[dir], &b.atoms[dir], &p.apart[dir]
		here, there := a.center[dir], b.center[dir]
		d[0] = s.nearest(here - there)
		d[1], d[2] = s.nearest(here-y[hydrogen1]), s.nearest(here-y[hydrogen2])
		d[3], d[4] = s.nearest(x[hydrogen1]-there), s.nearest(x[hydrogen2]-there)
		d[5], d[6] = s.nearest(x[hydrogen1]-y[hydrogen1]), s.nearest(x[hydrogen1]-y[hydrogen2])
		d[7], d[8] = s.nearest(x[hydrogen2]-y[hydrogen1]), s.nearest(x[hydrogen2]-y[hydrogen2])
	}
	p.beyond = 0
	for k := range oxygens {
		p.square[k] = p.squareOf(k)
		if p.square[k] > squareLimit {
			p.beyond++
		}
	}
	if p.near() {
		p.measureOxygens(s, a, b)
	}
	return p.beyond < oxygens
}

// measureOxygens computes the distances to and from oxygen atoms.
func (p *pair) measureOxygens(s *system, a, b *place) {
	for dir := range p.apart {
		x, y, d := &a.atoms[dir], &b.atoms[dir], &p.apart[dir]
		d[9] = s.nearest(x[oxygen] - y[oxygen])
		d[10], d[11] = s.nearest(x[oxygen]-y[hydrogen1]), s.nearest(x[oxygen]-y[hydrogen2])
		d[12], d[13] = s.nearest(x[hydrogen1]-y[oxygen]), s.nearest(x[hydrogen2]-y[oxygen])
	}
}

// nearest is the coordinate's difference to the nearest periodic image.
func (s *system) nearest(d float64) float64 {
	if d > s.half {
		return d - s.box
	}
	if d < -s.half {
		return d + s.box
	}
	return d
}

func (p *pair) squareOf(k int) float64 {
	return p.apart[0][k]*p.apart[0][k] + p.apart[1][k]*p.apart[1][k] + p.apart[2][k]*p.apart[2][k]
}

// near reports whether all of the first nine distances are within the cutoff. Exponentials count
// only then.
func (p *pair) near() bool { return p.beyond == 0 }

// strengths returns the force along each distance divided by the distance, and the pair's part of
// the virial.
func (p *pair) strengths() (f [distances]float64, virial float64) {
	if r2 := p.square[centers]; r2 < squareLimit {
		f[0] = charge8/(r2*math.Sqrt(r2)) + field4
		virial += f[0] * r2
	}
	var length [oxygens]float64
	for k := 1; k < fromH; k++ {
		if r2 := p.square[k]; r2 < squareLimit {
			f[k] = -charge4/(r2*math.Sqrt(r2)) - field2
			virial += f[k] * r2
		}
		h := k + fromH - 1
		if r2 := p.square[h]; r2 <= squareLimit {
			length[h] = math.Sqrt(r2)
			f[h] = charge2/(r2*length[h]) + field1
			virial += f[h] * r2
		}
	}
	if !p.near() {
		return f, virial
	}
	r2 := p.squareOf(oxygens)
	r := math.Sqrt(r2)
	f[oxygens] = ab1 * math.Exp(-b1*r) / r
	virial += f[oxygens] * r2
	for k := fromO; k < distances; k++ {
		h := k - fromO + fromH
		push := ab2 * math.Exp(-b2*length[h]) / length[h]
		f[h] += push
		virial += push * p.square[h]
		r2 := p.squareOf(k)
		r := math.Sqrt(r2)
		f[k] = (ab3*math.Exp(-b3*r) - ab4*math.Exp(-b4*r)) / r
		virial += f[k] * r2
	}
	return f, virial
}

// push adds the forces on the atoms of both molecules. What acts on a center acts on its atoms by
// their shares.
func (p *pair) push(f *[distances]float64, onA, onB *vectors) {
	for dir := range p.apart {
		var g [distances]float64
		for k, apart := range p.apart[dir] {
			g[k] = f[k] * apart // From oxygens on f is 0 if apart was not computed.
		}
		oxygenPart := g[9] + g[0]*oxygenShare
		fromA, fromB := g[1]+g[2], g[3]+g[4]
		eachA, eachB := fromA*eachShare+g[0]*eachShare, fromB*eachShare+g[0]*eachShare
		a, b := &onA[dir], &onB[dir]
		a[hydrogen1] += g[5] + g[6] + g[12] + eachA + g[3]
		a[oxygen] += oxygenPart + g[10] + g[11] + oxygenShare*fromA
		a[hydrogen2] += g[7] + g[8] + g[13] + eachA + g[4]
		b[hydrogen1] -= g[5] + g[7] + g[10] + eachB + g[1]
		b[oxygen] -= oxygenPart + g[12] + g[13] + oxygenShare*fromB
		b[hydrogen2] -= g[6] + g[8] + g[11] + eachB + g[2]
	}
}

// energies returns the pair's potential energy, and that in the reaction field. Distances beyond
// the cutoff count as the cutoff.
func (p *pair) energies() (potential, field float64) {
	var length, square [oxygens]float64
	for k := range length {
		length[k], square[k] = cutoff, squareLimit
		if p.square[k] <= squareLimit {
			length[k], square[k] = math.Sqrt(p.square[k]), p.square[k]
		}
	}
	potential = charge8/length[0] -
		charge4/length[1] - charge4/length[2] - charge4/length[3] - charge4/length[4] +
		charge2/length[5] + charge2/length[6] + charge2/length[7] + charge2/length[8]
	field = -field2*square[0] -
		field1*((square[5]+square[6]+square[7]+square[8])*0.5-square[1]-square[2]-square[3]-square[4])
	if p.near() {
		potential += a1 * math.Exp(-b1*math.Sqrt(p.squareOf(oxygens)))
		for h := fromH; h < oxygens; h++ {
			potential += a2 * math.Exp(-b2*length[h])
		}
		for k := fromO; k < distances; k++ {
			r := math.Sqrt(p.squareOf(k))
			potential += a3*math.Exp(-b3*r) - a4*math.Exp(-b4*r)
		}
	}
	return potential, field
}
