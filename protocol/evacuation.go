package protocol

import (
	"fmt"
	"slices"
)

// Handing over: after each recovery backups are copied to nodes that keep them since then (see
// listReReplicate), and when members are leaving each home fetches for itself what only they have.
// Then those can be left out of the next view, and nothing is lost with them.
//
// While members are leaving the owner of an object tells who has it: it is a member that stays as
// soon as one has a copy for certain (see order, passOn). So where the owner is leaving, only
// leaving members have the object, or it is on its way from one of them; and where it is not, none
// of them supplies it any more. Those who leave ask for nothing (see ask), so an object that has
// come to one that stays does not go back.

// maxFetches bounds how many objects a home fetches at once for that, and how many copies of
// backups a node has sent that are not acknowledged: enough to keep a connection busy, and few
// beside what programs ask for.
const maxFetches = 64

// evacuation is how far a member is with it.
type evacuation struct {
	*pages
	on          bool       // from the end of a recovery
	left        []ObjectID // to be fetched, ascending
	fetching    []ObjectID // asked for, or on their way to one who stays; at most maxFetches
	reReplicate []ObjectID // backups that this node has to copy, ascending
	unsaved     []copying
}

// copying is a copy of a backup that was sent and is not acknowledged.
type copying struct {
	id ObjectID
	to NodeID
}

// stop forgets all: another recovery begins, or nothing is left to do.
func (v *evacuation) stop() { *v = evacuation{pages: v.pages} }

// clone returns an independent copy, of other pages.
func (v *evacuation) clone(of *pages) evacuation {
	return evacuation{of, v.on, slices.Clone(v.left), slices.Clone(v.fetching), slices.Clone(v.reReplicate), slices.Clone(v.unsaved)}
}

// appendState appends an encoding: see Engine.AppendState.
func (v *evacuation) appendState(b []byte) []byte {
	b = appendInts(appendInts(appendInts(append(b, bits(v.on)), v.left), v.fetching), v.reReplicate)
	return appendEach(b, v.unsaved, appendCopying)
}

func appendCopying(b []byte, c copying) []byte { return appendNumbers(b, uint64(c.id), uint64(c.to)) }

// start lists what this node has to copy, and what only leaving members have.
func (v *evacuation) start() {
	v.on = true
	v.listReReplicate()
	if !v.someLeave() || v.isLeaving(v.cfg.Self) {
		return
	}
	for _, id := range v.sortedIDs() {
		if v.home(id) == v.cfg.Self && v.dir.onlyLeaving(v.objects.find(id)) {
			v.left = append(v.left, id)
		}
	}
}

// listReReplicate lists which backups this node has to copy, because others keep them than before:
// those of which it is the first that keeps them.
func (v *evacuation) listReReplicate() {
	for _, id := range slices.Sorted(slices.Values(v.backups.kept)) {
		keepers := v.backupsOf(id, v.backups.store[id].copies)
		if keepers[0] == v.cfg.Self && slices.ContainsFunc(keepers[1:], v.backups.lacksBackups) {
			v.reReplicate = append(v.reReplicate, id)
		}
	}
}

// goOn asks for what is next, and says when all is here.
func (v *evacuation) goOn() {
	v.fetching = slices.DeleteFunc(v.fetching, func(id ObjectID) bool { return !v.dir.onlyLeaving(v.objects.find(id)) })
	for len(v.left) > 0 && len(v.fetching) < maxFetches {
		if id := v.left[0]; v.dir.onlyLeaving(v.objects.find(id)) {
			v.fetching = append(v.fetching, id)
		}
		v.left = v.left[1:]
	}
	for _, id := range v.fetching {
		v.fetchObject(id)
	}
	v.goOnReReplicating()
	if len(v.left)+len(v.fetching)+len(v.reReplicate)+len(v.unsaved) == 0 {
		v.stop()
		v.backups.joinedSince = v.view.epoch + 1
		v.emit(Effect{Kind: EffectHandedOver, Count: uint64(v.view.epoch)})
	}
}

// fetchObject asks for an object, unless that is under way.
func (v *evacuation) fetchObject(id ObjectID) {
	o := v.objects.find(id)
	if p := v.pendingOf(o); p.want == None && p.op == 0 {
		access := Read
		if id.IsLock() {
			access = Write
		}
		v.requester.ask(o, p, access)
	}
	v.settle(o)
}

// goOnReReplicating copies further backups, which nodes take that have none yet of this epoch: so
// all count the same commits of it. One that was committed in this epoch need not be copied, but
// has to have come wherever it was sent.
func (v *evacuation) goOnReReplicating() {
	for len(v.reReplicate) > 0 && len(v.unsaved) < maxFetches {
		id := v.reReplicate[0]
		v.reReplicate = v.reReplicate[1:]
		b, has := v.backups.store[id]
		if !has || v.reclaim.isDead(id) {
			continue
		}
		for _, n := range v.backupsOf(id, b.copies)[1:] {
			if v.backups.lacksBackups(n) {
				v.unsaved = append(v.unsaved, copying{id, n})
				v.sendCopy(n, id, b)
			}
		}
	}
}

func (v *evacuation) sendCopy(to NodeID, id ObjectID, b backup) {
	k := BackupCopy{Epoch: v.view.epoch, Copies: uint32(b.copies), Made: b.epoch, Commits: b.commits}
	if b.epoch == v.view.epoch { // the commit goes there too
		v.send(k.To(to, id))
		return
	}
	k.Contents = PageContents
	v.sendPage(k.To(to, id), SourceBackup)
}

// onCopied notes that a copy of a backup is kept.
func (v *evacuation) onCopied(m *Message) {
	i := slices.Index(v.unsaved, copying{m.Object, m.From})
	switch epoch := m.AsBackupCopyAck().Epoch; {
	case epoch < v.view.epoch:
		return // it is sent anew in this epoch
	case i < 0 || epoch != v.view.epoch:
		v.reject(m, "no copy of a backup was sent there, or it was acknowledged already")
		return
	}
	v.unsaved = slices.Delete(v.unsaved, i, i+1)
	v.reclaim.dropDead()
}

// check tells what contradicts itself.
func (v *evacuation) check() error {
	if v.on && v.view.phase != running || len(v.fetching) > maxFetches || len(v.unsaved) >= maxFetches+v.cfg.Nodes {
		return fmt.Errorf("handing over goes on in a recovery, or too much at once: of %v it fetches %v, and %v are not acknowledged", v.left, v.fetching, v.unsaved)
	}
	return nil
}
