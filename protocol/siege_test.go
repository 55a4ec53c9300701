package protocol

import (
	"errors"
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"testing"
)

// A siege is one engine whose peers all lie: they may say anything at any time. Its own host is
// honest. What is looked for, in every state that can be reached: a panic, a state that contradicts
// itself, an effect that no page table could carry out, a message that is rejected and has changed
// something nevertheless, and a state that grows without bound.
type siege struct {
	e      *Engine
	object ObjectID
	op     EffectKind // under way on the page, or 0
	hold   bool       // a hold is armed
	page   Access     // what the page table gives
	waits  bool       // the client waits for the lock
}

const (
	besieged    = 3 // nodes; node 0 is the honest one
	siegeClient = 1
	siegeTicket = 9
	// states; more than there can be: of a page at home 155,000 times the few states of migration
	siegeMaximum = 3_000_000
)

var siegeAll = flag.Bool("siege.all", false, "visit every state that lies can bring about, in an hour, and not only the nearest: pass -timeout 0 too")

// siegeStates is how many states of each kind of object are visited.
func siegeStates() int {
	switch {
	case *siegeAll:
		return siegeMaximum
	case testing.Short():
		return 300
	}
	return 1200
}

func newSiege(object ObjectID, treeFrom int) *siege {
	return &siege{e: New(Config{Nodes: besieged, Pages: 2 * besieged, HomeStripe: 1, Hold: 1, MaxHold: 1, TreeFrom: treeFrom, ManyReaders: 1}), object: object}
}

func (s *siege) clone() *siege {
	c := *s
	c.e = s.e.Clone()
	return &c
}

func (s *siege) key() string {
	return string(append(s.e.AppendState(nil), byte(s.op), byte(s.page), bits(s.hold, s.waits)))
}

// held is what the client holds the lock for.
func (s *siege) held() Access {
	switch l := s.e.locks.peekLock(s.object); {
	case l == nil:
		return None
	case l.writer != 0:
		return Write
	case len(l.readers) > 0:
		return Read
	}
	return None
}

// own are the events that the honest host can bring about.
func (s *siege) own() []Event {
	var events []Event
	if s.object.IsLock() {
		switch held := s.held(); {
		case held != None:
			events = append(events, Event{Kind: EventRelease, Access: held})
		case s.waits:
			events = append(events, Event{Kind: EventCancel, Ticket: siegeTicket})
		default:
			events = append(events, Event{Kind: EventAcquire, Ticket: siegeTicket, Access: Read}, Event{Kind: EventAcquire, Ticket: siegeTicket, Access: Write})
		}
		events = append(events, Event{Kind: EventClientGone})
	} else {
		events = append(events, Event{Kind: EventFault, Access: Read, Thread: 1}, Event{Kind: EventFault, Access: Write, Thread: 1}, Event{Kind: EventEvict, Node: 1})
		if s.op != 0 {
			events = append(events, Event{Kind: EventCompleted, Effect: s.op})
		}
		if s.hold {
			events = append(events, Event{Kind: EventHoldOver})
		}
	}
	for i := range events {
		events[i].Object, events[i].Client = s.object, siegeClient
	}
	return events
}

// lies are all messages about an object that differ in a field which their kind uses.
func lies(object ObjectID) []Message {
	var all []Message
	for _, a := range []Access{None, Read, Write} {
		all = append(all, Request{Access: a}.To(0, 0), Request{Access: a, HasCopy: true}.To(0, 0), Request{Access: a, Anew: true}.To(0, 0), Done{Access: a}.To(0, 0))
		for _, acks := range []uint16{0, 1, 2, besieged} {
			for r := range NodeID(besieged) {
				all = append(all, Forward{Access: a, Requester: r, Acks: acks}.To(0, 0))
			}
			for _, g := range []Grant{{}, {Contents: PageContents}, {Contents: ZeroContents}, {Contents: ZeroContents, Died: 1}} {
				g.Access, g.Acks = a, acks
				all = append(all, g.To(0, 0))
			}
		}
	}
	all = append(all, Offer{}.To(0, 0), Offer{Frees: 1}.To(0, 0), Offer{Copies: 1}.To(0, 0), Offer{Copies: 1, Run: AppendRun(nil, 0, 1)}.To(0, 0), Decline{}.To(0, 0))
	for r := range NodeID(besieged) {
		all = append(all, Invalidate{Requester: r}.To(0, 0), Invalidate{Requester: r, Others: []byte{2, 0}}.To(0, 0), Verify{Requester: r}.To(0, 0))
		for _, c := range []Contents{NoContents, PageContents, ZeroContents, FirstContents} {
			all = append(all, Multicast{Root: r, Contents: c}.To(0, 0))
		}
		all = append(all, MulticastAck{Takers: appendNodes(nil, []NodeID{r})}.To(0, 0), MulticastEnd{Root: 1, Served: appendNodes(nil, []NodeID{r})}.To(0, 0))
	}
	all = append(all, MulticastAck{}.To(0, 0))
	all = append(all, InvalidateAck{}.To(0, 0), InvalidateAck{Died: 1}.To(0, 0))
	all = slices.DeleteFunc(all, func(m Message) bool { // the host refuses those
		return m.contents == PageContents && object.IsLock()
	})
	for i := range all {
		all[i].From, all[i].Object = 1, object
	}
	for _, m := range slices.Clone(all) {
		m.From = 2
		all = append(all, m)
	}
	return all
}

// step lets an event happen and carries out its effects. It returns whether it was rejected, and
// what is wrong.
func (s *siege) step(ev Event) (rejected bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	for _, f := range s.e.Step(ev, nil) {
		if rejected {
			return true, fmt.Errorf("effect %d follows a rejection", f.Kind)
		}
		if f.Kind == EffectReject {
			// A request may have waited, and an acknowledgement have counted, before it shows that
			// it was a lie.
			rejected = ev.Kind == EventMessage && f.Message.Kind == ev.Message.Kind && f.Message.From == ev.Message.From
			if f.Message.From == 0 {
				return true, fmt.Errorf("the node rejects its own %v", f.Message.Kind)
			}
			continue
		}
		if err := s.carryOut(&f); err != nil {
			return rejected, err
		}
	}
	return rejected, s.e.Check()
}

// carryOut does what a page table does, and nothing that one could not.
func (s *siege) carryOut(f *Effect) error {
	switch f.Kind {
	case EffectInstall:
		return s.begin(f, s.page == None, f.Access)
	case EffectMap:
		return s.begin(f, true, s.page)
	case EffectMakeWritable:
		return s.begin(f, s.page == Read, Write)
	case EffectDowngrade:
		return s.begin(f, s.page != None, Read)
	case EffectRevoke:
		return s.begin(f, s.page != None, None)
	case EffectHold:
		if s.hold {
			return errors.New("a second hold")
		}
		s.hold = true
	case EffectComplete:
		if !s.waits || f.Ticket != siegeTicket {
			return fmt.Errorf("ticket %d is completed", f.Ticket)
		}
		s.waits = false
	case EffectSend:
		if m := &f.Message; m.To == 0 || int(m.To) >= besieged || m.From != 0 {
			return fmt.Errorf("a %v is sent from %d to %d", m.Kind, m.From, m.To)
		}
	}
	return nil
}

func (s *siege) begin(f *Effect, possible bool, after Access) error {
	if s.op != 0 || !possible {
		return fmt.Errorf("effect %d on a page with access %v, while effect %d is under way", f.Kind, s.page, s.op)
	}
	s.op, s.page = f.Kind, after
	return nil
}

// happen prepares the host for an event of its own, and lets it happen.
func (s *siege) happen(ev Event) error {
	switch ev.Kind {
	case EventCompleted:
		s.op = 0
	case EventHoldOver:
		s.hold = false
	case EventAcquire:
		s.waits = true
	case EventClientGone:
		s.waits = false
	}
	rejected, err := s.step(ev)
	if rejected && err == nil {
		err = errors.New("an event of the host's own is rejected")
	}
	return err
}

// TestSiege visits the states that lying peers can bring an engine into, of a page and of a lock,
// with its home here and elsewhere.
func TestSiege(t *testing.T) {
	for name, of := range map[string]struct {
		object   ObjectID
		treeFrom int
	}{
		"page at home": {PageObject(0), 0}, "page": {PageObject(1), 0}, "lock at home": {LockObject(0), 0}, "lock": {LockObject(1), 0},
		"page of many copies at home": {PageObject(0), 2}, "page of many copies": {PageObject(1), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := campaign{lies: lies(of.object), seen: map[string]bool{}}
			c.visit(newSiege(of.object, of.treeFrom), 0, "")
			for i := 0; i < min(len(c.visits), siegeStates()); i++ {
				if err := c.from(i); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%d states, %d steps, %d of them rejected", len(c.seen), c.steps, c.rejected)
		})
	}
}

// campaign is a visit to all states of a siege, nearest first.
type campaign struct {
	lies            []Message
	seen            map[string]bool
	visits          []visit
	steps, rejected int
}

type visit struct {
	s      *siege
	before int    // the visit that it came from
	how    string // and by what
}

func (c *campaign) visit(s *siege, before int, how string) {
	if key := s.key(); !c.seen[key] {
		c.seen[key] = true
		c.visits = append(c.visits, visit{s, before, how})
	}
}

// from takes every step that is possible from a state.
func (c *campaign) from(i int) error {
	for _, ev := range c.visits[i].s.own() {
		s := c.visits[i].s.clone()
		c.steps++
		how := fmt.Sprintf("own event %d, access %v, effect %d", ev.Kind, ev.Access, ev.Effect)
		if err := s.happen(ev); err != nil {
			return c.story(i, how, err)
		}
		c.visit(s, i, how)
	}
	key := c.visits[i].s.key()
	for _, m := range c.lies {
		s := c.visits[i].s.clone()
		c.steps++
		how := fmt.Sprintf("%v from %d: %+v", m.Kind, m.From, m.Body())
		rejected, err := s.step(Event{Kind: EventMessage, Message: &m})
		switch {
		case err != nil:
			return c.story(i, how, err)
		case !rejected:
			c.visit(s, i, how)
		case s.key() != key:
			return c.story(i, how, fmt.Errorf("it was rejected, and has changed\n%q to\n%q", key, s.key()))
		default:
			c.rejected++
		}
	}
	c.visits[i].s = nil
	if len(c.seen) > siegeMaximum {
		return fmt.Errorf("more than %d states: what lies can bring about has no bound", siegeMaximum)
	}
	return nil
}

// story tells how it came to an error.
func (c *campaign) story(i int, last string, err error) error {
	text := last
	for ; i > 0; i = c.visits[i].before {
		text = c.visits[i].how + "\n" + text
	}
	return fmt.Errorf("%s\nleads to: %w", text, err)
}
