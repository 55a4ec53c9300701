package node

import (
	"fmt"
	"time"

	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/protocol"
	"dsmd/transport"
)

// driver puts events to the engine and has its effects carried out.
//
// A turn of the reactor is what it takes from one source at a time: some faults, some frames, a
// call of a program. Within a turn, step lets one event happen and carries out what follows; what
// of that can be done together with what other events of the turn bring waits, until end ends the
// turn. See executor.
type driver struct {
	engine *protocol.Engine
	clock  *clock
	exec   *executor

	intake  *intake
	fetcher *fetcher
	pins    *pins
	losses  *losses
	calls   *calls
	members *members
	room    *room
	origins *origins
	storage *storage
	loads   loads

	partition *partition
	leases    timers            // that end
	effects   []protocol.Effect // to be carried out, in order
	done      int               // of effects: how many were; 0 unless drain is at work
}

// effectOf names the effect that an operation carries out.
var effectOf = [...]protocol.EffectKind{
	pagetable.OpInstall: protocol.EffectInstall, pagetable.OpMakeWritable: protocol.EffectMakeWritable,
	pagetable.OpDowngrade: protocol.EffectDowngrade, pagetable.OpRevoke: protocol.EffectRevoke,
	pagetable.OpMap: protocol.EffectMap, pagetable.OpDrop: protocol.EffectFree, pagetable.OpLose: protocol.EffectLost,
}

// put lets an event happen. What follows is carried out after what was decided before, by whoever
// is at work on that, or at the next step, or at the end of the turn.
func (d *driver) put(ev protocol.Event) {
	ev.Now = protocol.Time(d.clock.now.Microseconds())
	d.effects = d.engine.Step(ev, d.effects)
}

// step lets an event happen and carries out what follows. Preconditions: no effect is being carried
// out.
func (d *driver) step(ev protocol.Event) {
	if d.done != 0 {
		panic("node: a step from within an effect")
	}
	d.put(ev)
	d.drain()
}

// receive lets a message happen that came with a page, or with nil. Both die with their frame.
func (d *driver) receive(m *protocol.Message, payload transport.Payload) {
	d.exec.contents.arrived = payload
	d.step(protocol.Event{Kind: protocol.EventMessage, Message: m})
	if m.Kind == protocol.KindMulticastEnd || m.Kind == protocol.KindGrant && !m.Object.IsLock() {
		// a request that a multicast has served may be over
		d.intake.askedForMore(pagetable.Page(m.Object.Page()))
	}
	d.exec.contents.arrived = nil
	m.Payload = nil
}

// drain carries out effects, and tells the engine what is done, until nothing follows.
func (d *driver) drain() {
	for d.deliver(); d.done < len(d.effects); d.deliver() {
		f := d.effects[d.done] // a copy: the slice grows meanwhile
		d.done++
		d.carryOut(&f)
	}
	d.effects, d.done = d.effects[:0], 0
}

// end ends a turn: it does what waits, and what follows from that.
func (d *driver) end() {
	d.loads.goOn()
	for d.drain(); d.exec.waiting(); {
		d.exec.endBatch()
		d.drain()
		d.exec.sendPages()
	}
	clear(d.exec.contents.loaded)
	d.exec.store.Flush()
	d.storage.flush()
}

// verifyIdle panics if something was left to do that nothing will call for: each path through a
// turn ends with end.
func (d *driver) verifyIdle() {
	if d.exec.waiting() || len(d.effects)+len(d.exec.finished)+len(d.storage.fresh) > 0 {
		panic(fmt.Sprintf("node: the reactor sleeps with %d effects, %d operations that are done, %d pages to be asked for and a batch: %t",
			len(d.effects), len(d.exec.finished), len(d.storage.fresh), d.exec.waiting()))
	}
}

// deliver tells the engine, and who waits for the pages, which operations have taken effect.
func (d *driver) deliver() {
	for i := 0; i < len(d.exec.finished); i++ {
		d.completed(d.exec.finished[i])
	}
	d.exec.finished = d.exec.finished[:0]
}

func (d *driver) completed(f finished) {
	id := protocol.PageObject(uint64(f.page))
	if f.op == pagetable.OpDrop {
		d.put(protocol.Event{Kind: protocol.EventFreed, Object: id})
		return
	}
	d.put(protocol.Event{Kind: protocol.EventCompleted, Effect: effectOf[f.op], Object: id, Access: f.anew, Anew: f.anew != protocol.None})
	d.intake.askedForMore(f.page)
	switch f.op {
	case pagetable.OpInstall:
		d.room.arrived(f.page)
		d.fetcher.came(f.page)
	case pagetable.OpMakeWritable:
		d.room.used(f.page)
		d.fetcher.came(f.page)
	case pagetable.OpRevoke:
		d.room.gone(f.page)
	case pagetable.OpMap, pagetable.OpLose:
		if f.anew == protocol.None {
			d.exec.meter.mapped(f.page)
		}
		if d.engine.Waiting(id) {
			break
		}
		// It was here already, or is being freed or lost: then the engine asks for nothing, and who
		// waits is woken.
		d.intake.woken(f.page, f.op)
		d.fetcher.came(f.page)
	}
}

// carryOut does what the engine wants done.
func (d *driver) carryOut(f *protocol.Effect) {
	page := pagetable.Page(f.Object.Page())
	if len(d.pins.pages) > 0 && d.pins.delay(page, f) {
		return
	}
	if d.loads.delay(f) {
		return
	}
	switch f.Kind {
	case protocol.EffectSend:
		d.exec.send(f)
	case protocol.EffectHold:
		d.exec.meter.count.pageLeases.Add(1)
		d.leases.add(d.clock.now+microseconds(f.After), f.Object)
	case protocol.EffectComplete:
		d.calls.complete(f)
	case protocol.EffectResumed:
		d.dropStash()
		d.members.recovered(uint32(f.Count))
	case protocol.EffectOffered:
		d.room.consider(f)
	case protocol.EffectDeclined:
		d.room.declined(f)
	case protocol.EffectHandedOver:
		d.members.handedOver(uint32(f.Count))
	case protocol.EffectFreePhase:
		d.freePhase(f)
	case protocol.EffectInUse:
		d.inUse(f)
	case protocol.EffectReject:
		m := &f.Message
		d.exec.out.expel(transport.NodeID(m.From), fmt.Errorf("node: node %d broke the protocol with %v for %v: %s", m.From, m.Kind, m.Object, f.Reason))
	default:
		d.carryOutOn(page, f)
	}
}

// carryOutOn does what the engine wants done to a page.
func (d *driver) carryOutOn(page pagetable.Page, f *protocol.Effect) {
	x := d.exec
	switch f.Kind {
	case protocol.EffectInstall:
		d.install(page, f)
	case protocol.EffectStash:
		x.contents.put(page)
	case protocol.EffectMap:
		x.startNow(pagetable.Operation{Op: pagetable.OpMap, Page: page, Writable: f.Access == protocol.Write, Proc: pagetable.ProcID(f.Client)})
	case protocol.EffectMakeWritable:
		x.gains(page)
		x.meter.log.opened(page)
		if d.intake.predictor.withholds(page) {
			if x.withhold(page) {
				break
			}
			d.intake.predictor.opened(page)
		}
		x.start(pagetable.Operation{Op: pagetable.OpMakeWritable, Page: page})
	case protocol.EffectDowngrade:
		d.intake.predictor.leaves(page, f)
		d.goes(page, f)
		x.meter.count.downgrades.Add(1)
		x.meter.log.leaves(page, f.Kind, f.Heir)
		x.start(pagetable.Operation{Op: pagetable.OpDowngrade, Page: page})
	case protocol.EffectRevoke:
		d.revoke(page, f)
	case protocol.EffectBackup:
		x.keepBackup(page, f)
	case protocol.EffectFree:
		d.intake.extents.Drop(page)
		d.intake.predictor.freed(page, f.Count)
		d.intake.causes.Freed(page, f.Count)
		d.intake.freed(page, f.Count)
		d.losses.forget(page, f.Count)
		d.origins.drop(page, f.Count)
		d.storage.drop(page, f.Count)
		d.room.freed(page, f.Count)
		d.loads.drop(page, f.Count)
		x.meter.log.freed(page, f.Count)
		x.drop(page, f.Count)
	case protocol.EffectLost:
		if d.origins.fallbacks.ask(page) {
			x.finished = append(x.finished, finished{op: pagetable.OpLose, page: page, anew: f.Access})
			break
		}
		d.markLost(page, protocol.NodeID(f.Rank))
	default:
		panic(fmt.Sprintf("node: effect of unknown kind %d", f.Kind))
	}
}

// goes notes that a page leaves this node, or is for reading only from now on, and returns who has
// taken it, or come to read it; NoNode: nobody has.
func (d *driver) goes(page pagetable.Page, f *protocol.Effect) (by protocol.NodeID) {
	if by = f.Heir; f.Moves {
		by = protocol.NoNode
	}
	if f.Kind == protocol.EffectRevoke {
		d.intake.causes.Left(page)
	}
	if by != protocol.NoNode {
		d.intake.causes.Taken(page)
	}
	return by
}

// revoke takes a page away from the programs of this node: another node takes it, or there is no
// room for it.
func (d *driver) revoke(page pagetable.Page, f *protocol.Effect) {
	x := d.exec
	vain := d.intake.predictor.leaves(page, f)
	by := d.goes(page, f)
	if f.Contended && !vain {
		d.intake.predictor.contended(page)
		x.meter.count.contendedPages.Add(1)
		x.meter.tolls.taken(page)
	}
	x.meter.log.leaves(page, f.Kind, by)
	x.revoke(page, f)
}

// install makes a page present with the contents that came with the grant, now or earlier, or that
// this node has of it elsewhere.
func (d *driver) install(page pagetable.Page, f *protocol.Effect) {
	x, from := d.exec, f.Source
	if from == protocol.SourceBackup {
		x.meter.count.restored.Add(1)
		if x.contents.backups.first.Has(page) {
			from = protocol.SourceFirst
		}
	}
	switch anew := d.origins.fallbacks.take(page); {
	case anew != nil && from == protocol.SourceFirst:
		if d.beginAnew(page, f.Access == protocol.Write, anew) {
			return
		}
		x.meter.count.zeroInstalls.Add(1)
	case from == protocol.SourceFirst:
		if at, node, is := d.origins.of(page); is {
			d.begin(page, f.Access == protocol.Write, at, node)
			return
		}
		x.meter.count.zeroInstalls.Add(1)
	case from == protocol.SourceZeros:
		x.meter.count.zeroInstalls.Add(1)
	}
	data, kept, ok := x.contents.take(page, from)
	if !ok {
		// Only when a home takes a copy back on which it has just granted more access.
		x.end.breakDown(fmt.Errorf("node: page %d was granted by node %d without its contents", page, d.engine.Home(f.Object)))
		return
	}
	if f.Access == protocol.Write && x.meter.log.compares(page) {
		before := x.meter.log.keep(page)
		clear(before[copy(before, data):])
	}
	writable := f.Access == protocol.Write
	if writable && d.intake.predictor.withholds(page) {
		if x.snaps.Withhold(page) {
			writable = false
		} else {
			d.intake.predictor.opened(page)
		}
	}
	x.install(pagetable.Operation{Op: pagetable.OpInstall, Page: page, Writable: writable, Proc: d.intake.mappedIn(page), Data: data},
		d.engine.Pending() <= 1)
	if kept != nil {
		kept.Release()
	}
}

// begin makes a page present that begins in a file.
func (d *driver) begin(page pagetable.Page, writable bool, at backing.Location, node protocol.NodeID) {
	if !d.origins.stored.Remove(page) && !d.origins.find(page).yields {
		// Who only loads gets the page for reading, also where the protocol lets it be changed:
		// then it is known whether it was.
		d.exec.snaps.Begins(page, writable)
		writable = false
	}
	d.bring(page, writable, at, node)
}

// bring makes a page present with what a file has, of this node or another.
func (d *driver) bring(page pagetable.Page, writable bool, at backing.Location, node protocol.NodeID) {
	proc := d.intake.mappedIn(page)
	if node == d.origins.self {
		d.exec.bring(page, at, writable, proc)
		return
	}
	d.exec.meter.count.broughtPages.Add(1)
	if err := d.exec.store.Await(page, writable, proc); err != nil {
		d.exec.end.breakDown(fmt.Errorf("node: page %d: %w", page, err))
		return
	}
	d.storage.bring(page, node)
}

// beginAnew notes that a lost page begins anew here, and makes it present, unless it is zeros. It
// counts as changed: what pages begin with is something else.
func (d *driver) beginAnew(page pagetable.Page, writable bool, with *origin) (done bool) {
	epoch, _ := d.engine.Epoch()
	d.losses.wentBack(page, d.intake.extents.Of(page), epoch)
	d.origins.stored.Remove(page)
	at, node, is := with.of(uint64(page-with.first), d.origins)
	if is {
		d.bring(page, writable, at, node)
	}
	return is
}

// markLost has all accesses to a page fail whose only copy was on a node that is lost.
func (d *driver) markLost(page pagetable.Page, with protocol.NodeID) {
	epoch, _ := d.engine.Epoch()
	d.losses.note(page, with, d.intake.extents.Of(page), epoch)
	d.intake.predictor.freed(page, 1)
	for _, f := range d.fetcher.byPage[page] {
		f.lost = fmt.Sprintf("%s had the only copy of page %d", d.losses.names.of(with), page)
	}
	if has := d.engine.Access(protocol.PageObject(uint64(page))); has != protocol.None {
		panic(fmt.Sprintf("node: page %d is to be lost, and this node has a copy for %v", page, has))
	}
	d.exec.startNow(pagetable.Operation{Op: pagetable.OpLose, Page: page})
}

// dropStash gives up contents that were kept for grants which a recovery has cut short.
func (d *driver) dropStash() {
	d.exec.contents.dropStash(func(page pagetable.Page) bool { return d.engine.Waiting(protocol.PageObject(uint64(page))) })
}

// gauge makes the gauges that are the engine's readable to others.
func (d *driver) gauge() {
	count := &d.exec.meter.count
	count.objects.Store(int64(d.engine.Objects()))
	count.pending.Store(int64(d.engine.Pending()))
	d.room.gauge()
}

func microseconds(t protocol.Time) time.Duration { return time.Duration(t) * time.Microsecond }
