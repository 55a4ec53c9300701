package node

import (
	"errors"
	"fmt"

	"dsmd/internal/attach"
	"dsmd/internal/diskio"
	"dsmd/pagetable"
	"dsmd/pagetable/backing"
)

// Buffer implements snapshot.Sink.
func (k *checkpointer) Buffer(urgent bool) []byte {
	s := k.now
	most := onTheWay
	if urgent {
		most = mostOnTheWay
	}
	if s.inPlace {
		most = inPlaceOnTheWay
	}
	pageBytes := k.table.PageBytes()
	if (s.flying+1)*pageBytes > most || !urgent && s.fetching*pageBytes >= fetchedOnTheWay {
		s.starved = true
		return nil
	}
	b, err := k.io.Buffer()
	if err != nil {
		s.starved = true
		return nil
	}
	s.flying++
	return b
}

// Recycle implements snapshot.Sink.
func (k *checkpointer) Recycle(buf []byte) {
	k.now.flying--
	k.io.Recycle(buf)
}

// Take implements snapshot.Sink.
func (k *checkpointer) Take(page pagetable.Page, buf []byte) {
	s := k.now
	if s.inPlace {
		k.takeInPlace(s, page, buf)
		return
	}
	if isZero(buf) {
		k.Recycle(buf)
		s.enter(page, 0, attach.ZeroSlot)
		return
	}
	s.batch = append(s.batch, &diskio.Transfer{FD: s.data, Buf: buf, Write: true, Sum: true, Owner: placed{page: page}})
	if len(s.batch)*len(buf) >= atOnce {
		k.submit(s)
	}
}

// Fetch implements snapshot.Sink, for pages in the spill file: the reactor does not wait for its
// disk.
func (k *checkpointer) Fetch(page pagetable.Page, buf []byte) (bool, error) {
	s, store := k.now, k.drive.exec.store
	if !backing.InFile(store, page) {
		return false, nil
	}
	arrived := k.arrives(s, page, buf)
	err := backing.Copy(store, page, func(contents []byte, why error) {
		s.fetching--
		k.fetching--
		arrived(contents, why)
	})
	if err != nil {
		return false, err
	}
	s.fetching++
	k.fetching++
	return true, nil
}

// arrives goes on with a page that somebody else reads. The contents are not valid for long.
func (k *checkpointer) arrives(s *saving, page pagetable.Page, buf []byte) func(contents []byte, err error) {
	return func(contents []byte, err error) {
		if k.now == s && !s.over { // else it was given up, and the buffers are gone
			copy(buf, contents)
		}
		k.copied(s, page, buf, err)
	}
}

// takeInPlace has a page written where it begins.
func (k *checkpointer) takeInPlace(s *saving, page pagetable.Page, buf []byte) {
	at, node, is := k.origins.of(page)
	switch {
	case !is || !k.origins.isWritten(page):
		k.Recycle(buf)
		if is {
			k.fail(fmt.Errorf("page %d is in no file that it could be written to", page))
		}
	case node == k.origins.self:
		s.batch = append(s.batch, &diskio.Transfer{FD: at.FD, Offset: at.Offset, Buf: buf, Write: true, Owner: placed{page, at}})
		if len(s.batch)*len(buf) >= atOnce {
			k.submit(s)
		}
	default:
		k.storage.write(page, node, buf, func(err error) { k.writtenThere(s, page, err) })
		k.io.Recycle(buf)
	}
}

// writtenThere notes that another node has written a page, or could not.
func (k *checkpointer) writtenThere(s *saving, page pagetable.Page, err error) {
	if k.now != s || s.over {
		return // it was given up
	}
	s.flying--
	if err != nil {
		k.fail(fmt.Errorf("write page %d: %w", page, err))
	} else {
		s.slots++
	}
	k.goOn(s)
}

// submit has the pages written that wait for others.
func (k *checkpointer) submit(s *saving) {
	if !s.inPlace {
		s.takeSlots()
	}
	k.io.Submit(s.batch...)
	clear(s.batch)
	s.batch = s.batch[:0]
}

// Lost implements snapshot.Sink.
func (k *checkpointer) Lost(page pagetable.Page) {
	k.fail(fmt.Errorf("page %d was freed while it was being saved", page))
}

// copyMore begins to read pages that are in other files and not in memory, as many as there is room
// for, and reports whether any are left.
func (k *checkpointer) copyMore(s *saving) bool {
	var reads []*diskio.Transfer
	for len(s.copied) > 0 {
		page := s.copied[0]
		at, node, is := k.origins.of(page)
		if node != k.origins.self && k.far >= k.mostFar() {
			s.starved = true // until one of its own has come
			break
		}
		buf := k.Buffer(false)
		if buf == nil {
			break
		}
		s.copied = s.copied[1:]
		switch {
		case !is:
			clear(buf)
			k.Take(page, buf)
		case node == k.origins.self:
			reads = append(reads, &diskio.Transfer{FD: at.FD, Offset: at.Offset, Buf: buf, Least: at.Least, Sum: at.Check, Owner: placed{page, at}})
		default:
			arrived := k.arrives(s, page, buf)
			k.far++
			k.storage.read(page, node, func(contents []byte, err error, over func()) {
				k.far--
				arrived(contents, err)
				over()
			})
		}
	}
	k.io.Submit(reads...)
	return len(s.copied) > 0
}

// placed is a page that is read from a mapping's file, or written there, or written to the
// checkpoint's own.
type placed struct {
	page pagetable.Page
	at   backing.Location // in a mapping's file, which stays open meanwhile
}

// copied goes on with a page that was read from another file.
func (k *checkpointer) copied(s *saving, page pagetable.Page, buf []byte, err error) {
	switch {
	case k.now != s || s.over: // it was given up, and the buffers are gone
	case err != nil || s.err != nil:
		k.Recycle(buf)
		k.fail(fmt.Errorf("read page %d, which is not in memory: %w", page, err))
		k.goOn(s)
	default:
		k.Take(page, buf)
		k.goOn(s)
	}
}

// waitsForDisks is why no other checkpoint can begin: of those that were given up too much is under
// way.
func (k *checkpointer) waitsForDisks(inPlace bool) error {
	switch {
	case k.stuck.Load() >= mostStuck:
		return fmt.Errorf("%d checkpoints were given up, and the disk has not taken yet what was being written of them; wait until it has", mostStuck)
	case k.fetching*k.table.PageBytes() >= mostStuck*fetchedOnTheWay:
		return errors.New("checkpoints were given up, and the disk of the spill file has not given yet what was being read for them; wait until it has")
	case k.far >= k.mostFar()/2 && !inPlace: // what goes to its own place is here
		return errors.New("checkpoints were given up, and other nodes have not sent yet what they were asked to read for them; wait until they have")
	}
	return nil
}

// mostFar is how many pages may be asked of other nodes at a time: with more, and what programs
// want, this node would ask for more than it may (storage.want). A checkpoint has half of that at
// least, so when it waits for room some of its own are on their way.
func (k *checkpointer) mostFar() int { return k.drive.intake.window.most }

// diskQueue is a *diskio.Queue.
type diskQueue interface {
	FD() int
	Buffer() ([]byte, error)
	Recycle([]byte)
	Submit(...*diskio.Transfer)
	Take() []*diskio.Transfer
	Close() error
	Abandon(over func(error))
}

func newDiskQueue(bufBytes int) (diskQueue, error) {
	q, err := diskio.New(bufBytes)
	if err != nil {
		return nil, err
	}
	return q, nil
}
