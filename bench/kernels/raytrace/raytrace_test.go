package raytrace

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
	"pgregory.net/rapid"
)

// glassScene has what the balls have not: glass, a triangle (a polygon with two equal corners), and
// no transformation.
func glassScene() *scene {
	s := &scene{
		eye: vector{0.5, 0.5, -1.2}, centre: vector{0.5, 0.45, 0.5},
		background: vector{0.1, 0.2, 0.3}, ambient: vector{0.2, 0.2, 0.2},
		lights: []light{
			{position: vector{0.2, 2, -1}, colour: vector{0.7, 0.7, 0.7}, shadows: true},
			{position: vector{2, 1, 0}, colour: vector{0.4, 0.3, 0.2}},
		},
	}
	s.addPolygons(surface{colour: vector{0.9, 0.9, 0.9}, diffuse: 0.8, specular: 0.1, highlight: 10},
		polygon{corner: [corners]vector{{0, 0, 0}, {1, 0, 0}, {1, 0, 1}, {0, 0, 1}}},
		polygon{corner: [corners]vector{{0.2, 0.1, 0.9}, {0.8, 0.1, 0.9}, {0.5, 0.9, 1}, {0.5, 0.9, 1}}})
	s.addSpheres(surface{colour: vector{0.7, 0.9, 0.7}, diffuse: 0.2, specular: 0.2, transparency: 0.7, refraction: 1.3, highlight: 30},
		sphere{centre: vector{0.4, 0.4, 0.4}, radius: 0.2},
		sphere{centre: vector{0.6, 0.3, 0.3}, radius: 0.15})
	s.place(identity)
	return s
}

// TestAnyNumberOfThreads includes pictures that blocks and bundles do not divide, and more threads
// than blocks.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{8, 13, 30} {
		for name, shown := range map[string]func() *scene{"balls": ballsScene, "glass": glassScene} {
			p := problem{n: n, scene: shown}
			r, err := kernel.Sequential(p)
			want := kerneltest.Solve(t, r, err)
			for _, threads := range []int{1, 2, 3, 4, 101} {
				if name == "balls" && threads > 3 {
					// Building the grids of the balls takes a while under the race detector.
					continue
				}
				r, err := kernel.Goroutines(p, threads)
				if err := p.Verify(want, kerneltest.Solve(t, r, err)); err != nil {
					t.Errorf("%s, %d pixels, %d threads: %v", name, n, threads, err)
				}
			}
		}
	}
}

func viewOf(shown *scene, n int) *view {
	return &view{hierarchy: *newHierarchy(&shown.primitives), primitives: shown.primitives, scene: shown, camera: newCamera(shown, n)}
}

// TestGridsLoseNothing compares the search through the grids with looking at every primitive.
func TestGridsLoseNothing(t *testing.T) {
	views := []*view{viewOf(ballsScene(), 64), viewOf(glassScene(), 64)}
	if len(views[0].grids) < 2 {
		t.Fatal("no cell of the balls has a grid of its own")
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SampledFrom(views).Draw(t, "scene")
		point := rapid.Custom(func(t *rapid.T) vector {
			x := rapid.Float64Range(-0.5, 1.5)
			return vector{x.Draw(t, "x"), x.Draw(t, "y"), x.Draw(t, "z")}
		})
		r := ray{origin: point.Draw(t, "from")}
		way := point.Draw(t, "to").Sub(r.origin)
		r.direction = way.Unit()
		if way.Length() < 1e-3 {
			t.Skip("no direction")
		}
		tr := &tracer{view: v}
		want, blocked := math.Inf(1), false
		for i := range v.count() {
			if d, ok := v.hit(i, &r); ok {
				want = min(want, d)
				blocked = blocked || d < way.Length() && v.scene.surfaces[v.surface(i)].transparency == 0
			}
		}
		if number, got := tr.closest(&r); got != want || (number < 0) != math.IsInf(want, 1) {
			t.Fatalf("the first hit is primitive %d at %v, want %v", number, got, want)
		}
		if arriving := tr.light(&r, way.Length(), -1); (arriving == 0) != blocked {
			t.Fatalf("%v of the light arrives, blocked: %v", arriving, blocked)
		}
	})
}

// TestTransparentShadow sends light through a glass ball and a half: 0.7 of it for each that is
// hit.
func TestTransparentShadow(t *testing.T) {
	tr := &tracer{view: viewOf(glassScene(), 64)}
	ball := tr.spheres[0]
	for name, tc := range map[string]struct {
		from vector
		want float64
	}{
		"through":    {ball.centre.Sub(vector{0, 0, 0.3}), 0.7},
		"from below": {ball.centre, 0.7},
		"beside":     {ball.centre.Add(vector{0, 0.3, 0}), 1},
	} {
		if got := tr.light(&ray{origin: tc.from, direction: vector{0, 0, 1}}, 0.35, -1); got != tc.want {
			t.Errorf("%s: %v of the light arrives, want %v", name, got, tc.want)
		}
	}
}

// TestRefraction checks Snell's law and total reflection.
func TestRefraction(t *testing.T) {
	normal := vector{0, 0, 1}
	for _, angle := range []float64{0.05, 0.4, 1, 1.4} {
		incoming := vector{math.Sin(angle), 0, -math.Cos(angle)}
		if out := reflected(incoming, normal); math.Abs(out[0]-incoming[0]) > 1e-12 || math.Abs(out[2]+incoming[2]) > 1e-12 {
			t.Errorf("angle %v: reflected to %v", angle, out)
		}
		for _, index := range []float64{0.7, 1, 1.5} {
			out, ok := refracted(incoming, normal, index)
			if want := math.Sin(angle) / index; ok != (want < 1) {
				t.Errorf("angle %v, index %v: refracted: %v, sine %v", angle, index, ok, want)
			} else if ok && math.Abs(out[0]-want) > 1e-12 {
				t.Errorf("angle %v, index %v: the sine is %v, want %v", angle, index, out[0], want)
			}
		}
	}
}

// TestPagesAreFullOfSpheres: rays bring many spheres along at once, whatever else scenes have.
func TestPagesAreFullOfSpheres(t *testing.T) {
	if perPage := 4096 / reflect.TypeFor[sphere]().Size(); perPage < 100 {
		t.Errorf("a page of 4 KiB has %d spheres, want 100", perPage)
	}
}

// TestBallsTouch: every ball but the first touches the one it sits on, and they do not change with
// the direction.
func TestBallsTouch(t *testing.T) {
	all := balls(vector{}, 0.5, 4)
	if len(all) != 7381 {
		t.Fatalf("there are %d balls, want 7381", len(all))
	}
	for i, b := range all[1:] {
		touches := slices.ContainsFunc(all[:i+1], func(on sphere) bool {
			return math.Abs(on.radius-3*b.radius) < 1e-9 && math.Abs(on.centre.Sub(b.centre).Length()-on.radius-b.radius) < 1e-6
		})
		if !touches {
			t.Fatalf("ball %d touches none of three times its radius", i+1)
		}
	}
}

// TestLayout: every pixel has a place of its own, is in exactly one bundle, a bundle is together,
// and no page of 4 KiB has two blocks.
func TestLayout(t *testing.T) {
	for _, edge := range []int{8, 13, 30, 128, 131} {
		l := newLayout(edge)
		seen := make([]int, l.size())
		var all []bundle
		for block := range l.blocks() {
			all = l.bundles(all, block)
		}
		for _, b := range all {
			for y := b.y; y < b.bottom; y++ {
				for x := b.x; x < b.right; x++ {
					seen[l.index(int(x), int(y))]++
				}
			}
			first, last := l.index(int(b.x), int(b.y)), l.index(int(b.right)-1, int(b.bottom)-1)
			if last-first >= bundleEdge*bundleEdge {
				t.Fatalf("edge %d: bundle %v lies from %d to %d", edge, b, first, last)
			}
		}
		count := 0
		for _, times := range seen {
			count += times
		}
		if count != edge*edge || slices.Max(seen) != 1 {
			t.Errorf("edge %d: %d pixels are in bundles, one of them %d times", edge, count, slices.Max(seen))
		}
	}
	if bytes := pixelGranule * reflect.TypeFor[vector]().Size(); bytes%4096 != 0 {
		t.Errorf("a block's memory is in units of %d bytes, which are no pages", bytes)
	}
}

func TestEncode(t *testing.T) {
	l := newLayout(8)
	pixels := make([]vector, l.size())
	pixels[l.index(2, 0)] = vector{1, 0.5, 7}
	want := []byte{0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 1, 255, 127, 255, 0, 0, 0, 0, 4}
	for range 7 {
		want = append(want, 0, 0, 0, 7)
	}
	if got := l.encode(pixels); !slices.Equal(got, want) {
		t.Errorf("encode = %v, want %v", got, want)
	}
	// A row of 600 equal pixels needs three runs: of 256, 256 and 88.
	wide := newLayout(600)
	if got := wide.encode(make([]vector, wide.size())); len(got) != 8+600*3*4 || got[11] != 255 || got[19] != 87 {
		t.Errorf("600 equal pixels are %v", got[:24])
	}
}

func TestCancelled(t *testing.T) {
	if err := kerneltest.Cancelled(t, problem{n: 8, scene: glassScene}); !errors.Is(err, context.Canceled) {
		t.Errorf("Compute of a cancelled run = %v", err)
	}
}
