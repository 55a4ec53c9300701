package raytrace

import "math"

// A sphere is most of what scenes are made of.
type sphere struct {
	centre  vector
	radius  float64
	surface int32
	_       int32
}

const corners = 4

// A polygon has at most so many corners.
type polygon struct {
	corner [corners]vector
	normal vector
	// across is the axis along which the polygon is seen to find out whether a point is inside.
	across  int32
	surface int32
}

// Primitives are the objects of a scene, by numbers: first polygons, then spheres. They hold no
// pointer, since they lie in shared memory. They lie apart, since a polygon is four times as long
// as a sphere: rays bring the pages of those along that they may hit, and those are spheres.
type primitives struct {
	polygons []polygon
	spheres  []sphere
}

// count is how many there are; their numbers are less.
func (p *primitives) count() int32 { return int32(len(p.polygons) + len(p.spheres)) }

// sphere is primitive number if that is a sphere, else nil.
func (p *primitives) sphere(number int32) *sphere {
	if i := int(number) - len(p.polygons); i >= 0 {
		return &p.spheres[i]
	}
	return nil
}

// surface is the number of what a primitive looks like.
func (p *primitives) surface(number int32) int32 {
	if s := p.sphere(number); s != nil {
		return s.surface
	}
	return p.polygons[number].surface
}

// box is the smallest box around a primitive.
func (p *primitives) box(number int32) (low, high vector) {
	if s := p.sphere(number); s != nil {
		r := vector{s.radius, s.radius, s.radius}
		return s.centre.Sub(r), s.centre.Add(r)
	}
	corner := &p.polygons[number].corner
	low, high = corner[0], corner[0]
	for _, c := range corner[1:] {
		for k := range c {
			low[k], high[k] = min(low[k], c[k]), max(high[k], c[k])
		}
	}
	return low, high
}

// transform moves all primitives.
func (p *primitives) transform(m matrix) {
	for i := range p.polygons {
		p.polygons[i].transform(m)
	}
	for i := range p.spheres {
		p.spheres[i].transform(m)
	}
}

// transform moves a sphere. It stays one: its radius becomes that of a point in the first
// direction.
func (s *sphere) transform(m matrix) {
	rim := s.centre
	rim[0] += s.radius
	s.centre = m.apply(s.centre)
	s.radius = m.apply(rim).Sub(s.centre).Length()
}

func (p *polygon) transform(m matrix) {
	for i, c := range p.corner {
		p.corner[i] = m.apply(c)
	}
	p.normal = p.corner[1].Sub(p.corner[0]).Cross(p.corner[2].Sub(p.corner[1])).Unit()
	p.across = 0
	for k := range p.normal {
		if math.Abs(p.normal[k]) > math.Abs(p.normal[p.across]) {
			p.across = int32(k)
		}
	}
}

// normalAt is the direction that is square to a primitive at one of its points.
func (p *primitives) normalAt(number int32, point vector) vector {
	s := p.sphere(number)
	if s == nil {
		return p.polygons[number].normal
	}
	n := point.Sub(s.centre)
	return vector{n[0] / s.radius, n[1] / s.radius, n[2] / s.radius}
}

// hit returns how far along ray r it meets a primitive first.
func (p *primitives) hit(number int32, r *ray) (float64, bool) {
	if s := p.sphere(number); s != nil {
		return s.hit(r)
	}
	return p.polygons[number].hit(r)
}

func (s *sphere) hit(r *ray) (float64, bool) {
	way := s.centre.Sub(r.origin)
	square := way.Dot(way)
	along := way.Dot(r.direction)
	radiusSquare := float64(s.radius * s.radius)
	if square > radiusSquare && along < nearestHit {
		return 0, false
	}
	rest := float64(along*along) - square + radiusSquare
	if rest < 0 {
		return 0, false
	}
	half := math.Sqrt(rest)
	if near := along - half; near > nearestHit {
		return near, true
	}
	far := along + half
	return far, far > nearestHit
}

// hit counts how many edges are to the right of where the ray meets the plane: an odd number means
// inside.
func (p *polygon) hit(r *ray) (float64, bool) {
	slope := p.normal.Dot(r.direction)
	if math.Abs(slope) < nearestHit {
		return 0, false
	}
	distance := p.normal.Dot(p.corner[0].Sub(r.origin)) / slope
	if distance < nearestHit {
		return 0, false
	}
	point := r.at(distance)
	u, v := (p.across+1)%3, (p.across+2)%3
	inside := false
	for i := range p.corner {
		a, b := p.corner[i].Sub(point), p.corner[(i+1)%corners].Sub(point)
		if (a[v] < 0) != (b[v] < 0) && a[u]-float64(a[v]*(b[u]-a[u]))/(b[v]-a[v]) > 0 {
			inside = !inside
		}
	}
	return distance, inside
}
