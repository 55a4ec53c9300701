package protocol

import (
	"fmt"
	"slices"
)

// recovery is how far a recovery is: who has sent its EpochMarker, its reports and its EpochReady,
// and what waits for the end. It collects; what follows Engine does, which asks it (see epoch.go).
type recovery struct {
	*env
	marked   []uint32 // by node: the greatest epoch for which its EpochMarker has come
	readied  nodeSet  // members whose EpochReady for this epoch has not come; nil: none has
	told     []told   // by node: how much of its report has come; nil: nothing has
	complete int      // members whose whole report has come
	reports  reports  // that have come for this epoch, until they are applied
	applied  bool     // this node's part of the directory was made anew
	pieces   [][]byte // of what memory was in use, so far
	bound    bool     // all pieces are here
	since    uint32   // and this is since when the allocator knows what it was asked

	held   []Message // barrier and name messages that wait until all is over
	parked []parked  // by node: how many of held it has sent; nil: there are none
}

// parked is how many messages of names and of barriers of one sender wait for the end of a
// recovery.
type parked struct{ names, barriers int }

// told is how much of its report a member has sent: pieces of due, which is 0 until the first has
// come.
type told struct{ due, pieces, bytes int }

// report is what one member has told this node, in one message of several.
type report struct {
	from    NodeID
	payload []byte
}

// reports are what all members have told this node.
type reports []report

// each calls f for each entry of all reports, which were found sound when they came.
func (rs reports) each(f func(from NodeID, x *entry)) {
	for i := range rs {
		_ = eachEntry(rs[i].payload, func(x *entry) { f(rs[i].from, x) })
	}
}

// begin forgets what has come for an epoch before.
func (r *recovery) begin() {
	if r.marked == nil {
		r.marked = make([]uint32, r.cfg.Nodes)
	}
	r.readied, r.told, r.complete, r.reports, r.applied, r.pieces, r.bound, r.since = nil, nil, 0, nil, false, nil, false, 0
	r.held = slices.DeleteFunc(r.held, func(m Message) bool { return !r.isMember(m.From) || m.Kind != KindNameRequest })
	r.parked = nil
	for i := range r.held {
		count, _ := r.parkedLike(&r.held[i])
		*count++
	}
}

// allMarked: nothing of the epoch before can come any more from others.
func (r *recovery) allMarked() bool {
	return !slices.ContainsFunc(r.view.members, func(n NodeID) bool { return r.marked[n] < r.view.epoch })
}

// allReady: every member's part of the directory stands.
func (r *recovery) allReady() bool { return r.readied != nil && r.readied.empty() }

// deliver deals with what members say in a recovery.
func (r *recovery) deliver(m *Message) {
	switch m.Kind {
	case KindEpochMarker:
		r.onEpochMarker(m)
	case KindReportHeld:
		r.onReport(m)
	case KindReportBound:
		r.onBound(m)
	case KindEpochReady:
		r.onEpochReady(m)
	default:
		r.reject(m, "unknown kind")
	}
}

func (r *recovery) onEpochMarker(m *Message) {
	if r.marked == nil {
		r.marked = make([]uint32, r.cfg.Nodes)
	}
	r.marked[m.From] = max(r.marked[m.From], m.AsEpochMarker().Epoch)
}

// isStale reports whether a message of a recovery is of an earlier one. One of a later one cannot
// come: its sender would have needed this node's mark.
func (r *recovery) isStale(m *Message, epoch uint32) bool {
	if epoch > r.view.epoch || epoch == r.view.epoch && r.view.phase < flushing {
		r.reject(m, "no such recovery is under way")
		return true
	}
	return epoch < r.view.epoch
}

func (r *recovery) onEpochReady(m *Message) {
	if r.isStale(m, m.AsEpochReady().Epoch) {
		return
	}
	if r.readied == nil {
		r.readied = r.allMembers()
	} else if !r.readied.has(m.From) {
		r.reject(m, "it was ready already")
		return
	}
	r.readied.remove(m.From)
}

// onReport keeps a report until all have come.
func (r *recovery) onReport(m *Message) {
	k := m.AsReportHeld()
	if r.isStale(m, k.Epoch) {
		return
	}
	if r.told == nil {
		r.told = make([]told, r.cfg.Nodes)
	}
	t, most := &r.told[m.From], r.maxReported()
	if k.Pieces == 0 || int(k.Pieces) > pieces(most) || t.due != 0 && t.due != int(k.Pieces) {
		r.reject(m, "a report in no pieces, or too many, or in more than was said")
		return
	}
	if why := r.noReport(k.Records); why != "" {
		r.reject(m, why)
		return
	}
	if t.pieces >= int(k.Pieces) || t.bytes+len(k.Records) > most {
		r.reject(m, "more of a report than there is, or can be")
		return
	}
	t.due, t.pieces, t.bytes = int(k.Pieces), t.pieces+1, t.bytes+len(k.Records)
	if t.pieces == t.due {
		r.complete++
	}
	r.reports = append(r.reports, report{m.From, slices.Clone(k.Records)})
}

// reported: all members have told all.
func (r *recovery) reported() bool { return r.complete == r.memberCount() }

// noReport says what is wrong with a report: "" if nothing is.
func (r *recovery) noReport(payload []byte) string {
	why := ""
	err := eachEntry(payload, func(x *entry) {
		switch {
		case x.tag == tagObject && !x.id.IsLock() && x.id.Page() >= r.cfg.Pages:
			why = "a page outside the region"
		case x.tag == tagEntry && !x.id.IsLock() && x.id.Page() >= r.cfg.Pages, x.tag == tagEntry && x.owner != NoNode && int(x.owner) >= r.cfg.Nodes:
			why = "a page outside the region, or an owner outside the cluster"
		case x.tag == tagBackup && (x.id.IsLock() || x.id.Page() >= r.cfg.Pages):
			why = "a backup of no page of the region"
		case x.tag == tagCame && int(x.owner) >= r.cfg.Nodes:
			why = "a node outside the cluster"
		case r.hasStranger(x.before) || r.hasStranger(x.after):
			why = "homes or members outside the cluster"
		case (x.tag == tagObject || x.tag == tagEntry || x.tag == tagBackup) && r.home(x.id) != r.cfg.Self:
			why = "this node is not the object's home"
		case (x.tag == tagName || x.tag == tagUse || x.tag >= tagBound && x.tag <= tagFreeing) && (x.count == 0 || x.count > r.cfg.Pages || x.first > r.cfg.Pages-x.count), x.tag == tagTop && x.first > r.cfg.Pages:
			why = "not a run of pages of the region"
		}
	})
	if err != nil {
		return err.Error()
	}
	return why
}

// hasStranger reports whether a list, in ascending order, names a node outside the cluster.
func (r *recovery) hasStranger(nodes []NodeID) bool {
	return len(nodes) > 0 && int(nodes[len(nodes)-1]) >= r.cfg.Nodes
}

// maxReported bounds what one member reports in a recovery, in bytes: everything that there can be,
// once. Of each page and each lock that it has it and was the home of, and each page of which it
// keeps a backup; if this node is the allocator, each name with its signature, as the allocator
// before and as its programs know it, with what lies between its memory and the next, and each use;
// and what was before, if this node has come. The member that reports more is parted with.
func (r *recovery) maxReported() int {
	l := &r.limits
	sum := int(r.cfg.Pages)*(objectBytes+entryBytes+backupBytes) + l.locks*(objectBytes+entryBytes)
	if r.allocator() == r.cfg.Self {
		sum += l.names*2*(maxNameEntry+1+runBytes) + l.uses*useBytes
	}
	if slices.Contains(r.view.fresh, r.cfg.Self) {
		sum += l.past
	}
	return sum + reportRest
}

// maxBound bounds what the allocator says about which memory was in use, in bytes.
func (r *recovery) maxBound() int { return r.limits.runs() * runBytes }

// onBound keeps which memory was in use.
func (r *recovery) onBound(m *Message) {
	k := m.AsReportBound()
	if r.isStale(m, k.Epoch) {
		return
	}
	switch {
	case m.From != r.allocator() || k.Since > k.Epoch || k.Pieces == 0 || int(k.Pieces) > pieces(r.maxBound()) || len(r.pieces) >= int(k.Pieces),
		len(k.Runs)%runBytes != 0 || r.boundBytes()+len(k.Runs) > r.maxBound():
		r.reject(m, "not the next piece of what the allocator knows, or more than it can know")
		return
	}
	for b := k.Runs; len(b) > 0; b = b[16:] {
		first, count, _ := DecodeRun(b[:16])
		if count == 0 || count > r.cfg.Pages || first > r.cfg.Pages-count {
			r.reject(m, "not a run of pages of the region")
			return
		}
	}
	r.pieces = append(r.pieces, slices.Clone(k.Runs))
	if len(r.pieces) < int(k.Pieces) {
		return
	}
	r.bound, r.since = true, k.Since
	if r.cfg.Partitions > 1 {
		r.emit(Effect{Kind: EffectInUse, Epoch: r.view.epoch, Payload: slices.Concat(r.pieces...)})
	}
}

// inUse takes from partition 0 which memory was in use.
func (r *recovery) inUse(ev Event) {
	if ev.Epoch != r.view.epoch || r.bound {
		panic("protocol: the host says which memory was in use in another epoch, or twice")
	}
	r.pieces, r.bound = [][]byte{slices.Clone(ev.Payload)}, true
}

// boundBytes is how much has come of what memory was in use.
func (r *recovery) boundBytes() (sum int) {
	for _, b := range r.pieces {
		sum += len(b)
	}
	return sum
}

// hold keeps a message of barriers or names until the recovery is over.
func (r *recovery) hold(m *Message) {
	if why := unsound(m); why != "" {
		r.reject(m, why)
		return
	}
	count, most := r.parkedLike(m)
	// this node's own programs have bounds of their own
	if *count >= most && m.From != r.cfg.Self {
		r.reject(m, "as much of its sender waits for the end of a recovery as can")
		return
	}
	*count++
	h := *m
	h.Payload = slices.Clone(m.Payload)
	r.held = append(r.held, h)
}

// forgetCalls forgets what was asked of an allocator that has made its names anew. All of it was
// sent in an epoch before, and is asked again if it still counts.
func (r *recovery) forgetCalls() {
	r.held = slices.DeleteFunc(r.held, func(m Message) bool { return m.Kind == KindNameRequest })
	for i := range r.parked {
		r.parked[i].names = 0
	}
}

// parkedLike counts what the sender of a message has said that is held, and is about the same:
// names or barriers; most is how much there may be. If all had one bound together, a member that
// fills it had others rejected.
func (r *recovery) parkedLike(m *Message) (count *int, most int) {
	if r.parked == nil {
		r.parked = make([]parked, r.cfg.Nodes)
	}
	of := &r.parked[m.From]
	if m.Kind == KindNameRequest {
		return &of.names, r.limits.names
	}
	return &of.barriers, r.limits.arrivals
}

// unsound says what is wrong with a message of barriers or names whatever it finds when it is dealt
// with, so that nothing is kept that is longer than it can be: "" if nothing is. A BarrierCombine
// was looked at before.
func unsound(m *Message) string {
	switch m.Kind {
	case KindBarrierArrive, KindBarrierCancel:
		if len(m.Payload) > MaxContribution {
			return "more than one party may bring to a barrier"
		}
	case KindNameRequest:
		if _, err := DecodeNameCall(m.Payload); err != nil {
			return err.Error()
		}
	}
	return ""
}

// admission is what is done with a message that comes while a recovery is under way.
type admission uint8

const (
	deliver  admission = iota // as usual
	drop                      // it is said anew when the recovery is over
	park                      // until the recovery is over
	parkOnce                  // the same, if its sender has nothing parked yet
	salvage                   // contents are kept, nothing else counts
	refuse                    // its sender has said that it says no more in the epoch before
)

// admissions are by kind what is done with a message: before all marks have come, while reports do,
// and when this node is ready. Who waits at a barrier comes there again, so what members have sent
// about barriers before they have entered the epoch (ofBarriers) does not count.
var admissions = [kindEnd]struct {
	early, reporting, ready admission
	ofBarriers              bool
}{
	KindRequest:             {early: salvage, reporting: refuse},
	KindForward:             {early: salvage, reporting: refuse},
	KindInvalidate:          {early: salvage, reporting: refuse},
	KindInvalidateAck:       {early: salvage, reporting: refuse},
	KindVerify:              {early: drop, reporting: refuse},
	KindGrant:               {early: salvage, reporting: refuse},
	KindDone:                {early: salvage, reporting: refuse},
	KindMulticast:           {early: drop, reporting: refuse},
	KindMulticastAck:        {early: drop, reporting: refuse},
	KindMulticastEnd:        {early: drop, reporting: refuse},
	KindOffer:               {drop, drop, drop, false}, // who has still no room offers it again
	KindDecline:             {drop, drop, drop, false},
	KindLost:                {early: salvage, reporting: refuse},
	KindBarrierArrive:       {park, park, park, true},
	KindBarrierCancel:       {park, park, park, true},
	KindBarrierCombine:      {parkOnce, parkOnce, parkOnce, true},
	KindBarrierCombineAck:   {drop, drop, drop, false}, // nobody relays in a recovery, see relay.go
	KindBarrierBroadcast:    {drop, drop, drop, false},
	KindBarrierBroadcastAck: {drop, drop, drop, false},
	KindNameRequest:         {park, park, park, false},
	KindFree:                {early: drop, reporting: drop}, // what is being freed is freed anew
	KindFreeAck:             {early: drop, reporting: drop},
	KindBackup:              {early: drop}, // what is being committed is committed anew
	KindBackupAck:           {early: drop},
	KindBackupCopy:          {early: drop},
	KindBackupCopyAck:       {early: drop},
}

// admission looks up what is done with a message now.
func (r *recovery) admission(m *Message) admission {
	if m.Kind >= kindEnd {
		return deliver
	}
	a := &admissions[m.Kind]
	switch {
	case a.ofBarriers && r.marked[m.From] < r.view.epoch:
		return drop
	case r.view.phase <= flushing:
		return a.early
	case r.view.phase == reporting:
		return a.reporting
	}
	return a.ready
}

// clone returns an independent copy, in another environment.
func (r *recovery) clone(in *env) recovery {
	c := *r
	c.env = in
	c.marked, c.readied, c.told = slices.Clone(r.marked), slices.Clone(r.readied), slices.Clone(r.told)
	c.reports, c.pieces, c.held = slices.Clone(r.reports), slices.Clone(r.pieces), slices.Clone(r.held)
	c.parked = slices.Clone(r.parked)
	return c
}

// appendState appends an encoding: see Engine.AppendState.
func (r *recovery) appendState(b []byte) []byte {
	b = appendEach(b, r.told, func(b []byte, t told) []byte { return appendNumbers(b, uint64(t.due)) })
	b = appendNumbers(append(appendInts(appendInts(b, r.marked), r.readied), bits(r.applied, r.bound)), uint64(r.since))
	b = appendEach(b, r.reports, func(b []byte, x report) []byte { return appendText(appendNumbers(b, uint64(x.from)), x.payload) })
	b = appendEach(b, r.pieces, appendText[[]byte])
	return appendEach(b, r.held, func(b []byte, m Message) []byte { return AppendMessage(appendNumbers(b, uint64(m.To)), &m) })
}

// check tells what contradicts itself.
func (r *recovery) check() error {
	held := 0
	for i := range r.parked {
		held += r.parked[i].names + r.parked[i].barriers
	}
	if held != len(r.held) {
		return fmt.Errorf("%d messages wait for the end of the recovery, %d are counted", len(r.held), held)
	}
	if r.applied {
		return nil // what was counted is gone
	}
	pieces, bytes := 0, 0
	for i := range r.told {
		pieces, bytes = pieces+r.told[i].pieces, bytes+r.told[i].bytes
	}
	for i := range r.reports {
		bytes -= len(r.reports[i].payload)
	}
	if pieces != len(r.reports) || bytes != 0 || r.complete > r.memberCount() {
		return fmt.Errorf("%d pieces of reports are counted of %d, and %d bytes too many; %d members have told all", pieces, len(r.reports), bytes, r.complete)
	}
	return nil
}
