package node

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"dsmd/node/replacement"
	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/protocol"

	"go.uber.org/zap"
)

const (
	// MinMemoryBytes is the least Config.Memory.Bytes: some windows of a thread that goes over an
	// array.
	MinMemoryBytes = 4 << 20

	// lowShare: a node drops copies when it has room for less than one in so many of the pages that
	// fit, or for mostLow. As much can be asked for at once.
	lowShare, mostLow = 8, 2048
	// evictBatch and offerBatch are how many pages more it drops, or offers, at most: neighbours go
	// together. What is offered is moved, and for nothing if its room is not needed.
	evictBatch, offerBatch = 64, 16
	// mostFresh is how many of the pages that came last are not dropped, at most: the threads that
	// wait for them may not have run yet.
	mostFresh = 32
	// evictLooks bounds the pages that are looked at in one turn.
	evictLooks = 512
	// mostOffers is how many pages are offered to other nodes at a time.
	mostOffers = 64
	// offerPatience is how long the answer to an offer is waited for. A node that has not answered
	// is offered nothing for as long again.
	offerPatience = time.Second
	// fullPatience is how long a node that has declined is offered nothing, then twice as long if
	// it declines again, and so on up to mostFullPatience, until it has taken a page. Between two
	// vain looks for room there is as much time, then twice as much, and so on.
	fullPatience, mostFullPatience = 5 * time.Millisecond, 320 * time.Millisecond
	// mostLargest is how many allocations are named where there is no room.
	mostLargest = 3
	// overAfter is after how many vain looks in a row a node takes more than fits. It is mostVain,
	// after which looks get no rarer, while pages are on their way: they could be dropped when they
	// are here.
	overAfter, mostVain = 5, 8
	// diskPatience is how long programs wait for a disk that takes no page before the log says so.
	// Whenever as long has passed, all pages are looked at again: some may be copies by now, or no
	// longer pinned.
	diskPatience = 5 * time.Second
)

// room bounds the pages that this node has in memory: see Config.Memory. A page is not asked
// for unless there is room for it, and before that runs out the node parts with pages. Copies for
// reading go first. What the node owns goes to nodes that have room, and if there is none to the
// spill file, if there is one.
//
// A node offers pages when it has room for fewer than least, and takes pages of others only while
// it has room for more. So what was taken is not offered again at once, and where all nodes are
// nearly full nothing moves unless a program wants it.
type room struct {
	drive  *driver
	meter  *meter
	log    *zap.Logger
	pins   *pins
	quorum *quorum
	store  *backing.Table // nil: there is no bound
	// noSpill is why the spill file takes no more.
	noSpill error
	self    protocol.NodeID
	nodes   func() []protocol.NodeID // to which pages can be offered, perhaps this one among them

	most     int // pages that fit; 0: no bound
	low      int // room for so many more: below, copies are dropped
	queue    *replacement.Queue
	fresh    []pagetable.Page // that came last, a ring
	came     int              // pages that have come: where the next one is in fresh
	dropping map[pagetable.Page]bool
	offered  map[pagetable.Page]offer
	full     map[protocol.NodeID]fullness // nodes that have declined, and taken nothing since
	next     int                          // of nodes: to which one the next offer goes
	epoch    uint32                       // of the offers

	again    time.Duration // when to look for room again; 0: at once
	offering bool          // the last look was for pages to be offered, too
	vain     int           // looks in vain since the last page has come or gone
	seen     int           // pages that were looked at since a look has helped
	hang     hang          // of the disk
	// over: no node has room, and this one takes more than fits, so that its programs go on.
	over bool
}

// hang is what is known of a disk that takes nothing.
type hang struct {
	due  time.Duration // when to say so, or to look at all pages again
	told bool          // the log says so
	left int           // pages to look at before the next pause
}

// offer is one that was not answered yet.
type offer struct {
	to protocol.NodeID
	at time.Duration
}

// fullness is of a node that has no room.
type fullness struct {
	until    time.Duration // when it is offered nothing
	patience time.Duration // how long that was
}

func newRoom(d *driver, cfg *Config, pageBytes int) *room {
	r := &room{drive: d, meter: d.exec.meter, log: cfg.Log, self: protocol.NodeID(cfg.Self), most: int(cfg.Memory.Bytes / uint64(pageBytes)),
		dropping: map[pagetable.Page]bool{}, offered: map[pagetable.Page]offer{}, full: map[protocol.NodeID]fullness{}}
	if r.most > 0 {
		r.store = d.exec.store
		r.store.Left, r.store.Came = r.wentToFile, r.cameBack
		r.resize(cfg.Memory.Bytes)
		r.fresh = slices.Repeat([]pagetable.Page{math.MaxUint64}, max(min(r.least()/2, mostFresh), 1))
		r.queue = replacement.New(r.most)
	}
	return r
}

// resize changes for how many bytes of pages there is room, if there is a bound.
func (r *room) resize(bytes uint64) {
	if !r.bounded() {
		return
	}
	r.most = int(bytes / uint64(r.drive.exec.table.PageBytes()))
	r.low = max(min(r.most/lowShare, mostLow), 2)
	r.again, r.vain, r.seen = 0, 0, 0
	r.meter.count.room.Store(int64(r.most))
}

// least is for how many pages more there is to be room: below, pages are offered.
func (r *room) least() int { return r.low / 2 }

// bounded is whether there is a bound.
func (r *room) bounded() bool { return r.most > 0 }

// isSpilled is whether a page is here, and not in memory.
func (r *room) isSpilled(page pagetable.Page) bool { return r.store != nil && r.store.Spilled(page) }

// free is for how many pages more there is room, when all have come that were asked for.
func (r *room) free() int { return r.left() - len(r.dropping) }

// left is free when all is gone that is being dropped.
func (r *room) left() int {
	left := r.most - r.queue.Len() - r.drive.engine.Wanted()
	if r.store != nil { // pages that come by Bring are among those that the engine wants
		left -= r.store.Loading()
	}
	return left
}

// has is whether a page may be asked for that is not here.
func (r *room) has() bool { return !r.bounded() || r.over || r.free() > 0 }

// hasMuch is whether a page may be asked for that nobody waits for.
func (r *room) hasMuch() bool { return !r.bounded() || r.free() > r.least() }

// pinnable is how many pages a program can have pinned: so that what is left is enough for others.
func (r *room) pinnable() int {
	if !r.bounded() {
		return maxPinned
	}
	return min(r.most/2, maxPinned)
}

// arrived notes that a page is here.
func (r *room) arrived(page pagetable.Page) {
	if !r.bounded() {
		return
	}
	r.queue.Add(page)
	r.fresh[r.came%len(r.fresh)] = page
	r.came++
	r.changed()
}

// used notes that a page is used which was here before.
func (r *room) used(page pagetable.Page) {
	if r.bounded() {
		r.queue.Use(page)
	}
}

// gone notes that a page is here no longer.
func (r *room) gone(page pagetable.Page) {
	if !r.bounded() {
		return
	}
	if r.dropping[page] {
		delete(r.dropping, page)
		r.meter.count.evicted.Add(1)
	} else {
		r.queue.Remove(page)
	}
	if o, offered := r.offered[page]; offered {
		delete(r.offered, page)
		delete(r.full, o.to)
		r.meter.count.offersTaken.Add(1)
		r.again = 0 // more can be offered
	}
	r.changed()
}

// freed notes that a run of pages is being freed.
func (r *room) freed(first pagetable.Page, count uint64) {
	if !r.bounded() {
		return
	}
	r.queue.RemoveAll(first, count)
	freed := func(p pagetable.Page) bool { return p >= first && uint64(p-first) < count }
	maps.DeleteFunc(r.offered, func(p pagetable.Page, _ offer) bool { return freed(p) })
	// The table forgets what is on its way to the spill file.
	maps.DeleteFunc(r.dropping, func(p pagetable.Page, _ bool) bool { return freed(p) })
	r.changed()
}

// changed notes that a page has come or gone.
func (r *room) changed() {
	r.meter.count.pages.Store(int64(r.queue.Len() + len(r.dropping)))
	r.vain, r.hang = 0, hang{due: r.drive.clock.now + diskPatience}
	r.again = min(r.again, r.drive.clock.now+fullPatience)
}

// consider answers the offer of another node.
func (r *room) consider(f *protocol.Effect) {
	ev := protocol.Event{Kind: protocol.EventAccept, Object: f.Object}
	if r.quorum.lost() || !r.hasMuch() || !r.drive.intake.withinWindow() {
		ev = protocol.Event{Kind: protocol.EventDecline, Object: f.Object, Node: f.Heir}
		r.meter.count.offersDeclined.Add(1)
	} else if !r.drive.engine.Waiting(f.Object) {
		r.drive.intake.causes.Guessed(pagetable.Page(f.Object.Page()))
	}
	r.drive.put(ev)
}

// declined notes that another node has no room. Others may have some.
func (r *room) declined(f *protocol.Effect) {
	delete(r.offered, pagetable.Page(f.Object.Page()))
	now := r.drive.clock.now
	if at := r.full[f.Heir]; at.until <= now { // else it has declined what was offered together
		at.patience = min(max(2*at.patience, fullPatience), mostFullPatience)
		r.full[f.Heir] = fullness{now + at.patience, at.patience}
	}
	r.again = 0
}

// wanting is whether the node has less room than it should, and may part with pages. Without a
// quorum and in a recovery it may not. No timer is needed for their end, which a message brings.
func (r *room) wanting() bool {
	if !r.bounded() || r.left() >= r.low || r.quorum.lost() {
		return false
	}
	_, recovered := r.drive.engine.Epoch()
	return recovered
}

// tickIn is after how long to look for room again; negative: not by itself.
func (r *room) tickIn(now time.Duration) time.Duration {
	if !r.wanting() {
		return -1
	}
	if !r.offering && r.left() < r.least() {
		return 0
	}
	return max(r.again-now, 0)
}

// isDue is whether make may have something to do.
func (r *room) isDue() bool { return r.tickIn(r.drive.clock.now) == 0 }

// make parts with pages if there is little room. It returns whether there is more to do at once.
func (r *room) make() bool {
	if r.over && r.free() >= r.least() {
		r.over = false
	}
	if !r.isDue() {
		return false
	}
	now := r.drive.clock.now
	r.again = 0
	r.expire(now)
	goal, moved := r.low-r.left()+min(evictBatch, r.least()), 0
	dropped, owned := r.drop(goal)
	if dropped < goal && r.queue.Fresh() > 0 { // copies before what this node owns
		r.drive.end()
		return true
	}
	if r.offering = r.left() < r.least(); r.offering {
		moved = r.offer(owned, min(mostOffers, r.least()-r.left()+min(offerBatch, r.least())))
		if moved == 0 && len(r.offered) == 0 {
			moved = r.toFile(owned)
		}
	}
	r.drive.end()
	switch {
	case dropped == goal || r.offering && dropped+moved > 0:
		r.seen = 0
		return true
	case dropped > 0: // there is enough for a while, and hardly more to be dropped
		r.seen, r.again = 0, now+fullPatience
		return false
	}
	return r.lookedInVain(now)
}

// lookedInVain decides when to look again. It returns true if that is at once: before this node
// takes more than fits, it has looked at all that is here.
func (r *room) lookedInVain(now time.Duration) bool {
	// wait for the answers, or for the disk
	if len(r.offered) > 0 || backing.Writing(r.store) > 0 {
		if len(r.offered) == 0 && !r.has() && now >= r.hang.due {
			r.sayHung(now)
		}
		if r.hang.left > 0 && !r.has() {
			return true
		}
		r.again = now + fullPatience
		return false
	}
	if !r.has() && r.seen < r.queue.Len() {
		return true
	}
	r.seen, r.vain = 0, min(r.vain+1, mostVain)
	r.again = now + fullPatience<<(r.vain-1)
	if r.has() || r.vain < overAfter || r.vain < mostVain && r.drive.engine.Wanted() > 0 {
		return false
	}
	r.over = true
	var largest []string
	for _, e := range r.drive.intake.extents.Largest(mostLargest) {
		largest = append(largest, fmt.Sprintf("%s: %d pages", plainName(e.Name), e.End-e.First))
	}
	remedy := "give it a directory for them (--spill)"
	if r.noSpill != nil {
		remedy = "give it a directory with more room (--spill)"
	}
	r.log.Warn("no node has room for more pages: this one takes more than it was told to (--memory); "+remedy+", start nodes with more memory, or free what is not needed",
		zap.Int("pages", r.queue.Len()), zap.Int("room", r.most), zap.Strings("largest_allocations", largest))
	return false
}

// sayHung says, once, that the disk takes nothing, and has all that is here looked at again.
func (r *room) sayHung(now time.Duration) {
	r.hang.due, r.hang.left = now+diskPatience, r.queue.Len()
	if r.hang.told {
		return
	}
	r.hang.told = true
	r.log.Warn("the disk of the spill file takes nothing, and programs wait for that: see whether it is full of other work, or has failed",
		zap.Int("pages_on_the_way", backing.Writing(r.store)), zap.Duration("since", diskPatience))
}

// expire gives up offers that nobody answers. In a recovery offers get lost.
func (r *room) expire(now time.Duration) {
	if epoch, _ := r.drive.engine.Epoch(); epoch != r.epoch {
		r.epoch = epoch
		clear(r.offered)
		clear(r.full)
	}
	maps.DeleteFunc(r.offered, func(_ pagetable.Page, o offer) bool {
		if now-o.at < offerPatience {
			return false
		}
		r.full[o.to] = fullness{until: now + offerPatience}
		return true
	})
}

// drop drops so many copies for reading, and pages that are in a file, if there are as many among
// those whose turn it is. It returns how many, and which others of those it has looked at this node
// owns.
func (r *room) drop(goal int) (dropped int, owned []pagetable.Page) {
	engine, unchanged := r.drive.engine, []pagetable.Page(nil)
	for looks := min(evictLooks, r.queue.Len()); looks > 0 && dropped+len(unchanged) < goal; looks-- {
		if r.queue.Fresh() == 0 && len(owned) >= mostOffers {
			break // the others were looked at before, too, and these are enough to move at a time
		}
		page, ok := r.queue.Oldest()
		if !ok {
			break
		}
		r.seen++
		r.hang.left--
		id := protocol.PageObject(uint64(page))
		if r.keeps(page) || engine.Access(id) == protocol.None {
			r.queue.Keep(page)
			continue
		}
		r.drive.put(protocol.Event{Kind: protocol.EventEvict, Object: id, Node: protocol.NoNode})
		if engine.Access(id) != protocol.None {
			r.queue.Keep(page)
			if r.drive.exec.snaps.IsUnchanged(page) {
				unchanged = append(unchanged, page)
			} else {
				owned = append(owned, page)
			}
			continue
		}
		r.queue.Evicted(page)
		r.dropping[page] = true
		dropped++
		r.drive.drain()
	}
	return dropped + r.unload(unchanged), owned
}

// keeps is whether a page cannot go now.
func (r *room) keeps(page pagetable.Page) bool {
	_, offered := r.offered[page]
	return offered || r.pins.wants(page) || slices.Contains(r.fresh, page)
}

// offer offers pages to other nodes, so that most are offered. It returns how many it has offered.
func (r *room) offer(pages []pagetable.Page, most int) (offers int) {
	nodes := r.nodes()
	for _, page := range pages {
		id := protocol.PageObject(uint64(page))
		if len(r.offered) >= most {
			break
		}
		to := r.taker(id, nodes)
		if to == protocol.NoNode {
			break
		}
		before := len(r.drive.effects)
		r.drive.put(protocol.Event{Kind: protocol.EventEvict, Object: id, Node: to})
		if len(r.drive.effects) == before {
			continue // something is under way about it
		}
		r.offered[page] = offer{to, r.drive.clock.now}
		r.meter.count.offers.Add(1)
		r.drive.drain()
		offers++
	}
	return offers
}

// taker is the node to which a page is offered: its home, if that is another and may have room,
// else one after the other.
func (r *room) taker(id protocol.ObjectID, nodes []protocol.NodeID) protocol.NodeID {
	may := func(n protocol.NodeID) bool { return n != r.self && r.full[n].until <= r.drive.clock.now }
	if home := r.drive.engine.Home(id); may(home) {
		return home
	}
	for range nodes {
		r.next = (r.next + 1) % len(nodes)
		if n := nodes[r.next]; may(n) {
			return n
		}
	}
	return protocol.NoNode
}
