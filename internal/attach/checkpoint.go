package attach

import (
	"fmt"
	"math/bits"

	"dsmd/internal/wire"
)

// MaxFiles bounds the files that a program has given to its daemon (OpFile) and that no call has
// taken yet.
const MaxFiles = 1 << 12

// Checkpoint is the payload of OpCheckpoint.
type Checkpoint struct {
	ID [16]byte // of this one: the same for all ranks, and of no other
	// Base is the ID of one that is whole. Pages that are as they were saved for that need not be
	// saved again. The zero Base: all are to be saved.
	Base [16]byte
	// Copies: also pages of which this node has only a copy are saved
	Copies bool
	// InPlace: what has changed is written to the files in which the pages begin
	// (Contents.Written), on whichever node they are; the call brings no file but the order.
	InPlace bool
}

// AppendCheckpoint appends the payload of OpCheckpoint.
func AppendCheckpoint(b []byte, c *Checkpoint) []byte { return wire.Append(b, c) }

// DecodeCheckpoint reads what AppendCheckpoint wrote.
func DecodeCheckpoint(b []byte) (Checkpoint, error) {
	return decoded(b, "a checkpoint", wire.Item[Checkpoint])
}

// Run is neighbouring pages of the region.
type Run struct{ First, Count uint64 }

// An Order says in a memory file which pages are to be saved, and which of them are. It begins with
// the number of runs and the runs. Then comes a bit for each page of the runs, in their order: the
// pages that are saved already, or need not be. The daemon adds those that it saves. At IndexAt it
// puts an Entry for each page that it has written, when all are.
type Order struct{ Runs []Run }

// MaxRuns bounds the runs of an order.
const MaxRuns = 1 << 16

// Pages is how many pages an order has.
func (o *Order) Pages() (n uint64) {
	for _, r := range o.Runs {
		n += r.Count
	}
	return n
}

// BitsAt is at which byte the bits of an order begin.
func (o *Order) BitsAt() int64 { return 8 + 16*int64(len(o.Runs)) }

// IndexAt is at which byte the index of an order begins.
func (o *Order) IndexAt() int64 { return o.BitsAt() + int64(o.Pages()/64+1)*8 }

// AppendOrder appends what an order begins with.
func AppendOrder(b []byte, o *Order) []byte {
	b = le.AppendUint64(b, uint64(len(o.Runs)))
	for _, r := range o.Runs {
		b = le.AppendUint64(le.AppendUint64(b, r.First), r.Count)
	}
	return b
}

// RunsIn is how many runs an order has that begins with these 8 bytes.
func RunsIn(b []byte) (int, error) {
	if len(b) != 8 || le.Uint64(b) > MaxRuns {
		return 0, fmt.Errorf("%w: the order of a checkpoint has no number of runs, or more than %d", ErrMalformed, MaxRuns)
	}
	return int(le.Uint64(b)), nil
}

// DecodeOrder reads the runs of an order, for a region of so many pages. They are in ascending
// order and do not overlap.
func DecodeOrder(b []byte, pages uint64) (o Order, err error) {
	end := uint64(0)
	for ; len(b) >= 16; b = b[16:] {
		r := Run{le.Uint64(b), le.Uint64(b[8:])}
		if r.First < end || r.Count == 0 || r.First > pages || r.Count > pages-r.First {
			return Order{}, fmt.Errorf("%w: run %d of the order of a checkpoint is %d pages from page %d on, of a region of %d", ErrMalformed, len(o.Runs), r.Count, r.First, pages)
		}
		end = r.First + r.Count
		o.Runs = append(o.Runs, r)
	}
	return o, nil
}

// Entry is what the index of an order says of a page that the daemon has written.
type Entry struct {
	Run  uint32 // of the order
	CRC  uint32 // CRC-32C of the page
	Page uint64 // of the run, from 0
	Slot uint64 // of the file, as many bytes long as a page; ZeroSlot: it is zeros, and not written
}

// ZeroSlot is the slot of a page of zeros.
const ZeroSlot = 1<<64 - 1

// EntryBytes is the length of an Entry.
const EntryBytes = 24

// AppendEntry appends an entry of an index.
func AppendEntry(b []byte, e Entry) []byte {
	b = le.AppendUint32(le.AppendUint32(b, e.Run), e.CRC)
	return le.AppendUint64(le.AppendUint64(b, e.Page), e.Slot)
}

// EntryIn reads the entry that the bytes begin with.
func EntryIn(b []byte) Entry {
	return Entry{Run: le.Uint32(b), CRC: le.Uint32(b[4:]), Page: le.Uint64(b[8:]), Slot: le.Uint64(b[16:])}
}

// Counts of OpSaved.
const (
	GiveUpSaving = 1
	SavedTwice   = 2
)

// Saved is what answers OpSaved.
type Saved struct {
	Slots   uint64 // pages in the file
	Entries uint64 // in the index
}

// AppendSaved appends the payload that answers OpSaved.
func AppendSaved(b []byte, s Saved) []byte { return wire.Append(b, &s) }

// DecodeSaved reads what AppendSaved wrote.
func DecodeSaved(b []byte) (Saved, error) { return decoded(b, "what is saved", wire.Item[Saved]) }

// Contents is the payload of OpContents. Its files are numbers that OpFile has given.
type Contents struct {
	// Table is a file with a Place for each page, or 0: the pages lie in files one behind the
	// other, in the only one or as Stripe says, from Offset on. Where both were said of the same
	// pages, first without a table, those with the zero Place are in the files.
	Table  uint32
	Files  uint32 // how many there are here; their numbers are First, First + 1, ...
	First  uint32
	Offset uint64 // a multiple of the page size
	// Bytes is how long each file is from Offset on, without a table: what its last page has behind
	// that is zeros, and the same number of pages is in each.
	Bytes uint64
	// ID is that of the checkpoint which has the pages so; zero: none has. A later one that is
	// based on it leaves out pages that nobody has touched.
	ID [16]byte
	// Written: Checkpoint.InPlace writes what has changed to the files.
	Written bool
	// Fallback: with a table. The pages do not begin so; those that are lost begin anew so, from
	// OpFallback on. It is in place of what was given for that before.
	Fallback bool
	// Readers are the nodes that have the files, in their order, for all others, too; none: each
	// node has the only file, or those of the table. A node has at most one, and there are at most
	// MaxReaders. Of each file Stripe pages come in turn.
	Readers []uint16
	Stripe  uint64
}

// contentsBytes is the length of a Contents without Readers.
const contentsBytes = 12 + 3*8 + 16 + 2 + 2

// MaxReaders is how many nodes a Contents can name.
const MaxReaders = (MaxContribution - contentsBytes) / 2

func (c *Contents) fields() []any {
	return []any{
		&c.Table, &c.First, &c.Files, &c.Offset, &c.Bytes, &c.Stripe, &c.ID, &c.Written, &c.Fallback, wire.List(&c.Readers, MaxReaders, wire.Item),
	}
}

// AppendContents appends the payload of OpContents.
func AppendContents(b []byte, c *Contents) []byte { return wire.Append(b, c.fields()...) }

// DecodeContents reads what AppendContents wrote.
func DecodeContents(b []byte) (Contents, error) {
	c, err := decoded(b, "the contents of pages", (*Contents).fields)
	if err == nil {
		err = c.check()
	}
	return c, err
}

// check tells what no Contents can be.
func (c *Contents) check() error {
	const most = 1 << 62
	switch {
	case c.Fallback && (c.Table == 0 || c.ID == [16]byte{}):
		return fmt.Errorf("%w: the contents of pages to begin anew with, without a table or an ID", ErrMalformed)
	case c.Files > MaxFiles || c.Table == 0 && (len(c.Readers) == 0 && c.Files == 0 || c.Files > 1):
		return fmt.Errorf("%w: the contents of pages in %d files", ErrMalformed, c.Files)
	case c.Offset > most || c.Bytes > most || c.Stripe > most:
		return fmt.Errorf("%w: the contents of pages at byte %d, in files of %d bytes, %d pages of each in turn", ErrMalformed, c.Offset, c.Bytes, c.Stripe)
	case c.Table != 0 && (len(c.Readers) > 0 || c.Written), len(c.Readers) > 1 && c.Stripe == 0:
		return fmt.Errorf("%w: the contents of pages in files of %d nodes, %d pages of each in turn, with the table %d", ErrMalformed, len(c.Readers), c.Stripe, c.Table)
	}
	return nil
}

// Place is where the contents of a page are that it begins with. The zero Place: it begins as it
// would without the table, with zeros if nothing else was said.
type Place struct {
	CRC  uint32 // CRC-32C of the page
	File uint32 // of the files of a Contents, from 1; 0: the page is in none
	Slot uint64 // of the file, as many bytes long as a page; ZeroSlot, without a file: it is zeros
}

// PlaceBytes is the length of a Place.
const PlaceBytes = 16

// AppendPlace appends a place.
func AppendPlace(b []byte, p Place) []byte {
	return le.AppendUint64(le.AppendUint32(le.AppendUint32(b, p.CRC), p.File), p.Slot)
}

// PlaceIn reads the place that the bytes begin with. files is how many there are.
func PlaceIn(b []byte, files int, pageBytes uint64) (Place, error) {
	p := Place{CRC: le.Uint32(b), File: le.Uint32(b[4:]), Slot: le.Uint64(b[8:])}
	if p == (Place{Slot: ZeroSlot}) {
		return p, nil
	}
	if high, offset := bits.Mul64(p.Slot, pageBytes); int64(p.File) > int64(files) || high != 0 || offset > 1<<62 {
		return Place{}, fmt.Errorf("%w: the contents of a page in slot %d of file %d of %d", ErrMalformed, p.Slot, p.File, files)
	}
	return p, nil
}
