package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/protocol"

	"golang.org/x/sys/unix"
)

// origins are the files in which pages begin that nobody has touched yet (OpContents). The home of
// such a page grants it, and who gets the grant reads the page: from the file, so that its contents
// go over no network but the file's, or from the node that has the file (see storage). Each node
// has all that its programs have said; they say the same everywhere.
type origins struct {
	intake *intake
	bytes  uint64 // of a page
	self   protocol.NodeID
	list   []*origin // in ascending order, disjoint
	// stored are pages that were asked for because somebody stores to them.
	stored    pagetable.PageSet
	fallbacks fallbacks
}

// origin is the file, or files, of an allocation.
type origin struct {
	first, end pagetable.Page
	ids        [][16]byte // of the checkpoints that have the pages so which nobody has touched
	files      []*given   // as long as a read needs them
	offset     uint64
	// fileBytes is how long each file is from offset on; written: it is written to. readers are the
	// nodes that have one each, of which stripe pages come in turn; none: this node has the only
	// one.
	fileBytes uint64
	written   bool
	readers   []protocol.NodeID
	stripe    uint64
	// places are where the pages are, if not one behind the other, in chunks of chunkPages pages. A
	// chunk that is not there has zero Places. Those pages are in the files of beneath; nil: they
	// are zeros.
	places  map[uint64][]byte
	beneath *origin
	yields  bool                  // see letGo
	ready   bool                  // see fallbacks
	givers  map[*program]struct{} // of a fallback: programs that have the memory
}

// errInUse is why it is too late to say more of where pages begin: those that have left memory
// would come back from elsewhere.
var errInUse = errors.New("pages of this allocation have come already from the files that were given before")

// errFreed is why nothing is noted of memory that was freed before all reactors had answered.
var errFreed = errors.New("this allocation has been freed meanwhile")

// chunkPages is how many pages' places are kept together.
const chunkPages = 256

// add has pages begin in files. The error is the program's.
func (o *origins) add(p *program, c *attach.Call) error {
	what, err := attach.DecodeContents(c.Payload)
	if err != nil {
		return err
	}
	x := &origin{first: pagetable.Page(c.Object), end: pagetable.Page(c.Object + c.Count), offset: what.Offset, fileBytes: what.Bytes,
		written: what.Written, stripe: what.Stripe}
	if what.ID != [16]byte{} {
		x.ids = [][16]byte{what.ID}
	}
	for _, node := range what.Readers {
		x.readers = append(x.readers, protocol.NodeID(node))
	}
	if x.files, err = p.files.takeRun(what.First, what.Files); err != nil {
		return err
	}
	table := -1
	if what.Table != 0 {
		if table, err = p.files.take(what.Table); err != nil {
			return err
		}
		defer p.files.closer.close(table)
	}
	if err := o.check(x, c); err != nil {
		p.refuseCall(c, err)
		return nil
	}
	read := func() error { return nil }
	if table >= 0 {
		x.places = map[uint64][]byte{}
		read = func() error { return x.read(table, c.Count, o.bytes) }
	}
	o.enterAll(p, x, what.Fallback, read, func(err error) {
		if err != nil {
			p.refuseCall(c, err)
		} else {
			p.answer(&attach.Reply{Ticket: c.Ticket})
		}
	})
	return nil
}

// enterAll has all reactors note an origin that a program has given, each one of its own, and then
// calls then. A table that is to lie over files is noted by none before all have let go of those.
// They know of the same origins, as each is told of them in one order, and so note the same.
func (o *origins) enterAll(p *program, x *origin, fallback bool, read func() error, then func(error)) {
	y, stays := o.earlier(x, fallback)
	replaces := y != nil && !stays && !fallback
	var err error
	if replaces {
		err = o.letGo(x.first)
	}
	if err == nil && !stays {
		err = read()
	}
	if err != nil {
		then(err)
		return
	}
	given, id, of := *x, p.id, o.intake.drive.partition // this reactor changes its own
	given.ids = slices.Clone(x.ids)
	enter := func() {
		o.enter(p, x, fallback, replaces)
		gather(of, func(other *Node) struct{} {
			own := given
			own.ids = slices.Clone(given.ids)
			other.origins.enter(other.programs.byID[id], &own, fallback, replaces)
			return struct{}{}
		}, func([]struct{}) { then(nil) })
	}
	if !replaces {
		enter()
		return
	}
	gather(of, func(other *Node) error { return other.origins.letGo(given.first) }, func(errs []error) {
		switch err := cmp.Or(errs...); {
		case err != nil:
			then(err)
		case o.find(given.first) == nil:
			then(errFreed)
		default:
			enter()
		}
	})
}

// letGo has pages that come from the files of an allocation from here on count as changed: they
// never leave as pages that come back from there, where a table of places may lie over the files by
// then. If the table is refused after all they are saved more often than they need be.
func (o *origins) letGo(first pagetable.Page) error {
	x := o.find(first)
	if x == nil {
		return errFreed
	}
	if o.intake.drive.exec.snaps.SomeUnchanged(x.first, uint64(x.end-x.first)) {
		return errInUse
	}
	x.yields = true
	return nil
}

// enter notes an origin, unless another program of this node was earlier, or it is to replace what
// was freed meanwhile. The program is that of a fallback.
func (o *origins) enter(p *program, x *origin, fallback, replaces bool) {
	list := &o.list
	y, stays := o.earlier(x, fallback)
	if fallback {
		list, x.givers = &o.fallbacks.list, map[*program]struct{}{p: {}}
	}
	switch {
	case stays:
		maps.Copy(y.givers, x.givers)
		return
	case replaces && y == nil:
		return
	}
	if x.places != nil {
		x.beneath = o.beneath(x.first)
	}
	*list = append(slices.DeleteFunc(*list, func(z *origin) bool { return z == y }), x)
	slices.SortFunc(*list, func(a, b *origin) int { return cmp.Compare(a.first, b.first) })
}

// earlier is what was noted before for the pages of an origin, if anything was, and whether that
// stays.
func (o *origins) earlier(x *origin, fallback bool) (y *origin, stays bool) {
	if fallback {
		y = find(o.fallbacks.list, x.first)
		return y, y != nil && slices.Equal(y.ids, x.ids)
	}
	y = o.find(x.first)
	return y, y != nil && (x.places == nil || y.places != nil)
}

// check tells why pages can't begin in these files.
func (o *origins) check(x *origin, c *attach.Call) error {
	e := o.intake.extents.Find(x.first)
	own := 0
	for _, node := range x.readers {
		if node == o.self {
			own++
		}
	}
	nodes := uint64(max(len(x.readers), 1))
	switch {
	case e == nil || e.First != x.first || e.End != x.end:
		return fmt.Errorf("%d pages from page %d on are not an allocation that this program has", c.Count, c.Object)
	case len(x.readers) > 0 && len(x.files) != own || own > 1:
		return fmt.Errorf("this node was given %d files, and has %d of %d", len(x.files), own, nodes)
	case slices.ContainsFunc(x.readers, func(n protocol.NodeID) bool { return int(n) >= o.intake.drive.exec.out.net.Nodes() }):
		return fmt.Errorf("nodes %v are to have the files, and there are %d", x.readers, o.intake.drive.exec.out.net.Nodes())
	case x.offset%o.bytes != 0:
		return fmt.Errorf("the contents begin at byte %d, and pages have %d bytes", x.offset, o.bytes)
	}
	return nil
}

// read reads and checks where the pages are. Of a large memory that is hardly used the table has
// holes.
func (x *origin) read(table int, pages, pageBytes uint64) error {
	const chunkBytes = chunkPages * attach.PlaceBytes
	if err := inMemory(table); err != nil {
		return fmt.Errorf("the table of places: %w", err)
	}
	end := pages * attach.PlaceBytes
	var info unix.Stat_t
	if err := unix.Fstat(table, &info); err != nil || uint64(info.Size) < end {
		return fmt.Errorf("the table of places is shorter than %d bytes: %w", end, orEnd(err))
	}
	x.places = map[uint64][]byte{}
	for from := int64(0); ; {
		at, err := unix.Seek(table, from, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && uint64(at) >= end {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the table of places: %w", err)
		}
		chunk := uint64(at) / chunkBytes
		list := make([]byte, min(chunkBytes, end-chunk*chunkBytes))
		if n, err := unix.Pread(table, list, int64(chunk*chunkBytes)); n < len(list) {
			return fmt.Errorf("the table of places: %w", orEnd(err))
		}
		for at := 0; at < len(list); at += attach.PlaceBytes {
			if _, err := attach.PlaceIn(list[at:], len(x.files), pageBytes); err != nil {
				return err
			}
		}
		x.places[chunk] = list
		from = int64((chunk + 1) * chunkBytes)
	}
}

// beneath is the origin in whose files a page is that no table has, or nil.
func (o *origins) beneath(page pagetable.Page) *origin {
	x := o.find(page)
	if x != nil && x.places != nil {
		return x.beneath
	}
	return x
}

// find is the origin of a page, or nil.
func (o *origins) find(page pagetable.Page) *origin { return find(o.list, page) }

// find is the one of a list in which a page is, or nil.
func find(list []*origin, page pagetable.Page) *origin {
	i, _ := slices.BinarySearchFunc(list, page, func(x *origin, p pagetable.Page) int {
		if p >= x.end {
			return -1
		}
		return 1
	})
	if i < len(list) && list[i].first <= page {
		return list[i]
	}
	return nil
}

// of is where the contents of a page are, if it does not begin with zeros: in a file of this node,
// or of another, which must be asked.
func (o *origins) of(page pagetable.Page) (at backing.Location, node protocol.NodeID, is bool) {
	if len(o.list) == 0 {
		return at, o.self, false
	}
	x := o.find(page)
	if x == nil {
		return at, o.self, false
	}
	return x.of(uint64(page-x.first), o)
}

// of is origins.of, for a page of this origin.
func (x *origin) of(number uint64, o *origins) (at backing.Location, node protocol.NodeID, is bool) {
	if x.places == nil {
		return x.inOrder(number, o)
	}
	switch place := x.place(number, o.bytes); {
	case place.File != 0:
		f := x.files[place.File-1]
		return backing.Location{FD: f.fd, Offset: int64(place.Slot * o.bytes), CRC: place.CRC, Check: true, Keep: f}, o.self, true
	case place == attach.Place{} && x.beneath != nil:
		return x.beneath.inOrder(number, o)
	}
	return at, o.self, false
}

// place is what the table of places says of a page. It was checked when it was read.
func (x *origin) place(number, pageBytes uint64) (place attach.Place) {
	if chunk := x.places[number/chunkPages]; chunk != nil {
		place, _ = attach.PlaceIn(chunk[number%chunkPages*attach.PlaceBytes:], len(x.files), pageBytes)
	}
	return place
}

// inOrder is of for pages that lie one behind the other.
func (x *origin) inOrder(number uint64, o *origins) (at backing.Location, node protocol.NodeID, is bool) {
	node = o.self
	if n := uint64(len(x.readers)); n > 0 {
		round, turn := number/x.stripes(), number/x.stripes()%n
		node, number = x.readers[turn], round/n*x.stripes()+number%x.stripes()
	}
	if number*o.bytes >= x.fileBytes {
		return at, o.self, false
	}
	if node != o.self {
		return at, node, true
	}
	least := min(x.fileBytes-number*o.bytes, o.bytes) // what the file had when it was mapped
	return backing.Location{FD: x.files[0].fd, Offset: int64(x.offset + number*o.bytes), Least: int(least), Keep: x.files[0]}, node, true
}

// stripes is of how many pages of one file those of the next follow.
func (x *origin) stripes() uint64 {
	if x.stripe == 0 {
		return 1 << 62
	}
	return x.stripe
}

// here is where the contents of a page are in a file of this node.
func (o *origins) here(page pagetable.Page) (at backing.Location, is bool) {
	at, node, is := o.of(page)
	return at, is && node == o.self
}

// wanted notes that a page is asked for.
func (o *origins) wanted(page pagetable.Page, access protocol.Access) {
	if access == protocol.Write && len(o.list) > 0 && o.find(page) != nil {
		o.stored.Add(page)
	}
}

// location is where a page is that was unloaded.
func (o *origins) location(page pagetable.Page) backing.Location {
	if at, is := o.here(page); is {
		return at
	}
	return backing.Elsewhere
}

// fetch has another node read a page that was unloaded.
func (o *origins) fetch(page pagetable.Page) {
	_, node, _ := o.of(page)
	o.intake.drive.storage.bring(page, node)
}

// isWritten is whether what has changed of a page is to be written to its file.
func (o *origins) isWritten(page pagetable.Page) bool {
	x := o.find(page)
	return x != nil && x.written
}

// isIn reports whether a page that nobody has touched needs not be saved in a checkpoint which is
// based on that one: it is in that one already, or zeros, or in a file that stays as it is.
func (o *origins) isIn(page pagetable.Page, base [16]byte) bool {
	x := o.find(page)
	switch {
	case x == nil || slices.Contains(x.ids, base):
		return true
	case x.places == nil:
		return !x.written
	}
	return x.place(uint64(page-x.first), o.bytes) == attach.Place{}
}

// saved notes that a checkpoint of these pages was taken. A whole one has pages that nobody has
// touched, too, and one that is based on such a one has them by that. The last ones are enough to
// know: the next is based on the newest that is whole.
func (o *origins) saved(base, id [16]byte, pages []attach.Run) {
	for _, x := range o.list {
		isWhole := base == [16]byte{} && slices.ContainsFunc(pages, func(r attach.Run) bool { return r.First == uint64(x.first) })
		if isWhole || slices.Contains(x.ids, base) {
			x.ids = append(x.ids[max(len(x.ids)-3, 0):], id)
		}
	}
}

// unbound notes that a program gives up memory of a name.
func (o *origins) unbound(p *program, name string) {
	o.fallbacks.letGo(p, func(x *origin) bool { return o.intake.extents.Of(x.first).Name == name })
}

// drop forgets the origin of an allocation that is freed.
func (o *origins) drop(first pagetable.Page, count uint64) {
	o.stored.RemoveRun(first, count)
	o.fallbacks.drop(first, count)
	o.list = slices.DeleteFunc(o.list, func(x *origin) bool { return x.first == first })
}
