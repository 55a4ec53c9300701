package node

import (
	"encoding/binary"
	"fmt"

	"dsmd/pagetable"
)

// storageMark is a bit of the first byte of each frame between storages, which no message of the
// protocol has, nor one of the agreement.
const storageMark = 0x40

// storageKind says what a frame is.
type storageKind uint8

const (
	readPages   storageKind = iota + 1 // read these for me
	pageRead                           // here is one
	writePage                          // write this one for me
	pageWritten                        // it is
	storageKindEnd
)

// storageFrame is what storages say to each other.
type storageFrame struct {
	kind   storageKind
	ticket uint32
	page   pagetable.Page
	count  uint32 // readPages: how many
	zeros  bool   // pageRead, writePage: the page is zeros, and does not come along
	failed string // pageRead, pageWritten: why not; "" if so
}

const storageHeader = 1 + 1 + 4 + 8 + 4

func (f *storageFrame) append(b []byte) []byte {
	flag := byte(0)
	if f.zeros {
		flag = 1
	}
	b = append(b, storageMark|byte(f.kind), flag)
	b = binary.LittleEndian.AppendUint32(b, f.ticket)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.page))
	b = binary.LittleEndian.AppendUint32(b, f.count)
	return append(b, f.failed[:min(len(f.failed), 1<<10)]...)
}

// decodeStorage reads a frame of a peer, which may say anything.
func decodeStorage(b []byte, pages uint64, payload bool) (f storageFrame, err error) {
	if len(b) < storageHeader {
		return f, fmt.Errorf("node: a frame about files of %d bytes", len(b))
	}
	f = storageFrame{kind: storageKind(b[0] &^ storageMark), zeros: b[1] != 0, ticket: binary.LittleEndian.Uint32(b[2:]),
		page: pagetable.Page(binary.LittleEndian.Uint64(b[6:])), count: binary.LittleEndian.Uint32(b[14:]), failed: string(b[storageHeader:])}
	carries := (f.kind == pageRead && f.failed == "" || f.kind == writePage) && !f.zeros
	switch {
	case f.kind == 0 || f.kind >= storageKindEnd:
		err = fmt.Errorf("node: a frame about files of unknown kind %d", f.kind)
	case uint64(f.page) >= pages || f.kind == readPages && (f.count == 0 || f.count > mostRun || uint64(f.count) > pages-uint64(f.page)):
		err = fmt.Errorf("node: a frame about %d pages of files from page %d on, of a region of %d", f.count, f.page, pages)
	case payload != carries:
		err = fmt.Errorf("node: a frame about files of kind %d that does not say whether a page came with it", f.kind)
	}
	return f, err
}
