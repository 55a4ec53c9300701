package sim

import (
	"fmt"
	"runtime"

	"dsmd/protocol"
)

// A Role is what a node is to the pages that it knows.
type Role string

const (
	// HomeRole: the node keeps the directory entries of pages that others have.
	HomeRole Role = "home"
	// HolderRole: the node has the pages, and others keep the entries.
	HolderRole Role = "holder"
	// BothRoles: the node has the pages, and is their home.
	BothRoles Role = "home and holder"
)

// Roles are all of them.
func Roles() []Role { return []Role{HomeRole, HolderRole, BothRoles} }

// Memory is what the knowledge of pages takes in an engine, measured on Go's heap after a garbage
// collection.
type Memory struct {
	Role         Role    `json:"role"`
	RegionPages  uint64  `json:"region_pages"`
	Pages        int     `json:"pages"` // that the engine knows, spread over the region
	HeapBytes    uint64  `json:"heap_bytes"`
	BytesPerPage float64 `json:"bytes_per_page"`
	// PeakBytes is the heap's largest size so far, with what was garbage meanwhile and has not been
	// given back.
	PeakBytes uint64 `json:"peak_bytes"`
}

// MeasureMemory lets an engine learn of pages, as it does when they are touched for the first time:
// each by the events that really bring it about. The engine is one of two nodes. It needs about 110
// bytes of memory for each page, and allocates nothing that outlives it. Nothing else should
// allocate meanwhile.
//
// Preconditions: 0 < pages <= regionPages.
func MeasureMemory(role Role, pages int, regionPages uint64) (Memory, error) {
	if pages < 1 || uint64(pages) > regionPages {
		return Memory{}, fmt.Errorf("sim: %d pages of a region of %d", pages, regionPages)
	}
	before := heapStats()
	// node 0 is home of everything
	config := protocol.Config{Nodes: 2, Pages: regionPages, HomeStripe: regionPages, Hold: 20, MaxHold: 20_000}
	if role == HolderRole {
		config.Self = 1
	}
	learner := learner{engine: protocol.New(config), role: role}
	apart := regionPages / uint64(pages)
	for i := range uint64(pages) {
		if err := learner.touch(protocol.PageObject(i * apart)); err != nil {
			return Memory{}, err
		}
	}
	after := heapStats()
	m := Memory{Role: role, RegionPages: regionPages, Pages: learner.engine.Objects(), HeapBytes: after.HeapAlloc - min(after.HeapAlloc, before.HeapAlloc), PeakBytes: after.HeapSys}
	m.BytesPerPage = float64(m.HeapBytes) / float64(m.Pages)
	if m.Pages != pages || learner.engine.Pending() != 0 {
		return m, fmt.Errorf("sim: the engine knows %d pages of %d, with something under way on %d", m.Pages, pages, learner.engine.Pending())
	}
	runtime.KeepAlive(learner.engine)
	return m, nil
}

func heapStats() runtime.MemStats {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// learner makes an engine know pages.
type learner struct {
	engine  *protocol.Engine
	role    Role
	effects []protocol.Effect
}

// touch is the first touch of a page, by this node or, if it is home only, by the other.
func (l *learner) touch(page protocol.ObjectID) error {
	switch l.role {
	case HomeRole:
		return l.expect(protocol.EffectSend, protocol.Event{Kind: protocol.EventMessage, Object: page,
			Message: new(protocol.Request{Access: protocol.Write}.To(0, page).SentBy(1))})
	case HolderRole:
		if err := l.expect(protocol.EffectSend, protocol.Event{Kind: protocol.EventFault, Access: protocol.Write, Thread: 1, Client: 1, Object: page}); err != nil {
			return err
		}
		if err := l.expect(protocol.EffectInstall, protocol.Event{Kind: protocol.EventMessage, Object: page,
			Message: new(protocol.Grant{Access: protocol.Write, Contents: protocol.ZeroContents}.To(1, page).SentBy(0))}); err != nil {
			return err
		}
	default:
		if err := l.expect(protocol.EffectInstall, protocol.Event{Kind: protocol.EventFault, Access: protocol.Write, Thread: 1, Client: 1, Object: page}); err != nil {
			return err
		}
	}
	return l.expect(0, protocol.Event{Kind: protocol.EventCompleted, Effect: protocol.EffectInstall, Access: protocol.Write, Object: page})
}

// expect lets an event happen that has one effect; kind 0: none.
func (l *learner) expect(kind protocol.EffectKind, ev protocol.Event) error {
	l.effects = l.engine.Step(ev, l.effects[:0])
	if kind == 0 && len(l.effects) == 0 || len(l.effects) == 1 && l.effects[0].Kind == kind {
		return nil
	}
	return fmt.Errorf("sim: as %s, event %d on %v has effects %+v, expected one of kind %d", l.role, ev.Kind, ev.Object, l.effects, kind)
}
