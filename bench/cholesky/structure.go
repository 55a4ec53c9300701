package cholesky

import "slices"

const (
	// panelWidth is the most columns of a panel: the original's default.
	panelWidth = 32
	// pageNumbers is the number of float64 to which memory of different owners is aligned: 4 KiB. With larger pages
	// neighbours share one, which is only slower.
	pageNumbers = 512
)

// A panel is some columns of the factor, stored as a dense block: those rows, of these columns, in which anything can be other
// than zero. It is written by its owner only.
type panel struct {
	first, end int // its columns are first to end-1
	// rows are the numbers of the block's rows, increasing; the first ones are the columns' own.
	rows  []int32
	owner int // thread
	// offset is where the block begins in the memory of all panels, row by row.
	offset int
	// sources are the panels that change this one, in the order in which they do; and targets the panels that this one
	// changes.
	sources, targets []int32
}

func (p *panel) width() int { return p.end - p.first }

func (p *panel) size() int { return p.width() * len(p.rows) }

// A structure says what is where in the factor. It is small and the same in all processes, each of which
// computes it for itself.
type structure struct {
	*dissection
	panels []panel
	memory int // float64s for all panels
}

// analyse finds out where the factor can be other than zero (symbolic factorisation).
func analyse(edge, threads int) *structure {
	s := &structure{dissection: dissect(edge, threads)}
	below := make([][]int32, len(s.parts)) // each part's rows below its own columns
	panelOf := make([]int32, len(s.point))
	for i := range s.parts {
		below[i] = s.rowsBelow(i, below)
		s.split(&s.parts[i], below[i], panelOf)
		for _, child := range s.parts[i].children {
			below[child] = nil
		}
	}
	s.connect(panelOf)
	s.place(threads)
	return s
}

// rowsBelow are the rows that elimination of a part's columns touches: the neighbours that come later, and what
// elimination of its children has touched beyond the part itself.
func (s *structure) rowsBelow(number int, below [][]int32) []int32 {
	p := &s.parts[number]
	var rows []int32
	for _, child := range p.children {
		for _, row := range below[child] {
			if int(row) >= p.end {
				rows = append(rows, row)
			}
		}
	}
	for column := p.first; column < p.end; column++ {
		s.neighbours(column, func(other int) {
			if other >= p.end {
				rows = append(rows, int32(other))
			}
		})
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// split makes the panels of a part, of nearly equal width, dealt out to its owners in turn.
func (s *structure) split(p *part, below []int32, panelOf []int32) {
	rows := make([]int32, 0, p.end-p.first+len(below))
	for column := p.first; column < p.end; column++ {
		rows = append(rows, int32(column))
	}
	rows = append(rows, below...)
	count := (p.end - p.first + panelWidth - 1) / panelWidth
	for k := range count {
		first, end := (p.end-p.first)*k/count, (p.end-p.first)*(k+1)/count
		for column := first; column < end; column++ {
			panelOf[p.first+column] = int32(len(s.panels))
		}
		s.panels = append(s.panels, panel{
			first: p.first + first, end: p.first + end, rows: rows[first:],
			owner: p.owners[0] + k%(p.owners[1]-p.owners[0]),
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

// place puts the panels of each owner together, and large panels on pages of their own.
func (s *structure) place(threads int) {
	align := func() { s.memory = (s.memory + pageNumbers - 1) / pageNumbers * pageNumbers }
	for owner := range threads {
		align()
		for i := range s.panels {
			if p := &s.panels[i]; p.owner == owner {
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
