package cholesky

import (
	"errors"
	"fmt"
)

// maxNonzeros is the most elements that a factor may have below the diagonal and on it: 8 GiB. A
// matrix whose order was not chosen with care fills in until no machine has the memory, and this is
// noticed before any is taken.
const maxNonzeros = 1 << 30

// ErrFill is returned for a matrix whose factor is too large.
var ErrFill = errors.New("the factor is too large")

// eliminationTree is, for each column, the next one that its elimination changes (the first row
// below the diagonal in which the factor has an element), or the number of columns if there is
// none. The method is J. Liu's, "The role of elimination trees in sparse factorization", 1990,
// section 5.
func (m *matrix) eliminationTree() []int32 {
	n := int32(m.size())
	// root is a short cut towards the root of what is there so far
	parent, root := make([]int32, n), make([]int32, n)
	for column := range n {
		parent[column], root[column] = n, n
		for _, below := range m.neighbours(int(column)) {
			if below > column {
				break
			}
			for at := below; at != column; {
				next := root[at]
				root[at] = column
				if next == n {
					parent[at] = column
					break
				}
				at = next
			}
		}
	}
	return parent
}

// columnCounts is how many elements the factor has in each column, the diagonal's included. If they
// are more than most, that is an ErrFill.
func (m *matrix) columnCounts(parent []int32, most int) ([]int, error) {
	n, total := m.size(), m.size()
	counts, seen := make([]int, n), make([]int32, n)
	for row := range int32(n) {
		counts[row], seen[row] = 1, row
		for _, column := range m.neighbours(int(row)) {
			// The row has an element in this column, and thereby in all on the way up the tree to
			// the row.
			for at := column; at < row && seen[at] != row; at = parent[at] {
				seen[at] = row
				counts[at]++
				total++
			}
		}
		if total > most {
			return nil, fmt.Errorf("%w: it has more than %d elements: order the matrix so that less fills in", ErrFill, most)
		}
	}
	return counts, nil
}

// none is the number of no supernode.
const none = -1

// A supernode is columns that are eliminated together, since they have (nearly) the same rows.
type supernode struct {
	columns []int32 // in order of elimination
	height  int     // rows in which they have elements, their own included
	parent  int     // the supernode with the tree's next column, or none
	// children are the supernodes of which this is the parent, increasing.
	children []int
}

func (s *supernode) width() int { return len(s.columns) }

// operations is the original's count of the operations for these columns: the square of the number
// of elements in each.
func (s *supernode) operations() (sum float64) {
	for k := range s.columns {
		sum += float64((s.height - k) * (s.height - k))
	}
	return sum
}

// nonzeros is the number of elements on the diagonal and below, of those that are stored: a few may
// be zero.
func (s *supernode) nonzeros() (sum int) {
	for k := range s.columns {
		sum += s.height - k
	}
	return sum
}

// findSupernodes puts neighbouring columns together that have the same rows.
func findSupernodes(parent []int32, counts []int) []supernode {
	n := len(parent)
	children := make([]int, n+1)
	for _, p := range parent {
		children[p]++
	}
	var found []supernode
	of := make([]int, n+1)
	of[n] = none
	for column := range n {
		if column == 0 || int(parent[column-1]) != column || children[column] != 1 || counts[column] != counts[column-1]-1 {
			found = append(found, supernode{height: counts[column]})
		}
		of[column] = len(found) - 1
		s := &found[of[column]]
		s.columns = append(s.columns, int32(column))
	}
	for i := range found {
		found[i].parent = of[parent[found[i].columns[found[i].width()-1]]]
	}
	connectSupernodes(found)
	return found
}

// connectSupernodes finds out the children.
func connectSupernodes(list []supernode) {
	for i := range list {
		if parent := list[i].parent; parent != none {
			list[parent].children = append(list[parent].children, i)
		}
	}
}
