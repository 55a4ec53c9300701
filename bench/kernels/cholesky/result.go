package cholesky

import (
	_ "embed" // for the figures of the original program
	"errors"
	"math"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
)

// tolerance is the relative difference to the original's figures that is allowed. Both add up the
// same products in different orders. The figures are sums, to which the diagonal and the rest
// contribute with different signs, but the diagonal by far the most.
const tolerance = 1e-11

//go:embed testdata/splash3.json
var splash3Text []byte

// splash3 is the original's figures, by the fingerprint of the matrix.
var splash3 = parseFacts(splash3Text)

// A knownMatrix is one on which the original was run.
type knownMatrix struct {
	Input   string // what the matrix is, for people
	Matrix  string // its fingerprint
	Figures map[string]any
}

func parseFacts(text []byte) map[string]map[string]any {
	byMatrix := make(map[string]map[string]any)
	for _, k := range facts.Read[[]knownMatrix](text) {
		byMatrix[k.Matrix] = k.Figures
	}
	return byMatrix
}

// mostError is by how much the solution of a system of equations may differ from the known one.
// Rounding is magnified by the condition of the matrix, which is at most twice the diagonal, since
// the diagonal exceeds the rest of each row by more than 1.
func mostError(diagonal float64) float64 { return 1e-13 * diagonal }

// Verify compares with the sequential version bit for bit, checks that the factor solves equations,
// and compares with the original's figures if the original has been run on this matrix.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(kernel.SameBits(sequential, got),
		facts.Within("the error of the solution of a system of equations", got.Figures["error"], mostError(p.diagonal)),
		facts.Compare("the original program's", splash3[p.fingerprint()], got.Figures, facts.Near(tolerance)))
}

// Result returns the factor and its figures.
func (r *run) Result() kernel.Result {
	var output kernel.Float64s
	for i := range r.panels {
		output = append(output, r.block(&r.panels[i])...)
	}
	figures := r.sums()
	matrix := r.input.fingerprint()
	_, known := splash3[matrix]
	figures["matrix"] = matrix
	figures["original_known"] = known // so people see whether Verify compares with the original
	figures["equations"] = float64(r.size())
	figures["elements"] = float64(r.elements())
	figures["supernodes_before"] = float64(r.extent.supernodesBefore)
	figures["supernodes"] = float64(r.extent.supernodes)
	figures["operations_before"] = r.extent.operationsBefore
	figures["operations"] = r.extent.operations
	figures["nonzeros"] = float64(r.extent.nonzeros)
	figures["panels"] = float64(len(r.panels))
	figures["error"] = r.error()
	figures["fnv"] = kernel.FNV(output)
	return kernel.Result{Figures: figures, Output: output}
}

// error is by how much the solution of a system of equations differs from the known one, in which
// all unknowns are 1.
func (r *run) error() (worst float64) {
	ones := make([]float64, r.size())
	for i := range ones {
		ones[i] = 1
	}
	solution := r.apply(ones)
	r.solve(solution)
	for _, x := range solution {
		worst = max(worst, math.Abs(x-1))
	}
	return worst
}

// sums are sums over the elements of the factor that do not depend on the order of elimination: of
// the numbers, of their absolute values, of their squares, and of the numbers multiplied with a
// weight that tells rows and columns of the input apart.
func (r *run) sums() map[string]any {
	var sum, abs, squares, positions float64
	r.each(func(row, column int, x float64) {
		sum += x
		abs += math.Abs(x)
		squares += float64(x * x)
		positions += float64(x * float64((37*row+101*column)%1009))
	})
	return map[string]any{"sum": sum, "sum_abs": abs, "sum_squares": squares, "sum_positions": positions}
}

// each calls visit with the elements of the factor, with their rows and columns as the input
// numbers them.
func (r *run) each(visit func(row, column int, x float64)) {
	for i := range r.panels {
		p := &r.panels[i]
		width, block := p.width(), r.block(p)
		for at, row := range p.rows {
			for c := range min(at+1, width) {
				visit(int(r.order[row]), int(r.order[p.first+c]), block[at*width+c])
			}
		}
	}
}
