package ocean

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strings"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
)

// The threads' partial sums round differently for every division of the grid. These are the
// differences from the sequential result that are allowed, about a hundred times what was found for
// up to 33 threads and edges up to 1026.
const (
	// figureTolerance is relative. Several figures are sums in which much cancels; that they vary
	// from the ninth digit on with the number of processors is what the original's reference output
	// says, too.
	figureTolerance = 1e-7
	// pointTolerance is relative to a layer's largest point.
	pointTolerance = 1e-9
)

// The figures of the original program by the grid's edge, for one processor.
//
//go:embed testdata/reference.json
var referenceJSON []byte

var original = facts.Parse(referenceJSON)

// Verify compares with the figures of the original program if there are some for this size, and
// with the sequential result. Iterations and work must be the same; for the rest see
// figureTolerance and pointTolerance.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(
		facts.Compare("the original's", original[p.n], got.Figures, near),
		facts.Compare("the sequential version's", sequential.Figures, got.Figures, near),
		p.comparePoints(sequential.Output, got.Output),
	)
}

// near compares all figures but the checksums.
func near(name string, got, want any) bool {
	w, ok := want.(float64)
	if !ok {
		return true
	}
	x, ok := got.(float64)
	exact := strings.HasSuffix(name, " iter") || strings.HasSuffix(name, " work")
	return ok && (x == w || !exact && math.Abs(x-w) <= figureTolerance*math.Abs(w))
}

// comparePoints names the point that is farthest from what it should be.
func (p problem) comparePoints(want, got kernel.Words) error {
	if got.Len() != 2*p.n*p.n || want.Len() != got.Len() {
		return fmt.Errorf("the output has %d points, the sequential version's %d, and two layers are %d", got.Len(), want.Len(), 2*p.n*p.n)
	}
	for layer := range 2 {
		largest, worst, at := 0.0, 0.0, 0
		for i := layer * p.n * p.n; i < (layer+1)*p.n*p.n; i++ {
			w, g := math.Float64frombits(want.At(i)), math.Float64frombits(got.At(i))
			largest = max(largest, math.Abs(w))
			off := math.Abs(w - g)
			if math.IsNaN(off) {
				off = math.Inf(1)
			}
			if off > worst {
				worst, at = off, i%(p.n*p.n)
			}
		}
		if worst > pointTolerance*largest {
			return fmt.Errorf("layer %d: the point at row %d, column %d is off by %g from the sequential version's; the largest is %g",
				layer, at/p.n, at%p.n, worst, largest)
		}
	}
	return nil
}

// figures names numbers as the original's output does. The multigrid method's lines are numbered
// from 00.
func figures(solves []solve, psiai, psibi float64, output []float64, edge int) map[string]any {
	f := map[string]any{"psiai": psiai, "psibi": psibi}
	for i, s := range solves {
		f[fmt.Sprintf("solve %02d iter", i)] = float64(s.iterations)
		f[fmt.Sprintf("solve %02d residual norm", i)] = s.residual
		f[fmt.Sprintf("solve %02d work", i)] = s.work
	}
	for layer := range 2 {
		points := output[layer*edge*edge : (layer+1)*edge*edge]
		name := fmt.Sprintf("psi[layer %d] ", layer)
		f[name+"sum"], f[name+"sumabs"], f[name+"min"], f[name+"max"] = statistics(points, edge)
		f[name+"fnv"] = kernel.FNV(kernel.Float64s(points))
	}
	return f
}

// statistics is of the interior points.
func statistics(layer []float64, edge int) (sum, sumabs, low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for i := 1; i < edge-1; i++ {
		for _, x := range layer[i*edge+1 : (i+1)*edge-1] {
			sum += x
			sumabs += math.Abs(x)
			low, high = min(low, x), max(high, x)
		}
	}
	return sum, sumabs, low, high
}
