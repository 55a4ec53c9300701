package node

import (
	"errors"
	"slices"

	"dsmd/internal/attach"

	"golang.org/x/sys/unix"
)

// To a program a checkpoint is one, however many reactors its daemon has. The one that leads has
// the order, and tells the others of it; each takes the pages that it serves and writes them to the
// same file, into slots that no other has. What they have taken and written the one that leads puts
// together before it answers. If one fails, all of it has failed.

// jointSaving is the checkpointer of a daemon with several reactors: what they tell each other.
type jointSaving struct{ *checkpointer }

// takeSlots has the pages of the batch go to neighbouring slots of the file, which no others have.
func (s *saving) takeSlots() {
	n := uint64(len(s.batch))
	s.slots = s.next.Add(n)
	for i, t := range s.batch {
		t.Offset = int64(s.slots-n+uint64(i)) * int64(len(t.Buf))
	}
}

// shareBegin has the other reactors take their pages.
func (k jointSaving) shareBegin(s *saving) {
	for _, o := range k.drive.partition.others() {
		part := &saving{id: s.id, base: s.base, inPlace: s.inPlace, order: s.order, starts: s.starts, bits: slices.Clone(s.bits),
			data: -1, orderFile: -1, closer: s.closer, looking: looking{copies: s.copies}, sharing: sharing{next: s.next, report: k.reporter(s)}}
		if s.data >= 0 && !s.handed {
			fd, err := unix.FcntlInt(uintptr(s.data), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				k.fail(err)
				return
			}
			part.data = fd
		}
		s.parts++
		id := s.by.id
		o.news.tell(func() { jointSaving{o.saver}.beginPart(o.programs.byID[id], part) })
	}
	s.handed = true
}

// reporter is how another reactor says how far its part of a checkpoint is. Nobody hears of one
// that is over.
func (k jointSaving) reporter(s *saving) func(func(k *checkpointer, s *saving)) {
	return func(f func(*checkpointer, *saving)) {
		k.drive.partition.tellLead(func(*Node) {
			if k.now == s && !s.over && s.by != nil {
				f(k.checkpointer, s)
			}
		})
	}
}

// beginPart takes this reactor's pages of a checkpoint, for a program; nil: it has gone.
func (k jointSaving) beginPart(by *program, part *saving) {
	part.by = by
	if s := k.now; s != nil && s.id == part.id && !s.over {
		s.bits, s.copies = part.bits, part.copies
		part.close()
	} else if err := k.openPart(part); err != nil {
		part.close()
		part.err = err
		k.reportTaken(part)
		return
	}
	k.now.begun, k.now.run, k.now.page = 1, 0, 0
}

// openPart begins a part, unless this reactor cannot.
func (k jointSaving) openPart(part *saving) error {
	switch s := k.now; {
	case part.by == nil:
		return errors.New("its program has gone")
	case s != nil && !s.over:
		return errBusy
	case part.data < 0 && !part.inPlace:
		return errors.New("it was begun here before, and has failed")
	}
	err := k.waitsForDisks(part.inPlace)
	if err == nil {
		err = k.start(part)
	}
	if err == nil {
		k.now = part
	}
	return err
}

var errBusy = errors.New("another checkpoint is under way at this node; wait until it is over")

// reportTaken says which pages this reactor has taken.
func (k jointSaving) reportTaken(part *saving) {
	bits, err := part.bits, part.err
	part.report(func(k *checkpointer, s *saving) {
		s.parts--
		if err != nil {
			k.fail(err)
		}
		for i := range bits {
			s.bits[i] |= bits[i]
		}
	})
}

// shareAwait has the other reactors say when their pages are written. how is as in OpSaved.
func (k jointSaving) shareAwait(s *saving, how uint64) {
	for _, o := range k.drive.partition.others() {
		s.parts++
		id, bits, report := s.id, slices.Clone(s.bits), k.reporter(s)
		o.news.tell(func() {
			if part := o.saver.now; part != nil && part.id == id && !part.over {
				jointSaving{o.saver}.awaitPart(part, how, bits)
			} else { // it was refused
				report(func(_ *checkpointer, s *saving) { s.parts-- })
			}
		})
	}
}

// awaitPart notes that the reactor that leads waits for a part.
func (k jointSaving) awaitPart(s *saving, how uint64, bits []uint64) {
	s.awaited, s.starved = 1, false
	switch how {
	case attach.SavedTwice:
		s.twice, s.bits = true, bits
	case attach.GiveUpSaving:
		k.fail(errGivenUp)
	}
}

// reportOver says how a part has ended.
func (k jointSaving) reportOver(part *saving, err error) {
	entries, slots := part.entries, part.slots
	part.report(func(k *checkpointer, s *saving) {
		s.parts--
		if err != nil {
			k.fail(err)
		}
		s.entries = append(s.entries, entries...)
		if s.inPlace {
			s.slots += slots
		} else {
			s.slots = max(s.slots, slots)
		}
	})
}
