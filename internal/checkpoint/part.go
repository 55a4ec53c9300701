package checkpoint

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
)

// EntryBytes is the length of an Entry in an index.
const EntryBytes = 24

// Zeros is the slot of a page of zeros, which lies in no part.
const Zeros = math.MaxUint64

// Entry is what the index of a part says of a page.
type Entry struct {
	Memory uint32 // its number in Manifest.Memories
	CRC    uint32 // CRC-32C of the page; of Zeros it is not looked at
	Page   uint64 // of the memory, from 0
	Slot   uint64 // of the part, or Zeros
}

// castagnoli is the table of CRC-32C, which processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC is the CRC-32C of a page, as an Entry has it.
func CRC(page []byte) uint32 { return crc32.Checksum(page, castagnoli) }

func (e Entry) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, e.Memory)
	b = binary.LittleEndian.AppendUint32(b, e.CRC)
	b = binary.LittleEndian.AppendUint64(b, e.Page)
	return binary.LittleEndian.AppendUint64(b, e.Slot)
}

// entryIn reads the entry that the bytes begin with.
func entryIn(b []byte) Entry {
	le := binary.LittleEndian
	return Entry{Memory: le.Uint32(b), CRC: le.Uint32(b[4:]), Page: le.Uint64(b[8:]), Slot: le.Uint64(b[16:])}
}

// indexBuffer is how much of an index is written or read at a time, in bytes: whole entries.
const indexBuffer = 40000 * EntryBytes

// PartFile is a part that is being written. Its methods belong to one goroutine. It ends with
// Finish or Abort.
type PartFile struct {
	disk disk
	path string
	part Part
	file file // nil when it is closed
}

// CreatePart makes the file of the part that a rank writes of a checkpoint. sequence is what Next
// said. It needs no lock: the job's other ranks call it, too, while one of them holds the lock. It
// fails if the file exists.
func (s *Store) CreatePart(sequence uint64, rank int) (*PartFile, error) {
	if !validSequence(sequence) || rank < 0 || rank >= MaxRanks {
		return nil, fmt.Errorf("checkpoint: a part of sequence %d and rank %d; 1 to %d and 0 to %d are possible", sequence, rank, uint64(MaxSequence), MaxRanks-1)
	}
	name := PartName(sequence, rank)
	path := filepath.Join(s.dir, name)
	f, err := s.disk.create(path)
	if err != nil {
		return nil, writeError("create the part", path, err)
	}
	return &PartFile{disk: s.disk, path: path, part: Part{File: name, Sequence: sequence, Rank: rank}, file: f}, nil
}

// File is the file, for the pages: that of slot i is to be written to byte i * PageBytes, by
// whomever, and before Finish. The PartFile closes it.
func (p *PartFile) File() *os.File { return p.file.(realFile).File }

// Finish writes the index behind the pages, makes the file durable and closes it. slots is how many
// the file has; those without an entry are waste. An entry names a slot that no other has, or
// Zeros. What Finish returns belongs into the manifest.
//
// A descriptor of the file that writes directly (O_DIRECT) stops doing so. After an error the file
// is removed: this checkpoint cannot be completed, and the next one has another sequence.
func (p *PartFile) Finish(pageBytes int, slots uint64, entries iter.Seq[Entry]) (Part, error) {
	if err := p.finish(pageBytes, slots, entries); err != nil {
		_ = p.Abort() // Sweep removes what is left
		return Part{}, err
	}
	err := p.file.Close()
	p.file = nil
	if err == nil {
		err = p.disk.syncDir(filepath.Dir(p.path))
	}
	if err != nil {
		_ = p.disk.remove(p.path) // as above
		return Part{}, writeError("close, and make durable that there is,", p.path, err)
	}
	return p.part, nil
}

// Abort closes the file and removes it. It does nothing after Finish or Abort.
func (p *PartFile) Abort() error {
	if p.file == nil {
		return nil
	}
	closed := p.file.Close()
	p.file = nil
	if err := p.disk.remove(p.path); err != nil {
		return writeError("remove the part", p.path, err)
	}
	if closed != nil {
		return writeError("close the part", p.path, closed)
	}
	return nil
}

// finish writes the index and makes the contents durable.
func (p *PartFile) finish(pageBytes int, slots uint64, entries iter.Seq[Entry]) error {
	if pageBytes < MinPageBytes || pageBytes > MaxPageBytes {
		return fmt.Errorf("checkpoint: part %s: pages of %d bytes, want %d to %d", p.path, pageBytes, MinPageBytes, MaxPageBytes)
	}
	start, err := partBytes(pageBytes, slots, 0)
	if err != nil {
		return fmt.Errorf("checkpoint: part %s: %w", p.path, err)
	}
	size, err := p.file.size()
	if err != nil {
		return writeError("look at", p.path, err)
	}
	if size < start {
		return fmt.Errorf("checkpoint: part %s has %d bytes of pages, and %d slots need %d: not all were written", p.path, size, slots, start)
	}
	if err := p.file.buffered(); err != nil {
		return writeError("end direct writes to", p.path, err)
	}
	p.part.Slots = slots
	if err := p.writeIndex(int64(start), entries); err != nil {
		return err
	}
	if p.part.Bytes, err = partBytes(pageBytes, slots, p.part.Entries); err != nil {
		return fmt.Errorf("checkpoint: part %s: %w", p.path, err)
	}
	if err := p.file.Truncate(int64(p.part.Bytes)); err != nil {
		return writeError("cut off what is behind the index of", p.path, err)
	}
	if err := p.file.sync(); err != nil {
		return writeError("make durable", p.path, err)
	}
	return nil
}

// writeIndex writes the entries to an offset, and counts them.
func (p *PartFile) writeIndex(offset int64, entries iter.Seq[Entry]) error {
	taken := make([]uint64, p.part.Slots/64+1)
	var b []byte // grows to indexBuffer
	flush := func() error {
		if err := writeAll(p.file, b, offset); err != nil {
			return writeError("write the index of", p.path, err)
		}
		p.part.IndexCRC = crc32.Update(p.part.IndexCRC, castagnoli, b)
		offset += int64(len(b))
		b = b[:0]
		return nil
	}
	for e := range entries {
		if e.Slot != Zeros {
			if e.Slot >= p.part.Slots {
				return fmt.Errorf("checkpoint: part %s: page %d of memory %d is in slot %d, of %d", p.path, e.Page, e.Memory, e.Slot, p.part.Slots)
			}
			word, bit := &taken[e.Slot/64], uint64(1)<<(e.Slot%64)
			if *word&bit != 0 {
				return fmt.Errorf("checkpoint: part %s: page %d of memory %d is in slot %d, and so is another", p.path, e.Page, e.Memory, e.Slot)
			}
			*word |= bit
		}
		p.part.Entries++
		if b = e.append(b); len(b) == indexBuffer {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(b) == 0 {
		return nil
	}
	return flush()
}

// open opens a part for reading. It has the size that the manifest says.
func (p Part) open(dir string) (*os.File, error) {
	path := filepath.Join(dir, p.File)
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	if size != p.Bytes {
		f.Close()
		return nil, fmt.Errorf("%s has %d bytes, want %d: it is not complete, or not that of this checkpoint", path, size, p.Bytes)
	}
	return f, nil
}

// checkIndex reads the index of a part and compares its CRC.
func (p Part) checkIndex(f io.ReaderAt) error {
	crc := uint32(0)
	err := p.readIndex(f, func(b []byte) error {
		crc = crc32.Update(crc, castagnoli, b)
		return nil
	})
	if err == nil && crc != p.IndexCRC {
		err = fmt.Errorf("the CRC of its index is %08x, want %08x: it was altered", crc, p.IndexCRC)
	}
	return err
}

// eachEntry calls visit with each entry of the index, in the order of the file. The slots are those
// of the part, or Zeros.
func (p Part) eachEntry(f io.ReaderAt, visit func(Entry) error) error {
	return p.readIndex(f, func(b []byte) error {
		for ; len(b) > 0; b = b[EntryBytes:] {
			e := entryIn(b)
			if e.Slot != Zeros && e.Slot >= p.Slots {
				return fmt.Errorf("its index has page %d of memory %d in slot %d, of %d", e.Page, e.Memory, e.Slot, p.Slots)
			}
			if err := visit(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// readIndex calls visit with the bytes of the index, whole entries at a time.
func (p Part) readIndex(f io.ReaderAt, visit func([]byte) error) error {
	rest := EntryBytes * p.Entries
	offset := int64(p.Bytes - rest)
	b := make([]byte, min(rest, indexBuffer))
	for rest > 0 {
		b = b[:min(rest, indexBuffer)]
		if _, err := f.ReadAt(b, offset); err != nil {
			return fmt.Errorf("its index cannot be read: %w", err)
		}
		if err := visit(b); err != nil {
			return err
		}
		offset += int64(len(b))
		rest -= uint64(len(b))
	}
	return nil
}
