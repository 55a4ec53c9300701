package protocol

import "fmt"

// env is what all machines of one node share: the configuration, the view in force, the time of the
// present event, and where effects and messages go.
type env struct {
	cfg    Config
	limits limits
	view   view
	now    Time // of the present event

	out   []Effect  // of the present Step, in order
	local []Message // to this node itself, in order; Step delivers them before it returns
}

func newEnv(cfg Config) *env {
	v := &env{cfg: cfg.withDefaults(), limits: allLimits}
	if cfg.Outside {
		v.view.members, v.view.homes, v.view.fresh = []NodeID{}, []NodeID{}, []NodeID{cfg.Self}
	}
	return v
}

// clone returns an independent copy. Preconditions: no Step is under way.
func (e *env) clone() *env {
	return &env{cfg: e.cfg, limits: e.limits, view: e.view.clone(), now: e.now}
}

// send sends m; one to this node itself is delivered before Step returns.
func (e *env) send(m Message) {
	m.From = e.cfg.Self
	if m.To == e.cfg.Self {
		e.local = append(e.local, m)
		return
	}
	e.emit(Effect{Kind: EffectSend, Object: m.Object, Message: m})
}

// sendPage sends m to another node with the contents of the page.
func (e *env) sendPage(m Message, from Source) {
	m.From = e.cfg.Self
	e.emit(Effect{Kind: EffectSend, Object: m.Object, Source: from, Message: m})
}

func (e *env) emit(f Effect) { e.out = append(e.out, f) }

// reject refuses a message that no correct peer could have sent. One from this node itself is a bug
// of ours.
func (e *env) reject(m *Message, reason string) {
	if m.From == e.cfg.Self {
		panic(fmt.Sprintf("protocol: node %d sent itself %+v: %s", e.cfg.Self, *m, reason))
	}
	e.emit(Effect{Kind: EffectReject, Object: m.Object, Message: *m, Reason: reason})
}
