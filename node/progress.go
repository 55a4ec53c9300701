package node

import (
	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// progress is how far a page has got for which threads wait.
type progress struct {
	under     protocol.EffectKind // what is being done to it here; 0: nothing
	elsewhere bool                // its contents come from a file that another node has
	wanted    bool                // it is asked for, or will be when that is done
	asking    bool                // requests are sent: no recovery is under way
	parked    bool                // a fault on it is parked
}

// progressOf looks at a page. If its contents come from a file of another node, from is that, and
// else the node that was asked for it: this one itself if others have to give up their copies.
func (t *intake) progressOf(page pagetable.Page) (p progress, from protocol.NodeID) {
	engine, id := t.drive.engine, protocol.PageObject(uint64(page))
	p = progress{under: protocol.Operation(engine, id), wanted: engine.Waiting(id), parked: t.isParked(page)}
	_, p.asking = engine.Epoch()
	if p.fills() && (p.under == protocol.EffectInstall || t.drive.exec.store.Unloaded(page)) {
		if _, node, is := t.drive.origins.of(page); is && node != t.drive.origins.self {
			p.elsewhere = true
			return p, node
		}
	}
	return p, protocol.Asked(engine, id)
}

// fills is whether the page is on its way into memory, or into a program.
func (p *progress) fills() bool {
	return p.under == protocol.EffectInstall || p.under == protocol.EffectMakeWritable || p.under == protocol.EffectMap
}

// stage is what programs are told of it.
func (p *progress) stage() attach.PageStage {
	switch {
	case p.elsewhere:
		return attach.PageAsked
	case p.fills():
		return attach.PageHere
	case p.under != 0:
		return attach.PageBusy
	case p.wanted && p.asking:
		return attach.PageAsked
	case p.wanted || p.parked:
		return attach.PageParked
	}
	return attach.PageHere // it is about to be mapped
}
