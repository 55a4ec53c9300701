package dsm

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/checkpoint"
	"dsmd/internal/memfile"
)

// memoryOrder is the memory file by which a daemon is told what to save, and tells what it has
// saved (attach.Order).
type memoryOrder struct {
	fd    int
	order attach.Order
	of    []uint32 // of each run: which of the manifest's memories it is
}

func newMemoryOrder(list []*allocation, pageBytes uintptr) (*memoryOrder, error) {
	o := &memoryOrder{}
	for i, m := range list {
		o.order.Runs = append(o.order.Runs, attach.Run{First: uint64(m.offset / pageBytes), Count: uint64(m.bytes / pageBytes)})
		o.of = append(o.of, uint32(i))
	}
	slices.SortFunc(o.of, func(a, b uint32) int { return int(int64(o.order.Runs[a].First) - int64(o.order.Runs[b].First)) })
	slices.SortFunc(o.order.Runs, func(a, b attach.Run) int { return int(int64(a.First) - int64(b.First)) })
	size := uint64(o.order.IndexAt()) + o.order.Pages()*attach.EntryBytes
	var err error
	if o.fd, err = memfile.Create("dsm-checkpoint", size); err != nil {
		return nil, err
	}
	_, err = unix.Pwrite(o.fd, attach.AppendOrder(nil, &o.order), 0)
	return o, err
}

func (o *memoryOrder) close() { unix.Close(o.fd) }

// readBits reads which pages are saved.
func (o *memoryOrder) readBits() ([]byte, error) {
	b := make([]byte, o.order.IndexAt()-o.order.BitsAt())
	n, err := unix.Pread(o.fd, b, o.order.BitsAt())
	if err == nil && n != len(b) {
		err = fmt.Errorf("%d bytes of %d are there", n, len(b))
	}
	return b, err
}

func (o *memoryOrder) writeBits(b []byte) error {
	_, err := unix.Pwrite(o.fd, b, o.order.BitsAt())
	return err
}

// missing are the pages of the region that the bits do not have.
func (o *memoryOrder) missing(all []byte) func(yield func(page uint64) bool) {
	return func(yield func(page uint64) bool) {
		at := uint64(0)
		for _, r := range o.order.Runs {
			for p := range r.Count {
				if all[at/8]&(1<<(at%8)) == 0 && !yield(r.First+p) {
					return
				}
				at++
			}
		}
	}
}

// entries are those of the index that the daemon has left, as the part's index has them.
func (o *memoryOrder) entries(n uint64) (func(yield func(checkpoint.Entry) bool), error) {
	b := make([]byte, n*attach.EntryBytes)
	for at := 0; at < len(b); {
		got, err := unix.Pread(o.fd, b[at:], o.order.IndexAt()+int64(at))
		if err != nil || got == 0 {
			return nil, fmt.Errorf("the daemon's index has %d bytes of %d: %w", at, len(b), err)
		}
		at += got
	}
	return func(yield func(checkpoint.Entry) bool) {
		for at := 0; at < len(b); at += attach.EntryBytes {
			e := attach.EntryIn(b[at:])
			if !yield(checkpoint.Entry{Memory: o.of[e.Run], CRC: e.CRC, Page: e.Page, Slot: e.Slot}) {
				return
			}
		}
	}, nil
}
