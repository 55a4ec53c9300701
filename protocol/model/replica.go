package model

import (
	"encoding/binary"
	"slices"

	"dsmd/protocol"
)

// replicaLedger is what the observer knows of replicated pages: which of their versions must
// survive.
type replicaLedger struct {
	pages   []replicaState // beside Ledger.pages; nil: nothing is replicated
	crashes uint8
	// staying is how many members were not leaving when all had handed over last, or fewer if there
	// are fewer since then.
	staying uint8
	handed  uint32         // the epoch of that
	commits []commitLedger // by thread, ascending: commits under way
}

// replicaState says of one page how far it may go back when nodes are lost.
type replicaState struct {
	// floor is the last version that must not be forgotten: one that was committed, or that another
	// node than its writer has seen.
	floor uint32
	// writer is 1 + the node that alone has seen the versions above floor.
	writer uint16
	// torn says that the writer is lost: whoever sees the page next finds any version from floor to
	// the last.
	torn bool
	// until is how many nodes there may have been lost, ever, and version floor survives; stored
	// the same of the last version, for when that is committed.
	until, stored uint8
}

// commitLedger are the versions that the commit of a thread is about, beside Ledger.pages; 0 where
// there is none.
type commitLedger struct {
	thread   int
	node     protocol.NodeID
	versions []uint32
}

func (x *replicaLedger) clone() replicaLedger {
	c := *x
	// versions are never changed
	c.pages, c.commits = slices.Clone(x.pages), slices.Clone(x.commits)
	return c
}

func (x *replicaLedger) appendState(b []byte) []byte {
	if x.pages == nil {
		return b
	}
	b = append(b, x.crashes, x.staying, byte(x.handed))
	for _, s := range x.pages {
		b = binary.LittleEndian.AppendUint32(b, s.floor)
		b = append(b, byte(s.writer), byte(s.writer>>8), flag(s.torn), s.stored, s.until)
	}
	for _, c := range x.commits {
		b = append(b, 'c', byte(c.thread), byte(c.thread>>8))
		for _, v := range c.versions {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	return b
}

// explains reports whether what a node finds in a page is the last write, or as much of the writes
// of a lost node as may be left.
func (l *Ledger) explains(i int, found uint32) bool {
	if found == l.versions[i] {
		return true
	}
	if l.replicas.pages == nil {
		return false
	}
	s := &l.replicas.pages[i]
	if !s.torn || found < s.floor || found > l.versions[i] {
		return false
	}
	l.versions[i] = found
	return true
}

// mayHold reports whether a node that has a page may have this version of it.
func (l *Ledger) mayHold(o protocol.ObjectID, found uint32) bool {
	i, ok := slices.BinarySearch(l.pages, o)
	if !ok || l.replicas.pages == nil || !l.replicas.pages[i].torn {
		return found == l.Version(o)
	}
	return found >= l.replicas.pages[i].floor && found <= l.versions[i]
}

// noteSeen notes that a node sees the version that a page has, and may make the next.
func (l *Ledger) noteSeen(i int, r *Retirement) {
	if l.replicas.pages == nil {
		return
	}
	s := &l.replicas.pages[i]
	me := uint16(r.Node) + 1
	if s.torn {
		// It was nobody's before, and is of this node alone now.
		s.torn, s.writer = false, me
	}
	if s.writer != me {
		l.secure(i, r.Contents)
	}
	if r.Op.Kind == OpWrite {
		s.writer, s.stored = me, l.replicas.crashes+l.spare()
	}
}

// secure notes that a version must survive from here on.
func (l *Ledger) secure(i int, version uint32) {
	s := &l.replicas.pages[i]
	if version > s.floor && version == l.versions[i] {
		s.until = s.stored
	}
	s.floor = max(s.floor, version)
}

// committing notes what a commit is about: everything that was written on the node.
func (l *Ledger) committing(r *Retirement) {
	c := commitLedger{thread: r.Thread, node: r.Node, versions: make([]uint32, len(l.pages))}
	for i, s := range l.replicas.pages {
		if s.writer == uint16(r.Node)+1 && !s.torn {
			c.versions[i] = l.versions[i]
		}
	}
	at, _ := slices.BinarySearchFunc(l.replicas.commits, r.Thread, func(c commitLedger, t int) int { return c.thread - t })
	l.replicas.commits = slices.Insert(l.replicas.commits, at, c)
}

// commit notes that a commit is over.
func (l *Ledger) commit(r *Retirement) {
	x := &l.replicas
	at := slices.IndexFunc(x.commits, func(c commitLedger) bool { return c.thread == r.Thread })
	for i, v := range x.commits[at].versions {
		if x.pages != nil {
			l.secure(i, v)
		}
	}
	x.commits = slices.Delete(slices.Clone(x.commits), at, at+1)
}

// begin notes that nothing is committed of a page that begins anew.
func (x *replicaLedger) begin(i int, spare uint8) {
	if x.pages == nil {
		return
	}
	x.pages[i] = replicaState{until: x.crashes + spare}
	for c := range x.commits {
		versions := slices.Clone(x.commits[c].versions)
		versions[i], x.commits[c].versions = 0, versions
	}
}

// isUncommitted reports whether nobody but lost nodes has seen anything of a replicated page, so
// that it may begin anew when nobody has it.
func (x *replicaLedger) isUncommitted(i int) bool { return x.pages != nil && x.pages[i].floor == 0 }

// mustBegin reports whether it has to: whoever was there from the start, while nobody else left,
// knows that no more nodes were lost than a page survives, and so that it was not committed.
func (x *replicaLedger) mustBegin(i int, c *Config) bool {
	return x.isUncommitted(i) && x.crashes <= c.Replicas && len(c.Join)+len(c.Leave) == 0
}

// tear notes which pages may go back because a node is lost.
func (l *Ledger) tear(node protocol.NodeID) {
	x := &l.replicas
	x.crashes++
	x.commits = slices.DeleteFunc(slices.Clone(x.commits), func(c commitLedger) bool { return c.node == node })
	for i := range x.pages {
		if s := &x.pages[i]; s.writer == uint16(node)+1 {
			s.torn = true
		}
	}
}

// spare is how many nodes may be lost from now on: as many as was asked, or all but one of them.
func (l *Ledger) spare() uint8 { return min(l.config.Replicas, l.replicas.staying-1) }

// NoteMembers takes note of who the members are after an action, and of what they have handed over:
// what survived until then survives as many further losses from there on, and is kept as often as
// that takes.
func (l *Ledger) NoteMembers(nodes []*Node) *Violation {
	l.noteSides(nodes)
	x := &l.replicas
	if x.pages == nil {
		return nil
	}
	epoch, _, homes := view(nodes)
	if staying := uint8(len(homes)); staying > 0 && staying < x.staying {
		x.staying = staying
		for i := range x.pages {
			s := &x.pages[i]
			s.until, s.stored = min(s.until, x.crashes+l.spare()), min(s.stored, x.crashes+l.spare())
		}
	}
	if epoch == x.handed || len(homes) == 0 || !allHandedOver(nodes, epoch) {
		return nil
	}
	x.handed, x.staying = epoch, uint8(len(homes))
	for i := range x.pages {
		s := &x.pages[i]
		if x.crashes > s.until {
			continue // it may be lost, or left without backups
		}
		s.until = max(s.until, x.crashes+l.spare())
		if kept := l.keepers(nodes, homes, i); s.floor > 0 && kept < int(l.spare())+1 {
			return violated(RuleReplica, "all is handed over in epoch %d, and %v has backups of version %d or later on %d nodes that stay, not on %d",
				epoch, l.pages[i], s.floor, kept, l.spare()+1)
		}
	}
	return nil
}

// keepers is how many nodes that stay have a backup of a page that is good enough.
func (l *Ledger) keepers(nodes []*Node, homes []protocol.NodeID, i int) (kept int) {
	for _, n := range homes {
		if at, ok := nodes[n].search(l.pages[i]); ok && nodes[n].pages[at].backed && nodes[n].pages[at].backup >= l.replicas.pages[i].floor {
			kept++
		}
	}
	return kept
}

// checkBackup checks the backup of a page that nobody has.
func (l *Ledger) checkBackup(o protocol.ObjectID, n *Node) *Violation {
	if p := n.page(o); !p.backed || !l.mayHold(o, p.backup) {
		return violated(RuleReplica, "%v is to be had from node %d, which has a backup %t of version %d; the last write made version %d", o, n.self, p.backed, p.backup, l.Version(o))
	}
	return nil
}
