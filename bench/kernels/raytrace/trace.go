package raytrace

import "math"

const (
	// nearestHit is how far from its origin a ray may hit something: not the very surface that it
	// leaves.
	nearestHit = 1e-7
	// mostReflections is how many surfaces a ray may meet in turn, and leastWeight the part of a
	// pixel below which a ray is not followed, as in the original program.
	mostReflections = 5
	leastWeight     = 0.001
)

// A ray is a half line from a point, of a direction of length 1.
type ray struct {
	origin, direction vector
	level             int     // number of surfaces met before
	weight            float64 // its part of the pixel
}

func (r *ray) at(t float64) vector { return r.origin.Add(r.direction.Scaled(t)) }

// A view is a scene in the memory that all threads share; what is small, every process has for
// itself.
type view struct {
	hierarchy
	primitives
	scene  *scene
	camera camera
}

// A camera makes the rays of pixels.
type camera struct {
	eye                vector
	right, up, forward vector
	half, pixel, plane float64 // half the screen's edge, a pixel's edge, the screen's distance
}

// newCamera looks from eye to centre with an angle of view of about 60 degrees, as the original
// program does by default: it takes a degree for 0.0175.
func newCamera(s *scene, edge int) camera {
	const screen, halfAngle = 190.0, 60 * 0.5 * 0.0175
	forward := s.centre.Sub(s.eye).Unit()
	right := vector{forward[2], 0, -forward[0]}.Unit()
	if right.Length() == 0 {
		right = vector{1, 0, 0}
	}
	return camera{
		eye: s.eye, forward: forward, right: right, up: forward.Cross(right),
		half: screen / 2, pixel: screen / float64(edge), plane: screen / 2 / math.Tan(halfAngle),
	}
}

// ray is the one through the upper left corner of a pixel.
func (c *camera) ray(x, y int) ray {
	across := c.right.Scaled(float64(float64(x)*c.pixel) - c.half)
	up := c.up.Scaled(c.half - float64(float64(y)*c.pixel))
	direction := across.Add(up).Add(c.forward.Scaled(c.plane)).Unit()
	return ray{origin: c.eye, direction: direction, weight: 1}
}

// A tracer computes the colours of pixels. A goroutine has one to itself.
type tracer struct {
	*view
	rays  []ray // to be followed, a stack
	pixel vector
}

// colour returns the colour of a pixel. Rays are followed from a stack, without recursion, in an
// order which fixes that of the additions.
func (t *tracer) colour(x, y int) vector {
	t.pixel = vector{}
	t.rays = append(t.rays[:0], t.camera.ray(x, y))
	for len(t.rays) > 0 {
		r := t.rays[len(t.rays)-1]
		t.rays = t.rays[:len(t.rays)-1]
		number, distance := t.closest(&r)
		if number < 0 {
			t.pixel = t.pixel.Add(t.scene.background.Scaled(r.weight))
			continue
		}
		t.shade(&r, number, distance)
	}
	return t.pixel
}

// shade adds the light that comes from where ray r hits primitive number, and puts the rays that
// start there on the stack.
func (t *tracer) shade(r *ray, number int32, distance float64) {
	s := &t.scene.surfaces[t.surface(number)]
	point := r.at(distance)
	normal := t.normalAt(number, point)
	if r.direction.Dot(normal) > 0 {
		normal = normal.Scaled(-1)
	}
	colour := product(t.scene.ambient, s.colour)
	for i := range t.scene.lights {
		colour = t.illuminate(colour, &t.scene.lights[i], &lit{r, s, number, point, normal})
	}
	t.pixel = t.pixel.Add(colour.Scaled(r.weight))
	if r.level+1 >= mostReflections {
		return
	}
	next := ray{origin: point, level: r.level + 1}
	if next.weight = s.specular * r.weight; next.weight > leastWeight {
		next.direction = reflected(r.direction, normal)
		t.rays = append(t.rays, next)
	}
	if next.weight = s.transparency * r.weight; next.weight > leastWeight {
		if direction, ok := refracted(r.direction, normal, s.refraction); ok {
			next.direction = direction
			t.rays = append(t.rays, next)
		}
	}
}

// lit is where a ray meets a surface, of a primitive.
type lit struct {
	*ray
	*surface
	number        int32
	point, normal vector
}

// illuminate adds one light's part to the colour of a point: diffuse reflection, and a highlight
// where the normal is between the directions to the light and to the eye (Blinn).
func (t *tracer) illuminate(colour vector, l *light, at *lit) vector {
	s, normal := at.surface, at.normal
	way := l.position.Sub(at.point)
	length := way.Length()
	way = way.Unit()
	facing := normal.Dot(way)
	if facing <= 0 {
		return colour
	}
	arriving := 1.0
	if l.shadows {
		arriving = t.light(&ray{origin: at.point, direction: way}, length, at.number)
	}
	if arriving <= 0 {
		return colour
	}
	colour = colour.Add(product(s.colour, l.colour).Scaled(float64(s.diffuse*facing) * arriving))
	if s.specular > 0 {
		if glance := normal.Dot(way.Sub(at.direction).Unit()); glance > 0 {
			colour = colour.Add(l.colour.Scaled(float64(math.Pow(glance, s.highlight) * s.specular)))
		}
	}
	return colour
}

func product(a, b vector) vector {
	return vector{float64(a[0] * b[0]), float64(a[1] * b[1]), float64(a[2] * b[2])}
}

// reflected and refracted follow Whitted (Communications of the ACM 23, 1980): the incoming
// direction is stretched so that its part along the normal has length 1.
func reflected(incoming, normal vector) vector {
	return incoming.Scaled(1 / math.Abs(incoming.Dot(normal))).Add(normal.Scaled(2)).Unit()
}

// refracted returns false for total reflection.
func refracted(incoming, normal vector, index float64) (vector, bool) {
	stretched := incoming.Scaled(1 / math.Abs(incoming.Dot(normal)))
	along := stretched.Add(normal)
	square := float64(float64(index*index)*stretched.Dot(stretched)) - along.Dot(along)
	if square <= nearestHit {
		return vector{}, false
	}
	return along.Scaled(1 / math.Sqrt(square)).Sub(normal).Unit(), true
}

// closest returns the first primitive that the ray hits and how far away it is, or -1.
func (t *tracer) closest(r *ray) (number int32, distance float64) {
	s := search{view: t.view, ray: r, number: -1, distance: math.Inf(1)}
	s.start()
	return s.number, s.distance
}

// light returns which part of the light from the given distance arrives at the origin of the ray,
// which lies on primitive from. What is transparent lets some through.
func (t *tracer) light(r *ray, distance float64, from int32) float64 {
	s := search{view: t.view, ray: r, number: from, distance: distance, shadow: true, arriving: 1}
	s.start()
	return s.arriving
}

// A search follows a ray through the grids, either to the first hit or, for a shadow, to the light.
type search struct {
	*view
	ray *ray
	// number and distance are the first hit so far; for a shadow, the primitive that does not
	// count, and the light's distance.
	number   int32
	distance float64
	shadow   bool
	arriving float64 // part of the light
}

// start clips the ray to the cube from 0 to 1 and follows it through.
func (s *search) start() {
	enter, leave := 0.0, math.Inf(1)
	for k, d := range s.ray.direction {
		a, b := -s.ray.origin[k]/d, (1-s.ray.origin[k])/d
		if d == 0 {
			if s.ray.origin[k] < 0 || s.ray.origin[k] > 1 {
				return
			}
			continue
		}
		enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
	}
	// Something that lies in a side of the cube must not get lost in rounding.
	if enter <= leave+skin {
		s.walk(0, enter, leave+skin)
	}
}

// walk follows the ray through grid number from enter to leave, and says whether that was the end
// of the search.
func (s *search) walk(number int32, enter, leave float64) bool {
	g := &s.grids[number]
	start := s.ray.at(enter)
	var at, step [3]int32
	var next, delta vector // where the next side along each axis is, and how far apart sides are
	for k, d := range s.ray.direction {
		at[k] = g.index(start[k], k)
		next[k] = math.Inf(1)
		if d == 0 {
			continue
		}
		step[k] = 1
		side := at[k] + 1
		if d < 0 {
			step[k] = -1
			side = at[k]
		}
		next[k] = (g.low[k] + float64(float64(side)*g.cell) - s.ray.origin[k]) / d
		delta[k] = g.cell / math.Abs(d)
	}
	for {
		axis := 0
		for k := 1; k < 3; k++ {
			if next[k] < next[axis] {
				axis = k
			}
		}
		exit := min(next[axis], leave)
		entry := s.cells[g.first+(at[2]*g.n+at[1])*g.n+at[0]]
		if entry < 0 && s.walk(-entry, enter, exit) {
			return true
		}
		if entry > 0 && s.look(s.lists[entry:entry+s.lists[entry-1]], enter, exit) {
			return true
		}
		at[axis] += step[axis]
		if exit == leave || at[axis] < 0 || at[axis] >= g.n {
			return false
		}
		next[axis] += delta[axis]
		enter = exit
	}
}

// look looks at the primitives of a cell, in which the ray is between enter and exit, and says
// whether the search is at its end. A hit beyond the exit does not end it: something nearer may be
// in the next cell.
func (s *search) look(members []int32, enter, exit float64) bool {
	for _, number := range members {
		if s.shadow && number == s.number {
			continue
		}
		distance, ok := s.hit(number, s.ray)
		if !ok || distance >= s.distance {
			continue
		}
		if !s.shadow {
			s.number, s.distance = number, distance
			continue
		}
		through := s.scene.surfaces[s.surface(number)].transparency
		// Something transparent counts in the cell in which it is hit, so that it counts once.
		if through == 0 || distance > enter && distance <= exit {
			s.arriving *= through
		}
		if s.arriving == 0 {
			return true
		}
	}
	if s.shadow {
		return exit >= s.distance
	}
	return s.distance <= exit
}
