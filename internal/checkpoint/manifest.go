package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Format and Version are what a manifest of this package begins with.
const (
	Format  = "dsmd checkpoint"
	Version = 1
)

// Limits of what a manifest may say. They keep sums within 64 bits, and a file that somebody else
// wrote from using up the memory.
const (
	MinPageBytes    = 512
	MaxPageBytes    = 16 << 20
	MaxMemoryBytes  = 1 << 56 // of all memories
	MaxMemories     = 1 << 20
	MaxNameBytes    = 4 << 10  // of the name of a memory
	MaxTypeBytes    = 64 << 10 // of the text of a type
	MaxProgramBytes = 16 << 20
	MaxParts        = 1 << 22
	// maxManifestBytes is far more than MaxProgramBytes, and the parts of a chain of large jobs.
	maxManifestBytes = 1 << 30
	// maxPartBytes leaves room to add in 64 bits.
	maxPartBytes = 1 << 62
)

// Manifest describes a checkpoint. What it says is checked when it is written, and when it is read.
// Reading a Manifest is safe from any goroutine; changing it is not.
type Manifest struct {
	Format   string `json:"format"`  // Commit sets it
	Version  int    `json:"version"` // Commit sets it
	Sequence uint64 `json:"sequence"`
	// ID is 32 hexadecimal digits that no other checkpoint has. Commit draws it if it is "".
	ID string `json:"id"`
	// Time is when it was taken, in UTC. Commit sets it if it is zero.
	Time      time.Time `json:"time"`
	PageBytes int       `json:"page_bytes"` // a power of two, 512 to 16 MiB
	Ranks     int       `json:"ranks"`      // of the job that wrote it, 1 to 65536
	// Base is the sequence that this one is incremental to. 0: this one is whole.
	Base uint64 `json:"base"`
	// Memories are numbered by their place here. Those of an incremental checkpoint begin with
	// those of its base, which are the same, because indexes use the numbers.
	Memories []Memory `json:"memories"`
	Program  []byte   `json:"program"` // what the program saved of its own; at most 16 MiB
	// Parts are all that are needed, in ascending order of their sequence. Those of an incremental
	// checkpoint begin with those of its base.
	Parts []Part `json:"parts"`

	dir string // where the manifest lies; "" before Commit
}

// Memory is one allocation of a job.
type Memory struct {
	Name      string `json:"name"`             // 1 to 4096 bytes of UTF-8; no other memory has it
	Type      string `json:"type"`             // of an element, for people
	TypeHash  uint64 `json:"type_hash,string"` // of an element
	ElemBytes uint64 `json:"element_bytes"`
	Count     uint64 `json:"count"` // elements
	// Begins says with what the pages begin that have no entry: "", with zeros; else as it says,
	// with what is in no checkpoint. At most 64 KiB of UTF-8.
	Begins string `json:"begins,omitempty"`
}

// Pages is how many pages the memory has: at least one, as an allocation does.
func (m Memory) Pages(pageBytes int) uint64 {
	all := m.ElemBytes * m.Count
	return max((all+uint64(pageBytes)-1)/uint64(pageBytes), 1)
}

// elements are those that lie on a page, in whole or in part. ok is false if none does.
func (m Memory) elements(page uint64, pageBytes int) (first, last uint64, ok bool) {
	if m.ElemBytes == 0 || m.Count == 0 {
		return 0, 0, false
	}
	start := page * uint64(pageBytes)
	first, last = start/m.ElemBytes, (start+uint64(pageBytes)-1)/m.ElemBytes
	return first, min(last, m.Count-1), first < m.Count
}

// Part is what a manifest says of a part. PartFile.Finish makes it.
type Part struct {
	File     string `json:"file"` // PartName(Sequence, Rank)
	Sequence uint64 `json:"sequence"`
	Rank     int    `json:"rank"`
	Slots    uint64 `json:"slots"`   // pages in the file
	Entries  uint64 `json:"entries"` // in the index
	Bytes    uint64 `json:"bytes"`   // of the file
	IndexCRC uint32 `json:"index_crc32c"`
}

// Path is that of the manifest file. It is "" for a Manifest that was neither loaded nor committed.
func (m *Manifest) Path() string {
	if m.dir == "" {
		return ""
	}
	return filepath.Join(m.dir, ManifestName(m.Sequence))
}

// MemoryBytes is the size of all memories.
func (m *Manifest) MemoryBytes() (n uint64) {
	for _, x := range m.Memories {
		n += x.ElemBytes * x.Count
	}
	return n
}

// PartBytes is the size of all parts that are needed, and own that of the parts of this sequence.
func (m *Manifest) PartBytes() (all, own uint64) {
	for _, p := range m.Parts {
		all += p.Bytes
		if p.Sequence == m.Sequence {
			own += p.Bytes
		}
	}
	return all, own
}

const (
	// maxChain is from how many sequences parts may come. More mean more files to open and to keep.
	maxChain = 16
	// maxGrowth is how many times the bytes that are needed all parts may have.
	maxGrowth = 3
	// maxParts is how many parts there may be: so many files may be given to a daemon at a time
	// (attach.MaxFiles).
	maxParts = 1 << 12
)

// WholeNext reports whether the checkpoint after m should be whole rather than incremental: m has
// parts of more than 16 sequences, or with those of another sequence there might be more than 4096,
// or its parts have more than 3 times the bytes that are still needed. What is needed is estimated
// without reading an index: it is at least what the largest sequence wrote, unless pages have
// become zeros since. So the answer comes too early rather than too late.
func WholeNext(m *Manifest) bool {
	bySequence := map[uint64]uint64{}
	all, most := uint64(0), uint64(0)
	for _, p := range m.Parts {
		bySequence[p.Sequence] += p.Bytes
		all += p.Bytes
		most = max(most, bySequence[p.Sequence])
	}
	return len(bySequence) > maxChain || len(m.Parts)+m.Ranks > maxParts || all > maxGrowth*most
}

// validID reports whether an id has 32 digits. There is no regular expression, since every program
// would compile it when it starts.
func validID(id string) bool { return len(id) == 32 && strings.Trim(id, "0123456789abcdef") == "" }

// check checks everything that a manifest says by itself.
func (m *Manifest) check() error {
	switch {
	case m.Format != Format:
		return fmt.Errorf("its format is %q, want %q", m.Format, Format)
	case m.Version != Version:
		return fmt.Errorf("%w %d, want %d", ErrVersion, m.Version, Version)
	case !validSequence(m.Sequence):
		return fmt.Errorf("sequence %d; 1 to %d are possible", m.Sequence, uint64(MaxSequence))
	case !validID(m.ID):
		return fmt.Errorf("id %q, want 32 hexadecimal digits in lower case", m.ID)
	case m.PageBytes < MinPageBytes || m.PageBytes > MaxPageBytes || m.PageBytes&(m.PageBytes-1) != 0:
		return fmt.Errorf("pages of %d bytes, want a power of two from %d to %d", m.PageBytes, MinPageBytes, MaxPageBytes)
	case m.Ranks < 1 || m.Ranks > MaxRanks:
		return fmt.Errorf("%d ranks; 1 to %d are possible", m.Ranks, MaxRanks)
	case m.Base >= m.Sequence:
		return fmt.Errorf("sequence %d is incremental to %d, which is not earlier", m.Sequence, m.Base)
	case len(m.Program) > MaxProgramBytes:
		return fmt.Errorf("%d bytes of the program's own, want at most %d: put large data into shared memory", len(m.Program), MaxProgramBytes)
	}
	if err := m.checkMemories(); err != nil {
		return err
	}
	return m.checkParts()
}

func (m *Manifest) checkMemories() error {
	if len(m.Memories) > MaxMemories {
		return fmt.Errorf("%d memories, want at most %d", len(m.Memories), MaxMemories)
	}
	names, sum := map[string]bool{}, uint64(0)
	for i, x := range m.Memories {
		over, all := bits.Mul64(x.ElemBytes, x.Count)
		switch {
		case x.Name == "" || len(x.Name) > MaxNameBytes || !utf8.ValidString(x.Name):
			return fmt.Errorf("the name of memory %d is %.80q (%d bytes), want 1 to %d bytes of UTF-8", i, x.Name, len(x.Name), MaxNameBytes)
		case names[x.Name]:
			return fmt.Errorf("two memories are called %q", x.Name)
		case len(x.Type) > MaxTypeBytes || !utf8.ValidString(x.Type):
			return fmt.Errorf("the type of memory %q has %d bytes, want at most %d, of UTF-8", x.Name, len(x.Type), MaxTypeBytes)
		case len(x.Begins) > MaxTypeBytes || !utf8.ValidString(x.Begins):
			return fmt.Errorf("what memory %q begins with is told in %d bytes, want at most %d, of UTF-8", x.Name, len(x.Begins), MaxTypeBytes)
		case over != 0 || all > MaxMemoryBytes-sum:
			return fmt.Errorf("with memory %q, which has %d elements of %d bytes, there are more than %d bytes of memory", x.Name, x.Count, x.ElemBytes, uint64(MaxMemoryBytes))
		}
		names[x.Name] = true
		sum += all
	}
	return nil
}

func (m *Manifest) checkParts() error {
	if len(m.Parts) > MaxParts {
		return fmt.Errorf("%d parts, want at most %d", len(m.Parts), MaxParts)
	}
	files, sum := map[string]bool{}, uint64(0)
	for i, p := range m.Parts {
		if err := p.check(m.PageBytes); err != nil {
			return fmt.Errorf("part %d of its list, %.80q: %w", i, p.File, err)
		}
		isOwn := p.Sequence == m.Sequence
		sum += p.Bytes // at most maxPartBytes each
		switch {
		case sum > maxPartBytes:
			return fmt.Errorf("its parts have more than %d bytes", uint64(maxPartBytes))
		case files[p.File]:
			return fmt.Errorf("part %s is listed twice", p.File)
		case i > 0 && p.Sequence < m.Parts[i-1].Sequence:
			return fmt.Errorf("part %s is listed behind one of sequence %d, want the oldest first", p.File, m.Parts[i-1].Sequence)
		case !isOwn && p.Sequence > m.Base:
			return fmt.Errorf("part %s belongs neither to sequence %d nor to its base (%d)", p.File, m.Sequence, m.Base)
		case isOwn && p.Rank >= m.Ranks:
			return fmt.Errorf("part %s is of rank %d, of %d ranks", p.File, p.Rank, m.Ranks)
		}
		files[p.File] = true
	}
	return nil
}

// check checks what a manifest says of a part. A name is what follows from sequence and rank, so it
// cannot lead out of the directory.
func (p Part) check(pageBytes int) error {
	if !validSequence(p.Sequence) || p.Rank < 0 || p.Rank >= MaxRanks || p.File != PartName(p.Sequence, p.Rank) {
		return fmt.Errorf("that is not the name of the part of sequence %d and rank %d", p.Sequence, p.Rank)
	}
	size, err := partBytes(pageBytes, p.Slots, p.Entries)
	if err == nil && size != p.Bytes {
		err = fmt.Errorf("%d slots and %d entries make %d bytes, and it says %d", p.Slots, p.Entries, size, p.Bytes)
	}
	return err
}

// partBytes is the size of a part.
func partBytes(pageBytes int, slots, entries uint64) (uint64, error) {
	over1, pages := bits.Mul64(uint64(pageBytes), slots)
	over2, index := bits.Mul64(EntryBytes, entries)
	if over1 != 0 || over2 != 0 || pages > maxPartBytes || index > maxPartBytes || pages+index > maxPartBytes {
		return 0, fmt.Errorf("%d slots of %d bytes and %d entries are more than %d bytes", slots, pageBytes, entries, uint64(maxPartBytes))
	}
	return pages + index, nil
}

// The end of a manifest is the checksum of everything before it.
const sealStart, sealEnd = ",\n  \"checksum\": \"sha256:", "\"\n}\n"

// sealBytes is how long the end is.
const sealBytes = len(sealStart) + 2*sha256.Size + len(sealEnd)

// encode makes the file. It has been checked.
func (m *Manifest) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	if b.Len()+sealBytes > maxManifestBytes {
		return nil, fmt.Errorf("a manifest of %d bytes, want at most %d", b.Len(), maxManifestBytes)
	}
	return seal(bytes.TrimSuffix(b.Bytes(), []byte("\n}\n"))), nil
}

// seal appends the end.
func seal(body []byte) []byte {
	sum := sha256.Sum256(body)
	return slices.Concat(body, []byte(sealStart), []byte(hex.EncodeToString(sum[:])), []byte(sealEnd))
}

// errSeal: the checksum is missing, or another.
var errSeal = errors.New("its last line is not the checksum of what is above: it was altered, or is not complete")

// decodeManifest reads what encode has made. Errors wrap ErrVersion or ErrDamaged.
func decodeManifest(file []byte) (*Manifest, error) {
	body := file[:max(len(file)-sealBytes, 0)]
	if !bytes.Equal(seal(body), file) {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, errSeal)
	}
	body = append(body[:len(body):len(body)], "\n}"...)
	// Another version may have other fields.
	var is struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(body, &is); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if is.Format == Format && is.Version != Version {
		return nil, fmt.Errorf("%w %d, this program knows %d: use the release of dsmd that wrote it, or a later one", ErrVersion, is.Version, Version)
	}
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return &m, nil
}
