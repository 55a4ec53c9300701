package raytrace

import "math"

// A surface is what a primitive looks like.
type surface struct {
	colour       vector
	diffuse      float64
	specular     float64
	transparency float64
	refraction   float64 // index
	highlight    float64 // exponent
}

// A light shines from a point.
type light struct {
	position, colour vector
	shadows          bool
}

// A scene is what is to be shown and how.
type scene struct {
	eye, centre         vector
	background, ambient vector
	lights              []light
	surfaces            []surface
	primitives
}

// addPolygons puts polygons that look alike into the scene.
func (s *scene) addPolygons(look surface, polygons ...polygon) {
	for _, p := range polygons {
		p.surface = int32(len(s.surfaces))
		s.polygons = append(s.polygons, p)
	}
	s.surfaces = append(s.surfaces, look)
}

// addSpheres puts spheres that look alike into the scene.
func (s *scene) addSpheres(look surface, spheres ...sphere) {
	for _, p := range spheres {
		p.surface = int32(len(s.surfaces))
		s.spheres = append(s.spheres, p)
	}
	s.surfaces = append(s.surfaces, look)
}

// place transforms the primitives by model, and then so that they just fit into the cube from 0 to
// 1, which is where the eye and the lights have their place.
func (s *scene) place(model matrix) {
	least, most := math.Inf(1), math.Inf(-1)
	s.transform(model)
	for number := range s.count() {
		low, high := s.box(number)
		least, most = min(least, low[0], low[1], low[2]), max(most, high[0], high[1], high[2])
	}
	scale := 1 / (most - least)
	shift := float64(-least * scale)
	fit := matrix{{scale, 0, 0}, {0, scale, 0}, {0, 0, scale}, {shift, shift, shift}}
	s.transform(fit)
}

// ballsScene is a ball with nine smaller ones on it, each with nine on it, and so on, over a floor:
// the object is "balls" of Haines' standard procedural databases (IEEE Computer Graphics and
// Applications 7, 1987). View, lights and surfaces are those with which SPLASH-2 shows it, so that
// pictures compare.
func ballsScene() *scene {
	s := &scene{
		eye: vector{0.5, 0.49, 0.582}, centre: vector{0.5, 0.49, 0.1},
		background: vector{0.078, 0.361, 0.753}, ambient: vector{0.22, 0.22, 0.22},
		lights: []light{
			{position: vector{0.5, 0.5, 0.3}, colour: vector{0.25, 0.25, 0.25}},
			{position: vector{10, 2, 12}, colour: vector{0.5, 0.5, 0.5}, shadows: true},
			{position: vector{-5, 3, 2}, colour: vector{0.5, 0.5, 0.5}, shadows: true},
		},
	}
	s.addPolygons(surface{colour: vector{1, 0.75, 0.33}, diffuse: 1},
		polygon{corner: [corners]vector{{12, 12, -0.5}, {-12, 12, -0.5}, {-12, -12, -0.5}, {12, -12, -0.5}}})
	s.addSpheres(surface{colour: vector{1, 0.9, 0.7}, diffuse: 0.5, specular: 0.5, highlight: 3}, balls(vector{}, 0.5, 4)...)
	s.place(matrix{
		{1.098625, 0.000000, 0.054977},
		{0.036284, 0.826409, -0.725074},
		{-0.041303, 0.725982, 0.825376},
		{-0.048012, -0.273869, 0.134132},
	})
	return s
}

// balls makes a ball, and on it nine of a third of its radius, and so on for some generations.
func balls(centre vector, radius float64, generations int) []sphere {
	maker := ballMaker{directions: ballDirections()}
	maker.put(centre, vector{0, 0, 1}, radius, generations)
	return maker.balls
}

type ballMaker struct {
	directions [9]vector // of the nine smaller balls on one whose top is at +z
	balls      []sphere
}

// ballDirections are three triples that differ by a third of a turn.
func ballDirections() [9]vector {
	diagonal := 1 / math.Sqrt(2)
	triple := [3]vector{{diagonal, diagonal, 0}, {diagonal, 0, -diagonal}, {0, diagonal, -diagonal}}
	tilt := rotation(vector{diagonal, -diagonal, 0}, math.Asin(2/math.Sqrt(6)))
	var directions [9]vector
	for i := range directions {
		turn := rotation(vector{0, 0, 1}, float64(i/3)*2*math.Pi/3)
		directions[i] = turn.apply(tilt.apply(triple[i%3]))
	}
	return directions
}

func (m *ballMaker) put(centre, top vector, radius float64, generations int) {
	m.balls = append(m.balls, sphere{centre: centre, radius: radius})
	if generations == 0 {
		return
	}
	z := vector{0, 0, 1}
	turn := identity
	switch axis := z.Cross(top); {
	case axis.Length() > 1e-7:
		turn = rotation(axis.Unit(), math.Acos(top[2]))
	case top[2] < 0: // Upside down: any horizontal axis will do.
		turn = rotation(vector{0, 1, 0}, math.Pi)
	}
	for _, direction := range m.directions {
		direction = turn.apply(direction)
		m.put(centre.Add(direction.Scaled(radius+radius/3)), direction, radius/3, generations-1)
	}
}
