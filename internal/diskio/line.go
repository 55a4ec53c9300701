package diskio

import "slices"

// line are transfers that wait, and how many may be under way. Files take turns, as far as their
// shares go; those of a file begin in the order in which they came.
type line struct {
	shares Shares            // of the system calls that are made at a time
	most   int               // how many bytes of a file are under way, about
	files  map[int]*fileLine // by descriptor; those for which nothing waits are for the next time
	turns  []int             // the files for which transfers wait
	// waits finds out what fileLine.waits is, by a transfer; nil: it need not be known.
	waits func(*Transfer) bool
}

// fileLine are the transfers of a file.
type fileLine struct {
	waiting []*Transfer
	bytes   int  // that are under way
	waits   bool // who begins a transfer may have to wait for that
}

func newLine(calls, most int) line {
	return line{shares: NewShares(calls), most: most, files: map[int]*fileLine{}}
}

// add adds transfers.
func (l *line) add(list []*Transfer) {
	for len(list) > 0 {
		fd, n := list[0].FD, 1
		for n < len(list) && list[n].FD == fd {
			n++
		}
		f := l.of(fd)
		// When nothing of a file is under way it may be another one than before.
		if l.waits != nil && len(f.waiting) == 0 && f.bytes == 0 {
			f.waits = l.waits(list[0])
		}
		f.waiting = append(f.waiting, list[:n]...)
		list = list[n:]
	}
}

// of is the line of a file for which transfers are about to wait.
func (l *line) of(fd int) *fileLine {
	f := l.files[fd]
	if f == nil {
		f = &fileLine{}
		l.files[fd] = f
	}
	if len(f.waiting) == 0 {
		l.turns = append(l.turns, fd)
	}
	return f
}

// first is the place among turns of the first file of which a transfer can begin; -1: there is
// none.
func (l *line) first() int {
	if l.shares.Free() == 0 {
		return -1
	}
	return slices.IndexFunc(l.turns, func(fd int) bool { return l.files[fd].bytes < l.most && l.shares.May(fd) })
}

// may is whether a transfer can begin.
func (l *line) may() bool { return l.first() >= 0 }

// next appends neighbours to a list, which are made by one system call now. Preconditions: may.
func (l *line) next(list []*Transfer) []*Transfer {
	i := l.first()
	fd := l.turns[i]
	f := l.files[fd]
	n := neighbours(f.waiting)
	list = append(list, f.waiting[:n]...)
	f.bytes += bytesOf(f.waiting[:n])
	clear(f.waiting[:n]) // the line would keep them, and what they own
	f.waiting = f.waiting[n:]
	l.turns = slices.Delete(l.turns, i, i+1)
	if len(f.waiting) > 0 {
		l.turns = append(l.turns, fd)
	}
	l.shares.Take(fd, 1)
	return list
}

// over notes that a system call for a file is over, which was to move so many bytes, and has those
// wait again that it has not made.
func (l *line) over(fd, bytes int, rest []*Transfer) {
	l.shares.GiveBack(fd, 1)
	l.files[fd].bytes -= bytes
	if len(rest) > 0 { // else each end would copy all that waits
		f := l.of(fd)
		f.waiting = append(slices.Clone(rest), f.waiting...)
	}
}

// forget forgets what waits.
func (l *line) forget() {
	l.turns = nil
	for _, f := range l.files {
		f.waiting = nil
	}
}
