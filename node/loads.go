package node

import (
	"fmt"
	"maps"
	"slices"

	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/protocol"
)

// loads reads pages in the spill file that go to other nodes, or to their backups. The reactor does
// not wait for the disk. The effect that needs the contents waits: to the engine it is an
// operation, or a message, that takes a while. One read serves all who ask until it is over.
//
// Effects that would change the page wait behind that one, so what it sends is what the page held
// when the engine decided it. Of messages those wait that must not overtake a Grant of the page
// (docs/protocol.md#messages).
type loads struct {
	drive  *driver
	byPage map[pagetable.Page]*load
	read   func(pagetable.Page, func(contents []byte, why error)) error // backing.Copy
}

func newLoads(d *driver) loads {
	return loads{drive: d, byPage: map[pagetable.Page]*load{}, read: func(page pagetable.Page, over func([]byte, error)) error {
		return backing.Copy(d.exec.store, page, over)
	}}
}

// load is what waits for a page, in order.
type load struct{ effects []protocol.Effect }

// needsContents is whether an effect sends or keeps what is in a page of this node, or is mostly
// followed by one that does.
func needsContents(f *protocol.Effect) bool {
	switch f.Kind {
	case protocol.EffectDowngrade:
		return true
	case protocol.EffectSend, protocol.EffectBackup:
		return f.Source == protocol.SourcePage
	}
	return false
}

// follows is whether an effect that needs no contents must not overtake those of its page that do.
func follows(f *protocol.Effect) bool {
	switch f.Kind {
	case protocol.EffectMakeWritable, protocol.EffectRevoke:
		return true
	case protocol.EffectSend:
		kind := f.Message.Kind
		return kind == protocol.KindForward || kind == protocol.KindInvalidate || kind == protocol.KindMulticast && f.Source == protocol.SourceNone
	}
	return false
}

// delay keeps an effect that must wait for the disk, and returns whether it is one.
func (l *loads) delay(f *protocol.Effect) bool {
	if f.Kind == protocol.EffectSend && f.Message.Kind == protocol.KindEpochMarker {
		l.readNow()
		return false
	}
	needs := needsContents(f)
	if !needs && (len(l.byPage) == 0 || !follows(f)) {
		return false
	}
	page := pageOfEffect(f)
	w := l.byPage[page]
	if w == nil {
		if !needs || l.drive.exec.contents.loaded[page] != nil || !backing.InFile(l.drive.exec.store, page) {
			return false
		}
		w = l.begin(page)
	}
	later := *f
	later.Message.Payload = slices.Clone(f.Message.Payload)
	w.effects = append(w.effects, later)
	if f.Kind == protocol.EffectDowngrade || f.Kind == protocol.EffectRevoke {
		l.drive.goes(page, f) // to the engine it has gone, and threads may want it back
	}
	return true
}

// pageOfEffect is the page that an effect is about.
func pageOfEffect(f *protocol.Effect) pagetable.Page {
	if f.Kind == protocol.EffectSend {
		return pagetable.Page(f.Message.Object.Page())
	}
	return pagetable.Page(f.Object.Page())
}

// begin has a page read.
func (l *loads) begin(page pagetable.Page) *load {
	w := &load{}
	l.byPage[page] = w
	err := l.read(page, func(contents []byte, why error) {
		switch {
		case l.byPage[page] != w: // it was read at once, or is freed
		case why != nil:
			l.fail(page, why)
		default:
			l.drive.exec.contents.loaded[page] = slices.Clone(contents)
		}
	})
	if err != nil {
		l.fail(page, err)
	}
	return w
}

func (l *loads) fail(page pagetable.Page, why error) {
	l.drive.exec.end.breakDown(fmt.Errorf("node: read page %d: %w", page, why))
}

// goOn carries out what has waited for contents that have come.
func (l *loads) goOn() {
	if len(l.drive.exec.contents.loaded) == 0 {
		return
	}
	for _, page := range slices.Sorted(maps.Keys(l.drive.exec.contents.loaded)) {
		l.carryOut(page)
	}
}

// carryOut carries out what has waited for a page, if anything has. Preconditions: it is loaded.
func (l *loads) carryOut(page pagetable.Page) {
	w := l.byPage[page]
	if w == nil {
		return
	}
	delete(l.byPage, page)
	for i := range w.effects {
		l.drive.carryOut(&w.effects[i])
	}
}

// readNow reads at once all that effects wait for. The reactor waits for the disk in a recovery:
// the messages of one epoch leave before those of the next.
func (l *loads) readNow() {
	x := l.drive.exec
	for _, page := range slices.Sorted(maps.Keys(l.byPage)) {
		if x.contents.loaded[page] == nil {
			contents := make([]byte, x.batch.pageBytes)
			if err := x.store.Read(page, contents); err != nil {
				l.fail(page, err)
				return
			}
			x.contents.loaded[page] = contents
		}
		l.carryOut(page)
	}
}

// drop forgets what waits for pages that are freed.
func (l *loads) drop(first pagetable.Page, count uint64) {
	maps.DeleteFunc(l.byPage, func(p pagetable.Page, _ *load) bool { return p >= first && uint64(p-first) < count })
}
