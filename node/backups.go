package node

import (
	"fmt"
	"slices"

	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"
)

// backups are the contents of pages of replicated memory as they were last committed: memory of this node's own, apart from the pages that
// programs can touch. There are no more of them than pages are in use, and none where nothing is replicated.
type backups struct {
	pages map[pagetable.Page][]byte // nil: zeros
	spare [][]byte                  // of pages that were freed, at most maxSpareBackups
}

// maxSpareBackups bounds the buffers that wait to be used again: 4 MiB of pages of the least size.
const maxSpareBackups = 1 << 10

// keep notes a new backup of a page, with room for contents or of zeros, and returns where the contents go.
func (b *backups) keep(page pagetable.Page, pageBytes int, zero bool) []byte {
	if b.pages == nil {
		b.pages = map[pagetable.Page][]byte{}
	}
	buf := b.pages[page]
	switch last := len(b.spare) - 1; {
	case zero:
		b.recycle(buf)
		buf = nil
	case buf == nil && last >= 0:
		buf, b.spare = b.spare[last], b.spare[:last]
	case buf == nil:
		buf = make([]byte, pageBytes)
	}
	b.pages[page] = buf
	return buf
}

func (b *backups) recycle(buf []byte) {
	if buf != nil && len(b.spare) < maxSpareBackups {
		b.spare = append(b.spare, buf)
	}
}

// forget drops the backups of a run of pages that is freed.
func (b *backups) forget(first pagetable.Page, count uint64) {
	for page, buf := range b.pages {
		if page >= first && uint64(page-first) < count {
			b.recycle(buf)
			delete(b.pages, page)
		}
	}
}

// keepBackup keeps what has come with a message, or what is in a page of this node that no program can store to now.
func (n *Node) keepBackup(page pagetable.Page, f *protocol.Effect) {
	buf := n.backups.keep(page, n.table.PageBytes(), f.Zero)
	n.count.backups.Store(int64(len(n.backups.pages)))
	switch {
	case f.Zero:
	case f.Message.Kind == protocol.Backup:
		copy(buf, n.arrived.payload.Bytes())
	default:
		if err := n.table.Read(page, buf); err != nil {
			n.breakDown(fmt.Errorf("node: read page %d for its backup: %w", page, err))
		}
	}
}

// sendBackup grants a page from its backup, or copies the backup to another node.
func (n *Node) sendBackup(m *protocol.Message) {
	if m.Kind == protocol.Backup {
		n.count.backupsSent.Add(1)
	} else {
		n.count.restored.Add(1)
	}
	n.sendGrants()
	payload := n.net.Lease(transport.NodeID(m.To))
	if buf := n.backups.pages[pagetable.Page(m.Object.Page())]; buf != nil {
		copy(payload.Bytes(), buf)
	} else {
		clear(payload.Bytes())
	}
	n.post(m, n.unlessZero(m, payload))
}

// backupOf is a copy of a page's backup, nil if that is zeros.
func (n *Node) backupOf(page pagetable.Page) []byte {
	n.count.restored.Add(1)
	return slices.Clone(n.backups.pages[page])
}
