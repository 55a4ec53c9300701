package replacement

import (
	"container/heap"
	"math/rand/v2"

	"dsmd/pagetable"
)

// policy chooses which page to part with. It is told of pages that come, and of pages that become
// writable which were here for reading.
type policy interface {
	add(page int32)
	use(page int32)
	evict() int32
}

// seer is a policy that also sees what no node does: each access to a page that is here.
type seer interface {
	see(page int32)
}

// misses runs a trace in memory for so many pages.
func (t *trace) misses(capacity int, p policy) (misses int) {
	const absent, readable, writable = 0, 1, 2
	may := make([]uint8, t.pages)
	all, _ := p.(seer)
	here := 0
	for _, a := range t.list {
		switch has := &may[a.page]; {
		case *has == absent:
			if here == capacity {
				may[p.evict()] = absent
				here--
			}
			p.add(a.page)
			misses++
			here++
			*has = readable
			if a.write {
				*has = writable
			}
			continue
		case *has == readable && a.write:
			p.use(a.page)
			*has = writable
		}
		if all != nil {
			all.see(a.page)
		}
	}
	return misses
}

// ours is a Queue.
type ours struct{ *Queue }

func (o ours) add(page int32) { o.Add(pagetable.Page(page)) }
func (o ours) use(page int32) { o.Use(pagetable.Page(page)) }
func (o ours) evict() int32 {
	p, _ := o.Oldest()
	o.Evicted(p)
	return int32(p)
}

// random parts with any page.
type random struct {
	pages  []int32
	random *rand.Rand
}

func (r *random) add(page int32) { r.pages = append(r.pages, page) }
func (r *random) use(int32)      {}
func (r *random) evict() int32 {
	last := len(r.pages) - 1
	i := r.random.IntN(len(r.pages))
	page := r.pages[i]
	r.pages[i], r.pages = r.pages[last], r.pages[:last]
	return page
}

// fifo parts with the page that came first.
type fifo struct{ pages []int32 }

func (f *fifo) add(page int32) { f.pages = append(f.pages, page) }
func (f *fifo) use(int32)      {}
func (f *fifo) evict() (page int32) {
	page, f.pages = f.pages[0], f.pages[1:]
	return page
}

// s3fifo is S3-FIFO as published, for which a use is what a node sees of them.
type s3fifo struct {
	small, main, ghosts fifo
	capacity            int
	uses                map[int32]int // of pages that are here
	// remembered are the ghosts. In the list may be some that have come back.
	remembered map[int32]bool
}

func newS3FIFO(capacity int) policy {
	return &s3fifo{capacity: capacity, uses: map[int32]int{}, remembered: map[int32]bool{}}
}

func (s *s3fifo) add(page int32) {
	s.uses[page] = 0
	if s.remembered[page] {
		delete(s.remembered, page)
		s.main.add(page)
	} else {
		s.small.add(page)
	}
}

func (s *s3fifo) use(page int32) { s.uses[page] = min(s.uses[page]+1, 3) }

func (s *s3fifo) evict() int32 {
	for {
		if len(s.small.pages) > 0 && (len(s.small.pages)*10 >= s.capacity || len(s.main.pages) == 0) {
			page := s.small.evict()
			if s.uses[page] > 0 {
				s.uses[page] = 0
				s.main.add(page)
				continue
			}
			delete(s.uses, page)
			s.remembered[page] = true
			if s.ghosts.add(page); len(s.ghosts.pages) > s.capacity {
				delete(s.remembered, s.ghosts.evict())
			}
			return page
		}
		page := s.main.evict()
		if s.uses[page] == 0 {
			delete(s.uses, page)
			return page
		}
		s.uses[page]--
		s.main.add(page)
	}
}

// lru parts with the page whose last access is the longest ago. No node can.
type lru struct {
	prev, next []int32 // of each page; the last one stands for both ends
}

func newLRU(pages int) *lru {
	l := &lru{prev: make([]int32, pages+1), next: make([]int32, pages+1)}
	l.prev[pages], l.next[pages] = int32(pages), int32(pages)
	return l
}

func (l *lru) add(page int32) {
	end := int32(len(l.next) - 1)
	newest := l.next[end]
	l.prev[page], l.next[page] = end, newest
	l.next[end], l.prev[newest] = page, page
}

func (l *lru) remove(page int32) {
	l.next[l.prev[page]], l.prev[l.next[page]] = l.next[page], l.prev[page]
}

func (l *lru) use(int32) {}

func (l *lru) see(page int32) {
	l.remove(page)
	l.add(page)
}

func (l *lru) evict() int32 {
	oldest := l.prev[len(l.prev)-1]
	l.remove(oldest)
	return oldest
}

// belady parts with the page whose next access is the farthest ahead (Belady 1966): nothing has
// fewer misses.
type belady struct {
	then []int   // for each access of the trace, the next one to its page
	now  int     // accesses so far
	next []int   // for each page
	far  farness // what is here, and what was
}

type farness [][2]int // next access and page, the farthest first

func (f farness) Len() int           { return len(f) }
func (f farness) Less(i, j int) bool { return f[i][0] > f[j][0] }
func (f farness) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *farness) Push(x any)        { *f = append(*f, x.([2]int)) }
func (f *farness) Pop() any {
	last := len(*f) - 1
	x := (*f)[last]
	*f = (*f)[:last]
	return x
}

func newBelady(t *trace) *belady {
	b := &belady{then: make([]int, len(t.list)), next: make([]int, t.pages)}
	for p := range b.next {
		b.next[p] = len(t.list)
	}
	for i := len(t.list) - 1; i >= 0; i-- {
		p := t.list[i].page
		b.then[i], b.next[p] = b.next[p], i
	}
	return b
}

func (b *belady) see(page int32) {
	b.next[page] = b.then[b.now]
	b.now++
	heap.Push(&b.far, [2]int{b.next[page], int(page)})
}

func (b *belady) add(page int32) { b.see(page) }
func (b *belady) use(int32)      {}
func (b *belady) evict() int32 {
	for {
		x := heap.Pop(&b.far).([2]int)
		if page := x[1]; b.next[page] == x[0] {
			b.next[page] = -1
			return int32(page)
		}
	}
}
