package water

import (
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The three atoms of a molecule, and the directions x, y and z, are indices.
const (
	hydrogen1, oxygen, hydrogen2 = 0, 1, 2
)

// vectors are of the three atoms, by direction, then by atom.
type vectors [3][3]float64

// A place is where a molecule is.
type place struct {
	atoms vectors
	// on the line from the oxygen atom to the middle of the hydrogen atoms; charges act from here
	center [3]float64
}

// Physical constants, in Ångström, radians, atomic mass units, femtoseconds and kelvin where
// nothing else is said, and the water model's, as in the original. They are variables so that the
// constants made of them are rounded like the original's.
var (
	bondLength   = 0.9572
	bondAngle    = 1.824218
	oxygenMass   = 15.99945
	hydrogenMass = 1.007825
	moleculeMass = oxygenMass + 2*hydrogenMass

	timeUnit   = 1e-15         // seconds
	lengthUnit = 1e-8          // centimeters
	massUnit   = 1.6605655e-24 // grams
	boltzmann  = 1.380662e-16  // erg per kelvin

	temperature = 298.0
	density     = 0.9980          // grams per cubic centimeter
	timeStep    = 1.5e-16 / 1e-15 // in timeUnit
	cutoff      = 6.212752        // the longest distance at which molecules act on each other
	squareLimit = cutoff * cutoff
	oxygenShare = 1 - 0.4568259   // of the oxygen atom's place in the center's
	eachShare   = 0.5 * 0.4568259 // of each hydrogen atom's
)

// A system is what depends on the number of molecules.
type system struct {
	n                            int
	box, half                    float64 // the box's edge, and half of it
	potentialScale               float64 // from the units of the simulation to kT per atom
	kineticScale                 float64
	hydrogenFactor, oxygenFactor float64 // from force to acceleration
}

func newSystem(n int) *system {
	atoms := float64(3 * n)
	s := &system{n: n}
	s.box = math.Pow(float64(n)*moleculeMass*massUnit/density, 1./3) / lengthUnit
	s.half = s.box * 0.5
	speed := lengthUnit / timeUnit
	s.potentialScale = massUnit * (speed * speed) / (boltzmann * temperature * atoms)
	s.kineticScale = s.potentialScale * 0.5 / (timeStep * timeStep)
	s.hydrogenFactor = timeStep * timeStep * 0.5 / hydrogenMass
	s.oxygenFactor = timeStep * timeStep * 0.5 / oxygenMass
	return s
}

// lattice is where the atoms of a molecule are at the start: all molecules lie alike, in planes of
// constant z.
func (s *system) lattice(mol int) vectors {
	edge := latticeEdge(s.n)
	// Not quite the number of molecules along an edge: the original stays below it so that a loop
	// ends, and the lattice is a little wider than the box.
	spacing := s.box / (math.Pow(float64(s.n), 1./3) - 0.00001)
	at := func(i int) float64 {
		x := spacing * 0.5
		for range i {
			x += spacing
		}
		return x
	}
	x, y, z := at(mol/(edge*edge)), at(mol/edge%edge), at(mol%edge)
	along, across := bondLength*math.Cos(bondAngle*0.5), bondLength*math.Sin(bondAngle*0.5)
	return vectors{
		{x + along, x, x + along},
		{y + across, y, y - across},
		{z, z, z},
	}
}

// The momenta at the start, normally distributed, are those that come with the original: nine
// numbers for each molecule, by atom, then by direction.
//
//go:embed testdata/momenta.txt
var momentaText string

// momenta returns those of n molecules. There are numbers for 588 and two thirds; the other atoms
// start at rest before the mean is subtracted, as they do in the original.
func momenta(n int) ([]vectors, error) {
	all := make([]vectors, n)
	for i, text := range strings.Fields(momentaText) {
		if i == 9*n {
			break
		}
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("testdata/momenta.txt, number %d: %w", i+1, err)
		}
		all[i/9][i%3][i/3%3] = x
	}
	return all, nil
}

// velocities turns momenta into velocities, in lengths per step: without the mean, and scaled to
// the temperature.
func (s *system) velocities(momenta []vectors) []vectors {
	atoms := float64(3 * s.n)
	mass := [3]float64{hydrogenMass, oxygenMass, hydrogenMass}
	perStep := timeUnit * timeStep / lengthUnit
	energy := boltzmann * temperature * atoms / massUnit * (perStep * perStep)
	v := make([]vectors, s.n)
	for dir := range 3 {
		mean := 0.0
		for _, p := range momenta {
			for _, x := range p[dir] {
				mean += x
			}
		}
		mean /= atoms
		sum := 0.0
		for _, p := range momenta {
			h1, o, h2 := p[dir][hydrogen1]-mean, p[dir][oxygen]-mean, p[dir][hydrogen2]-mean
			sum = sum + (h1*h1+h2*h2)/hydrogenMass + o*o/oxygenMass
		}
		scale := math.Sqrt(energy / sum)
		for mol, p := range momenta {
			for atom := range 3 {
				v[mol][dir][atom] = (p[dir][atom] - mean) * scale / mass[atom]
			}
		}
	}
	return v
}
