package model

import (
	"bytes"
	"slices"

	"dsmd/protocol"
)

func (n *Node) carryOut(e *protocol.Effect, ev *protocol.Event, incoming *Flight, out *Outcome) {
	switch e.Kind {
	case protocol.EffectSend:
		n.send(e, incoming, out)
	case protocol.EffectStash:
		p := n.page(e.Object)
		if p.stashed || !incoming.bringsPage(e.Object) {
			out.violate(RuleContents, "node %d is to stash %v: already stashed %t, arriving %v", n.self, e.Object, p.stashed, incoming)
			return
		}
		p.stashed, p.stash = true, incoming.Contents
	case protocol.EffectInstall, protocol.EffectMap, protocol.EffectMakeWritable, protocol.EffectDowngrade, protocol.EffectRevoke, protocol.EffectFree, protocol.EffectLost:
		n.order(e, incoming, out)
		// a node that has bound it may know what it begins with
		if e.Kind == protocol.EffectInstall && e.Source == protocol.SourceFirst && n.binds && !n.config.bindsOn(n.self) {
			out.violate(RuleStranger, "node %d: %s", n.self, FormatEffect(e))
		}
	case protocol.EffectHold:
		n.holds = append(n.holds, hold{object: e.Object, due: ev.Now + e.After})
		out.Holds = append(out.Holds, HoldOrder{Object: e.Object, After: e.After})
	case protocol.EffectComplete:
		n.answer(e, out)
	case protocol.EffectResumed, protocol.EffectDeclined:
	case protocol.EffectHandedOver:
		n.handed = uint32(e.Count)
	case protocol.EffectBackup:
		n.keep(e, incoming, out)
	case protocol.EffectReject:
		out.violate(RuleRejected, "node %d rejects %v: %s", n.self, incoming, e.Reason)
	default:
		out.violate(RuleUnsupported, "node %d: %s", n.self, FormatEffect(e))
	}
}

// send hands a message to the network, with the contents it asks for.
func (n *Node) send(e *protocol.Effect, incoming *Flight, out *Outcome) {
	f := Flight{Message: e.Message}
	f.Message.Payload = bytes.Clone(e.Message.Payload)
	if n.config.Plant == DroppedOffer && f.Message.Kind == protocol.KindOffer {
		p := n.page(e.Object)
		p.access, p.contents = protocol.None, 0
		out.Changed = append(out.Changed, e.Object)
	}
	if e.Source != protocol.SourceNone {
		f.Contents = n.takeContents(e, incoming, out)
		switch {
		case f.Contents != 0:
		case e.Source == protocol.SourcePage || e.Source == protocol.SourceBackup:
			f.Message.FirstPage() // as a host whose page has left memory unchanged
		default:
			f.Message.ZeroPage()
		}
	}
	out.Sent = n.config.Plant.post(f, n.engine.Home(f.Message.Object), out.Sent)
}

// complete tells the engine that an operation has happened.
func (n *Node) complete(i int, now protocol.Time, out *Outcome) {
	op := n.ops[i]
	if n.config.Plant == AckBeforeRevoke && op.effect.Kind == protocol.EffectRevoke {
		n.ops[i].performed, n.ops[i].late, n.ops[i].effect.Save = false, true, false
	} else {
		n.ops = slices.Delete(n.ops, i, i+1)
	}
	if op.effect.Kind == protocol.EffectFree {
		n.step(protocol.Event{Kind: protocol.EventFreed, Now: now, Object: op.effect.Object}, nil, out)
		return
	}
	n.step(protocol.Event{
		Kind: protocol.EventCompleted, Now: now, Effect: op.effect.Kind, Access: op.effect.Access, Object: op.effect.Object,
		Anew: op.effect.Kind == protocol.EffectLost && n.begins(),
	}, nil, out)
}

// answer lets a waiting thread go on.
func (n *Node) answer(e *protocol.Effect, out *Outcome) {
	if e.Ticket == ownTicket {
		status := e.Status
		n.own = &status
		return
	}
	if n.holdAnswer(e) {
		return
	}
	if n.binding && e.Client == bystander && e.Status == protocol.StatusOK {
		n.binding = false
		n.runAll(out)
		return
	}
	i := slices.IndexFunc(n.threads, func(t thread) bool {
		return t.spec.Client == e.Client && t.state == threadWaiting && t.ticket() == e.Ticket
	})
	if i < 0 {
		out.violate(RuleAnswer, "node %d: %s", n.self, FormatEffect(e))
		return
	}
	t := &n.threads[i]
	barrier := t.op().Kind == OpBarrier
	switch {
	case t.op().Kind == OpCommit && e.Status == protocol.StatusOK:
		out.Retired = append(out.Retired, n.retirement(RetireCommit, t, Retirement{}))
		n.advance(t, out)
	case t.op().Kind == OpBind || t.op().Kind == OpUnbind:
		n.answerName(t, e, out)
	case e.Status == protocol.StatusCanceled && t.cancelled:
		if barrier {
			out.Retired = append(out.Retired, n.retirement(RetireWithdraw, t, Retirement{}))
		}
		n.callAgain(t, out)
	case e.Status == protocol.StatusUnrepaired && t.op().takesLock() && t.op().Kind != OpLock:
		out.Retired = append(out.Retired, n.retirement(RetireTurnedAway, t, Retirement{OwnerRank: e.Rank}))
		n.skipSection(t, out)
	case e.Status == protocol.StatusOK, e.Status == protocol.StatusOwnerDied && t.op().Kind == OpLock:
		kind := RetireLock
		if barrier {
			kind = RetirePass
		}
		out.Retired = append(out.Retired, n.retirement(kind, t, Retirement{
			Status: e.Status, OwnerRank: e.Rank, Payload: bytes.Clone(e.Payload),
		}))
		n.advance(t, out)
	default:
		out.violate(RuleAnswer, "node %d: %s, to a call of %v", n.self, FormatEffect(e), t.op())
	}
}

// answerName ends a bind or an unbind.
func (n *Node) answerName(t *thread, e *protocol.Effect, out *Outcome) {
	op, kind := t.op(), RetireUnbind
	switch {
	case e.Status == protocol.StatusCanceled && t.cancelled && t.attempt+1 < op.Cancels:
		n.callAgain(t, out)
		return
	case e.Status == protocol.StatusCanceled && t.cancelled, op.Kind == OpBind && e.Status == protocol.StatusNoSpace:
		t.pc, t.state, t.attempt, t.cancelled = len(t.spec.Program), threadReady, 0, false
		return
	}
	if op.Kind == OpBind {
		kind = RetireBind
		first, pages, err := protocol.DecodeRun(e.Payload)
		if err != nil || first != op.Number%n.config.Pages || pages != boundPages {
			out.violate(RuleAnswer, "node %d: %v gives page %d and %d in all, error %v", n.self, op, first, pages, err)
		}
	}
	if e.Status != protocol.StatusOK {
		out.violate(RuleAnswer, "node %d: %s, to a call of %v", n.self, FormatEffect(e), op)
	}
	out.Retired = append(out.Retired, n.retirement(kind, t, Retirement{}))
	n.advance(t, out)
}
