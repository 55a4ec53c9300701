package raytrace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ErrScene is returned for a scene file that makes no sense.
var ErrScene = errors.New("not a scene")

// A surface is what a primitive looks like.
type surface struct {
	colour       vector
	diffuse      float64
	specular     float64
	transparency float64
	refraction   float64 // index
	highlight    float64 // exponent
}

// Kinds of primitives.
const (
	sphere  int32 = iota
	polygon       // of corners points
)

const corners = 4

// A primitive is one object of the scene. It holds no pointer, since it lies in shared memory.
type primitive struct {
	kind    int32
	surface int32
	centre  vector // of a sphere
	radius  float64
	corner  [corners]vector // of a polygon
	normal  vector
	// across is the axis along which the polygon is seen to find out whether a point is inside.
	across int32
	_      int32
}

// box is the smallest box around a primitive.
func (p *primitive) box() (low, high vector) {
	if p.kind == sphere {
		r := vector{p.radius, p.radius, p.radius}
		return p.centre.Sub(r), p.centre.Add(r)
	}
	low, high = p.corner[0], p.corner[0]
	for _, c := range p.corner[1:] {
		for k := range c {
			low[k], high[k] = min(low[k], c[k]), max(high[k], c[k])
		}
	}
	return low, high
}

// transform moves a primitive. Spheres stay spheres: their radius becomes that of a point in the
// first direction.
func (p *primitive) transform(m matrix) {
	if p.kind == sphere {
		rim := p.centre
		rim[0] += p.radius
		p.centre = m.apply(p.centre)
		p.radius = m.apply(rim).Sub(p.centre).Length()
		return
	}
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
	primitives          []primitive
}

// parseScene reads a scene. Each line is a command and its numbers; what follows a # is a remark.
// Commands are as in the scene files of this package. The scene is transformed as its file says,
// and then so that it just fits into the cube from 0 to 1, which is where the eye and the lights
// have their place.
func parseScene(text []byte) (*scene, error) {
	p := parser{scene: &scene{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := p.command(words[0], words[1:]); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrScene, number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrScene, err)
	}
	if len(p.scene.primitives) == 0 {
		return nil, fmt.Errorf("%w: there is nothing to see: it needs a sphere, polygon or balls", ErrScene)
	}
	p.place()
	return p.scene, nil
}

// A parser is what is known of a scene while it is read.
type parser struct {
	scene     *scene
	transform []float64 // its numbers so far, 16 in the end, if there are any
}

func (p *parser) command(name string, words []string) error {
	s := p.scene
	if name == "light" {
		return p.light(words)
	}
	numbers, err := parseNumbers(words)
	if err != nil {
		return err
	}
	arguments := map[string]int{
		"eye": 3, "center": 3, "background": 3, "ambient": 3, "transform": 4, "surface": 8, "sphere": 4, "polygon": 3 * corners, "balls": 5,
	}
	want, known := arguments[name]
	if !known {
		return fmt.Errorf("unknown command %q", name)
	}
	if len(numbers) != want {
		return fmt.Errorf("%s takes %d numbers, here are %d", name, want, len(numbers))
	}
	switch name {
	case "eye":
		s.eye = vector(numbers)
	case "center":
		s.centre = vector(numbers)
	case "background":
		s.background = vector(numbers)
	case "ambient":
		s.ambient = vector(numbers)
	case "transform":
		p.transform = append(p.transform, numbers...)
		if len(p.transform) > 16 {
			return errors.New("a transformation has four lines, this is the fifth")
		}
	case "surface":
		s.surfaces = append(s.surfaces, surface{
			colour: vector(numbers[:3]), diffuse: numbers[3], specular: numbers[4],
			transparency: numbers[5], refraction: numbers[6], highlight: numbers[7],
		})
	default:
		return p.shape(name, numbers)
	}
	return nil
}

func (p *parser) light(words []string) error {
	if len(words) != 7 || words[6] != "yes" && words[6] != "no" {
		return errors.New("light takes a position, a colour, and yes or no for shadows")
	}
	numbers, err := parseNumbers(words[:6])
	if err != nil {
		return err
	}
	p.scene.lights = append(p.scene.lights, light{vector(numbers[:3]), vector(numbers[3:]), words[6] == "yes"})
	return nil
}

func (p *parser) shape(name string, numbers []float64) error {
	if len(p.scene.surfaces) == 0 {
		return errors.New("there is no surface yet")
	}
	one := primitive{surface: int32(len(p.scene.surfaces) - 1)}
	switch name {
	case "sphere":
		one.kind, one.centre, one.radius = sphere, vector(numbers[:3]), numbers[3]
	case "polygon":
		one.kind = polygon
		for i := range one.corner {
			one.corner[i] = vector(numbers[3*i : 3*i+3])
		}
	case "balls":
		const most = 6
		if numbers[4] < 0 || numbers[4] > most {
			return fmt.Errorf("balls have 0 to %d generations, not %v", most, numbers[4])
		}
		for _, b := range balls(vector(numbers[:3]), numbers[3], int(numbers[4])) {
			one.kind, one.centre, one.radius = sphere, b.centre, b.radius
			p.scene.primitives = append(p.scene.primitives, one)
		}
		return nil
	}
	p.scene.primitives = append(p.scene.primitives, one)
	return nil
}

func parseNumbers(words []string) ([]float64, error) {
	numbers := make([]float64, len(words))
	for i, word := range words {
		x, err := strconv.ParseFloat(word, 64)
		if err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
			return nil, fmt.Errorf("%q is not a number", word)
		}
		numbers[i] = x
	}
	return numbers, nil
}

// place transforms the primitives as the file says and then into the cube from 0 to 1.
func (p *parser) place() {
	model := identity
	for i, x := range p.transform {
		if i%4 < 3 {
			model[i/4][i%4] = x
		}
	}
	least, most := math.Inf(1), math.Inf(-1)
	for i := range p.scene.primitives {
		p.scene.primitives[i].transform(model)
		low, high := p.scene.primitives[i].box()
		least, most = min(least, low[0], low[1], low[2]), max(most, high[0], high[1], high[2])
	}
	scale := 1 / (most - least)
	shift := float64(-least * scale)
	fit := matrix{{scale, 0, 0}, {0, scale, 0}, {0, 0, scale}, {shift, shift, shift}}
	for i := range p.scene.primitives {
		p.scene.primitives[i].transform(fit)
	}
}

// A ball is a sphere of the "balls" object.
type ball struct {
	centre vector
	radius float64
}

// balls makes a ball, and on it nine of a third of its radius, and so on for some generations.
func balls(centre vector, radius float64, generations int) []ball {
	maker := ballMaker{directions: ballDirections()}
	maker.put(centre, vector{0, 0, 1}, radius, generations)
	return maker.balls
}

type ballMaker struct {
	directions [9]vector // of the nine smaller balls on one whose top is at +z
	balls      []ball
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
	m.balls = append(m.balls, ball{centre, radius})
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
