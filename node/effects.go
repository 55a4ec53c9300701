package node

import (
	"bytes"
	"fmt"
	"time"

	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

// carryOut does what the engine wants done.
func (n *Node) carryOut(f *protocol.Effect) {
	page := pagetable.Page(f.Object.Page())
	if len(n.pins) > 0 && n.putOff(page, f) {
		return
	}
	switch f.Kind {
	case protocol.EffectSend:
		if f.Backup {
			n.sendBackup(&f.Message)
		} else {
			n.send(&f.Message)
		}
	case protocol.EffectBackup:
		n.keepBackup(page, f)
	case protocol.EffectInstall:
		n.install(page, f)
	case protocol.EffectStash:
		n.unstash(page)
		n.arrived.payload.Keep()
		n.stash[page] = n.arrived.payload
	case protocol.EffectMap:
		n.perform()
		out, err := n.table.Map(page, f.Access == protocol.Write, pagetable.ProcID(f.Client))
		n.operated(page, f.Kind, out, err)
	case protocol.EffectMakeWritable:
		n.operate(pagetable.OpMakeWritable, page, false, 0, nil, nil)
	case protocol.EffectDowngrade:
		n.count.downgrades.Add(1)
		n.operate(pagetable.OpDowngrade, page, false, 0, nil, nil)
	case protocol.EffectRevoke:
		n.revoke(page, f)
	case protocol.EffectHold:
		n.count.holds.Add(1)
		n.timers.add(n.now+microseconds(f.After), f.Object)
	case protocol.EffectComplete:
		n.complete(f)
	case protocol.EffectForget:
		n.extents.drop(page)
		n.lostPages.forget(page, f.Count)
		n.backups.forget(page, f.Count)
		n.perform()
		out, err := n.table.Drop(page, f.Count)
		n.operated(page, f.Kind, out, err)
	case protocol.EffectLost:
		n.losePage(page, protocol.NodeID(f.Rank))
	case protocol.EffectResumed:
		n.resumed(uint32(f.Count))
	case protocol.EffectHandedOver:
		n.handedOver(uint32(f.Count))
	case protocol.EffectReject:
		n.part(transport.NodeID(f.Message.From), fmt.Errorf("node: node %d broke the protocol with %v for %v: %s",
			f.Message.From, f.Message.Kind, f.Message.Object, f.Reason))
	default:
		panic(fmt.Sprintf("node: effect of unknown kind %d", f.Kind))
	}
}

// operated goes on when an operation of the page table has been started.
func (n *Node) operated(page pagetable.Page, kind protocol.EffectKind, out pagetable.Outcome, err error) {
	if err != nil {
		n.breakDown(fmt.Errorf("node: page %d: %w", page, err))
		return
	}
	if out == pagetable.Done {
		n.operationDone(page, kind)
	}
}

// operationDone tells the engine.
func (n *Node) operationDone(page pagetable.Page, kind protocol.EffectKind) {
	if kind == protocol.EffectInstall || kind == protocol.EffectMakeWritable {
		// The hold starts when the page is here, not when the reactor last looked at the clock.
		n.now = n.clock()
		n.observe(page)
	}
	n.passed(page, StageDone, kind)
	id := protocol.PageObject(uint64(page))
	if kind == protocol.EffectForget {
		n.step(protocol.Event{Kind: protocol.EventForgotten, Object: id})
		return
	}
	n.step(protocol.Event{Kind: protocol.EventCompleted, Effect: kind, Object: id})
	switch {
	case kind == protocol.EffectInstall || kind == protocol.EffectMakeWritable:
		n.fetched(page)
	case (kind == protocol.EffectMap || kind == protocol.EffectLost) && !n.engine.Waiting(id):
		// It was here already, or is being freed or lost: then the engine asks for nothing, and who waits is woken.
		delete(n.waits, page)
		n.waiters.drop(page)
		n.fetched(page)
	}
}

// observe notes how long the page was waited for.
func (n *Node) observe(page pagetable.Page) {
	w, ok := n.waits[page]
	if !ok {
		return
	}
	delete(n.waits, page)
	total := n.now - w.fault
	n.count.faultNanos.Add(uint64(total))
	n.latency.fault.Observe(total.Seconds())
	if w.grant != 0 {
		n.latency.remote.Observe((w.grant - w.fault).Seconds())
		n.latency.install.Observe((n.now - w.grant).Seconds())
	}
}

// send sends a message, with the page if its flags say so.
func (n *Node) send(m *protocol.Message) {
	if m.Flags&protocol.FlagData != 0 {
		if m.Kind == protocol.Backup {
			n.count.backupsSent.Add(1)
		}
		n.sendPage(m)
		return
	}
	n.sendGrants()
	n.post(m, nil)
}

// install makes a page present with the contents that came with the grant, now or earlier, or that it had here when it was revoked for a
// node that is lost.
func (n *Node) install(page pagetable.Page, f *protocol.Effect) {
	var data []byte
	var kept transport.Payload
	switch {
	case f.Zero:
		n.count.zeroInstalls.Add(1)
	case f.Backup:
		data = n.backupOf(page)
	case f.Save:
		kept = n.saved[page]
		delete(n.saved, page)
		data = kept.Bytes()
	case n.arrived.payload != nil && n.arrived.page == page:
		data = n.arrived.payload.Bytes()
		n.unstash(page)
	default:
		if kept = n.stash[page]; kept == nil {
			// Only when a home takes a copy back on which it has just granted more access.
			n.breakDown(fmt.Errorf("node: page %d was granted by node %d without its contents", page, n.engine.Home(f.Object)))
			return
		}
		delete(n.stash, page)
		data = kept.Bytes()
	}
	n.operate(pagetable.OpInstall, page, f.Access == protocol.Write, n.waiters.take(page), data, nil)
	if kept != nil {
		kept.Release()
	}
}

// unstash gives up what was kept for a grant that a recovery has cut short, when a later one comes.
func (n *Node) unstash(page pagetable.Page) {
	if kept := n.stash[page]; kept != nil {
		kept.Release()
		delete(n.stash, page)
	}
}

func (n *Node) revoke(page pagetable.Page, f *protocol.Effect) {
	n.count.revokes.Add(1)
	if f.Fought {
		n.count.foughtPages.Add(1)
		n.extents.fought(page)
	}
	var into []byte
	if f.Save {
		payload := n.net.Lease(transport.NodeID(f.Message.Requester))
		n.saved[page] = payload
		into = payload.Bytes()
	} else {
		n.count.invalidations.Add(1)
	}
	n.operate(pagetable.OpRevoke, page, false, 0, nil, into)
}

// complete answers a program's call.
func (n *Node) complete(f *protocol.Effect) {
	if n.own.ticket != 0 && f.Ticket == n.own.ticket {
		n.own.status, n.own.answered = f.Status, true
		return
	}
	if f.Status == protocol.StatusOwnerDied {
		n.count.ownerDied.Add(1)
		if id, lost := protocol.LostNode(f.Rank); lost {
			n.log.Warn("a lock passes on that was at a node which is lost", zap.Stringer("lock", f.Object), zap.Uint16("peer", uint16(id)))
		} else {
			n.log.Warn("a lock passes on whose holder died", zap.Stringer("lock", f.Object), zap.Uint32("rank", f.Rank))
		}
	}
	n.reply(f)
}

func isZero(page []byte) bool { return bytes.Equal(page, zeros[:len(page)]) }

// zeros is as long as the largest page that a transport carries.
var zeros [2 << 20]byte

func microseconds(t protocol.Time) time.Duration { return time.Duration(t) * time.Microsecond }
