package cholesky

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// ErrFormat is returned for an input that is not a symmetric matrix in Harwell-Boeing format, with
// the line at fault.
var ErrFormat = errors.New("not a symmetric matrix in Harwell-Boeing format")

// Bounds of an input. With more, the factor of all but the sparsest matrices takes more memory than
// there is.
const (
	maxEquations = 1 << 20
	maxElements  = 1 << 26
	// maxLine is the longest line, in bytes. The format has 80 columns, and some programs write a
	// few more.
	maxLine = 1 << 10
)

// readMatrix reads a matrix in the format of the Harwell-Boeing collection (Duff, Grimes, Lewis,
// "Users' guide for the Harwell-Boeing sparse matrix collection", 1992, chapter 2): four lines of
// header, where in the list of rows each column begins, and the rows, in lines of numbers of fixed
// width. The matrix must be symmetric, its lower triangle alone be given, and that with the
// diagonal. Any numbers that follow are left alone, as by the original.
func readMatrix(from io.Reader) (*matrix, error) {
	r := &harwell{lines: bufio.NewScanner(from)}
	r.lines.Buffer(nil, maxLine)
	h, err := r.header()
	if err != nil {
		return nil, err
	}
	begins, err := r.begins(h)
	if err != nil {
		return nil, err
	}
	rows, err := r.numbers(h.elements, h.rowFormat, "row", 1, h.equations)
	if err != nil {
		return nil, err
	}
	return lowerTriangle(begins, rows)
}

// harwell reads lines and counts them.
type harwell struct {
	lines *bufio.Scanner
	line  int
}

// next is the next line, which has what is said in it.
func (r *harwell) next(what string) (string, error) {
	r.line++
	if !r.lines.Scan() {
		err := r.lines.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			return "", r.wrong("it is longer than %d bytes", maxLine)
		}
		if err != nil {
			return "", fmt.Errorf("reading line %d: %w", r.line, err)
		}
		return "", r.wrong("the file ends before it; want %s", what)
	}
	return strings.TrimRight(r.lines.Text(), "\r"), nil
}

func (r *harwell) wrong(format string, args ...any) error {
	return fmt.Errorf("%w: line %d: %s", ErrFormat, r.line, fmt.Sprintf(format, args...))
}

// A field is some columns of a line, from first to end-1, counted from 0.
type field struct{ first, end int }

func (f field) of(line string) string {
	if f.first >= len(line) {
		return ""
	}
	return strings.TrimSpace(line[f.first:min(f.end, len(line))])
}

// number reads the number in a field, low to high.
func (r *harwell) number(line string, f field, what string, low, high int) (int, error) {
	text := f.of(line)
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, r.wrong("columns %d to %d have %q, want %s, a number from %d to %d", f.first+1, f.end, text, what, low, high)
	}
	return n, nil
}

// A header is what the first lines say.
type header struct {
	equations, elements    int
	beginFormat, rowFormat intFormat
}

func (r *harwell) header() (h header, err error) {
	if _, err := r.next("the title"); err != nil {
		return h, err
	}
	counts, err := r.next("the numbers of lines")
	if err != nil {
		return h, err
	}
	rightHandSides := 0
	// Some programs leave out this number where it is 0.
	if f := (field{56, 70}); f.of(counts) != "" {
		if rightHandSides, err = r.number(counts, f, "how many lines have right-hand sides", 0, maxElements); err != nil {
			return h, err
		}
	}
	if err := r.dimensions(&h); err != nil {
		return h, err
	}
	formats, err := r.next("the formats of the numbers")
	if err != nil {
		return h, err
	}
	if h.beginFormat, err = r.format(formats, field{0, 16}); err != nil {
		return h, err
	}
	if h.rowFormat, err = r.format(formats, field{16, 32}); err != nil {
		return h, err
	}
	if rightHandSides > 0 {
		_, err = r.next("the format of the right-hand sides")
	}
	return h, err
}

// dimensions reads the header's third line.
func (r *harwell) dimensions(h *header) error {
	line, err := r.next("the type and size of the matrix")
	if err != nil {
		return err
	}
	kind := field{0, 3}.of(line)
	if !slices.Contains([]string{"PSA", "RSA"}, strings.ToUpper(kind)) {
		return r.wrong("the type is %q, want PSA or RSA: a symmetric, assembled matrix", kind)
	}
	rows, err := r.number(line, field{14, 28}, "how many rows there are", 1, maxEquations)
	if err != nil {
		return err
	}
	if h.equations, err = r.number(line, field{28, 42}, "how many columns there are", 1, maxEquations); err != nil {
		return err
	}
	if rows != h.equations {
		return r.wrong("%d rows and %d columns, want a square matrix", rows, h.equations)
	}
	h.elements, err = r.number(line, field{42, 56}, "how many elements there are", h.equations, maxElements)
	return err
}

// An intFormat is Fortran's (12I6): 12 numbers a line, each in 6 columns.
type intFormat struct{ perLine, width int }

func (r *harwell) format(line string, f field) (intFormat, error) {
	text := f.of(line)
	wrong := r.wrong("columns %d to %d have %q, want a format such as (12I6)", f.first+1, f.end, text)
	inner, ok := strings.CutPrefix(strings.ToUpper(text), "(")
	inner, closed := strings.CutSuffix(inner, ")")
	perLine, width, isInt := strings.Cut(inner, "I")
	if !ok || !closed || !isInt {
		return intFormat{}, wrong
	}
	width, _, _ = strings.Cut(width, ".") // I6.1 only says how a number is written
	format := intFormat{perLine: 1}
	var err error
	if perLine = strings.TrimSpace(perLine); perLine != "" {
		if format.perLine, err = strconv.Atoi(perLine); err != nil {
			return intFormat{}, wrong
		}
	}
	if format.width, err = strconv.Atoi(strings.TrimSpace(width)); err != nil {
		return intFormat{}, wrong
	}
	if format.perLine < 1 || format.width < 1 || format.perLine > maxLine || format.width > maxLine || format.perLine*format.width > maxLine {
		return intFormat{}, r.wrong("columns %d to %d have %q, which are lines of 0 or of more than %d bytes", f.first+1, f.end, text, maxLine)
	}
	return format, nil
}

// numbers reads so many numbers, each from low to high.
func (r *harwell) numbers(count int, format intFormat, what string, low, high int) ([]int32, error) {
	var all []int32 // Grows with what is there. The header may claim anything.
	for len(all) < count {
		want := fmt.Sprintf("number %d of %d of the kind: %s", len(all)+1, count, what)
		line, err := r.next(want)
		if err != nil {
			return nil, err
		}
		for k := range min(format.perLine, count-len(all)) {
			n, err := r.number(line, field{k * format.width, (k + 1) * format.width}, what, low, high)
			if err != nil {
				return nil, err
			}
			all = append(all, int32(n))
		}
	}
	return all, nil
}

// begins reads where in the list of rows each column begins, counted from 0, and where the last one
// ends.
func (r *harwell) begins(h header) ([]int32, error) {
	begins, err := r.numbers(h.equations+1, h.beginFormat, "the place in the list of rows where a column begins", 1, h.elements+1)
	if err != nil {
		return nil, err
	}
	if begins[0] != 1 || begins[h.equations] != int32(h.elements)+1 {
		return nil, r.wrong("the columns begin at %d and end before %d in the list of rows, want 1 and %d", begins[0], begins[h.equations], h.elements+1)
	}
	for column := range h.equations {
		if begins[column+1] <= begins[column] {
			return nil, r.wrong("column %d begins at %d and column %d at %d, which leaves no place for the element on the diagonal",
				column+1, begins[column], column+2, begins[column+1])
		}
		begins[column]--
	}
	begins[h.equations]--
	return begins, nil
}

// lowerTriangle makes a matrix of columns whose rows, counted from 1, are in any order and have the
// diagonal among them.
func lowerTriangle(begins, rows []int32) (*matrix, error) {
	starts, below := make([]int32, 1, len(begins)), make([]int32, 0, len(rows)-len(begins)+1)
	for column := range len(begins) - 1 {
		own := rows[begins[column]:begins[column+1]]
		slices.Sort(own)
		if first := own[0]; int(first) < column+1 {
			return nil, fmt.Errorf("%w: column %d has an element in row %d, above the diagonal; want the lower triangle alone", ErrFormat, column+1, first)
		} else if int(first) > column+1 {
			return nil, fmt.Errorf("%w: column %d has no element on the diagonal", ErrFormat, column+1)
		}
		for k, row := range own[1:] {
			if row == own[k] {
				return nil, fmt.Errorf("%w: column %d has two elements in row %d", ErrFormat, column+1, row)
			}
			below = append(below, row-1)
		}
		starts = append(starts, int32(len(below)))
	}
	return newMatrix(starts, below), nil
}
