package cholesky

import (
	"fmt"
	"slices"

	"dsmd/bench/kernel"
)

const (
	// panelWidth is the most columns of a panel: the original's default.
	panelWidth = 32
	// pageNumbers is the number of float64 to which memory of different owners is aligned: 4 KiB.
	// With larger pages neighbours share one, which is only slower.
	pageNumbers = 512
)

// A panel is some columns of the factor, stored as a dense block: those rows, of these columns, in
// which anything can be other than zero. It is written by its owner only.
type panel struct {
	first, end int // its columns are first to end-1
	// rows are the numbers of the block's rows, increasing; the first ones are the columns' own.
	rows  []int32
	owner int // thread
	// offset is where the block begins in the memory of all panels, row by row.
	offset int
	// sources are the panels that change this one, in the order in which they do; and targets the
	// panels that this one changes.
	sources, targets []int32
}

func (p *panel) width() int { return p.end - p.first }

func (p *panel) size() int { return p.width() * len(p.rows) }

// A structure says what is where in the factor. It is small and the same in all processes, each of
// which computes it for itself.
type structure struct {
	*matrix         // with its rows and columns in the order in which they are eliminated
	order   []int32 // the number in the input of each column
	panels  []panel
	memory  int // float64s for all panels
	extent  extent
}

// An extent is how much there is to compute. The original prints the same figures before and after
// it joins supernodes.
type extent struct {
	supernodesBefore, supernodes int
	operationsBefore, operations float64
	// of the factor, those included that are stored although they are zero
	nonzeros int
}

// analyse finds out where the factor can be other than zero (symbolic factorisation), and divides
// it among threads.
func analyse(input *matrix, threads int) (*structure, error) {
	parent := input.eliminationTree()
	counts, err := input.columnCounts(parent, maxNonzeros)
	if err != nil {
		return nil, err
	}
	s := &structure{}
	found := findSupernodes(parent, counts)
	s.extent.supernodesBefore = len(found)
	for i := range found {
		s.extent.operationsBefore += found[i].operations()
	}
	nodes := amalgamate(found)
	s.extent.supernodes = len(nodes)
	for i := range nodes {
		s.extent.operations += nodes[i].operations()
		s.extent.nonzeros += nodes[i].nonzeros()
		s.order = append(s.order, nodes[i].columns...)
	}
	if s.extent.nonzeros > maxNonzeros {
		return nil, fmt.Errorf("%w: with joined supernodes it has %d elements, more than %d", ErrFill, s.extent.nonzeros, maxNonzeros)
	}
	s.matrix = input.permuted(s.order)
	s.findPanels(nodes, dealOut(nodes, threads))
	s.place(threads)
	return s, nil
}

// findPanels makes the panels of all supernodes.
func (s *structure) findPanels(nodes []supernode, owners []owners) {
	below := make([][]int32, len(nodes)) // each supernode's rows below its own columns
	panelOf := make([]int32, s.size())
	first := 0
	for i := range nodes {
		end := first + nodes[i].width()
		below[i] = s.rowsBelow(&nodes[i], first, end, below)
		s.split(first, end, below[i], owners[i], panelOf)
		for _, child := range nodes[i].children {
			below[child] = nil
		}
		first = end
	}
	s.connect(panelOf)
}

// rowsBelow are the rows that elimination of a supernode's columns, first to end-1, touches: the
// neighbours that come later, and what elimination of its children has touched beyond the supernode
// itself.
func (s *structure) rowsBelow(node *supernode, first, end int, below [][]int32) []int32 {
	var rows []int32
	add := func(row int32) {
		if int(row) >= end {
			rows = append(rows, row)
		}
	}
	for _, child := range node.children {
		for _, row := range below[child] {
			add(row)
		}
	}
	for column := first; column < end; column++ {
		for _, row := range s.neighbours(column) {
			add(row)
		}
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// split makes the panels of a supernode's columns, first to end-1, of nearly equal width, dealt out
// to its owners in turn.
func (s *structure) split(first, end int, below []int32, owners owners, panelOf []int32) {
	rows := make([]int32, 0, end-first+len(below))
	for column := first; column < end; column++ {
		rows = append(rows, int32(column))
	}
	rows = append(rows, below...)
	count := (end - first + panelWidth - 1) / panelWidth
	for k := range count {
		from, to := kernel.Block(end-first, count, k)
		for column := from; column < to; column++ {
			panelOf[first+column] = int32(len(s.panels))
		}
		s.panels = append(s.panels, panel{
			first: first + from, end: first + to, rows: rows[from:],
			owner: owners.first + k%(owners.end-owners.first),
		})
	}
}

// connect finds out which panel changes which.
func (s *structure) connect(panelOf []int32) {
	for i := range s.panels {
		p := &s.panels[i]
		for _, row := range p.rows[p.width():] {
			target := panelOf[row]
			if n := len(p.targets); n == 0 || p.targets[n-1] != target {
				p.targets = append(p.targets, target)
				s.panels[target].sources = append(s.panels[target].sources, int32(i))
			}
		}
	}
}

// place puts the panels of each owner together, and large panels on pages of their own. Panels that
// others read come after those that none does: a page that is fetched while its owner still writes
// to it must be fetched again.
func (s *structure) place(threads int) {
	align := func() { s.memory = (s.memory + pageNumbers - 1) / pageNumbers * pageNumbers }
	for owner := range threads {
		for _, shared := range []bool{false, true} {
			align()
			for i := range s.panels {
				p := &s.panels[i]
				if p.owner != owner || s.leaves(p) != shared {
					continue
				}
				if p.size() >= pageNumbers {
					align()
				}
				p.offset = s.memory
				s.memory += p.size()
			}
		}
	}
	align()
}

// leaves is whether another thread than its owner needs a panel.
func (s *structure) leaves(p *panel) bool {
	return slices.ContainsFunc(p.targets, func(target int32) bool { return s.panels[target].owner != p.owner })
}
