package replacement

import "dsmd/pagetable"

// list is a queue of entries: they come at the newest end.
type list struct {
	newest, oldest uint32
	count          int
}

func (q *Queue) list(in place) *list {
	switch in {
	case inSmall:
		return &q.small
	case inMain:
		return &q.main
	case inAside:
		return &q.aside
	default:
		return &q.ghosts
	}
}

// take returns an entry for a page that has none.
func (q *Queue) take(p pagetable.Page) uint32 {
	i := q.free
	if i == 0 {
		i = uint32(len(q.entries))
		q.entries = append(q.entries, entry{})
	} else {
		q.free = q.entries[i].next
	}
	q.entries[i] = entry{page: p}
	q.index[p] = i
	return i
}

// drop forgets a page.
func (q *Queue) drop(i uint32) {
	q.unlink(i)
	delete(q.index, q.entries[i].page)
	q.entries[i] = entry{next: q.free}
	q.free = i
}

// move puts an entry at the newest end of a list.
func (q *Queue) move(i uint32, to place) {
	q.unlink(i)
	q.push(i, to)
}

// push puts an entry that is in no list at the newest end of one.
func (q *Queue) push(i uint32, in place) {
	l, e := q.list(in), &q.entries[i]
	e.in, e.prev, e.next = in, 0, l.newest
	if l.newest != 0 {
		q.entries[l.newest].prev = i
	} else {
		l.oldest = i
	}
	l.newest = i
	l.count++
}

func (q *Queue) unlink(i uint32) {
	e := &q.entries[i]
	l := q.list(e.in)
	if e.prev != 0 {
		q.entries[e.prev].next = e.next
	} else {
		l.newest = e.next
	}
	if e.next != 0 {
		q.entries[e.next].prev = e.prev
	} else {
		l.oldest = e.prev
	}
	l.count--
}
