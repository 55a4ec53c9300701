package diskio

import (
	"errors"
	"hash/crc32"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrShort is the error of a transfer that the system has made in part only.
var ErrShort = errors.New("diskio: only a part was transferred: the file ends there, or the disk is full")

// castagnoli is the polynomial of CRC-32C, for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Transfer moves memory to a place in a file, or what is there into memory.
type Transfer struct {
	FD     int
	Offset int64  // in bytes; of a file opened with O_DIRECT a multiple of the system's page size
	Buf    []byte // not empty; for O_DIRECT as Queue.Buffer returns it
	Write  bool   // from memory to the file
	// Least is how many bytes of a read must be there, where the file may end before all of Buf:
	// the rest is zeros. 0: all. Less is ErrShort.
	Least int
	Sum   bool // CRC is wanted
	Owner any  // the caller's

	// Set when the transfer is over.
	Err error  // as the system says, or ErrShort
	CRC uint32 // the CRC-32C of Buf, if Sum is set and there is no error
}

// Do makes a transfer at once. Any goroutine may call it.
func (t *Transfer) Do() error {
	move([]*Transfer{t})
	return t.Err
}

// neighbours is how many of the first transfers can be made by one system call. Preconditions:
// there is one.
func neighbours(list []*Transfer) int {
	n, first := 1, list[0]
	for end := first.Offset + int64(len(first.Buf)); n < min(len(list), mostAtOnce); n++ {
		next := list[n]
		if next.FD != first.FD || next.Write != first.Write || next.Offset != end {
			break
		}
		end += int64(len(next.Buf))
	}
	return n
}

// bytesOf is how many bytes transfers move.
func bytesOf(list []*Transfer) (n int) {
	for _, t := range list {
		n += len(t.Buf)
	}
	return n
}

// WriteDelay is how many nanoseconds each write takes longer. Only tests set it, to have a slow
// disk.
var WriteDelay atomic.Int64

// BeforeRead is called before each read of a file that io_uring does not make, if it is set. Only
// tests set it, to have a disk that hangs.
var BeforeRead atomic.Pointer[func(fd int)]

// move makes transfers that are neighbours. If one fails it goes on with the next.
func move(list []*Transfer) {
	call := unix.Preadv
	if list[0].Write {
		call = unix.Pwritev
		if d := WriteDelay.Load(); d > 0 {
			time.Sleep(time.Duration(d))
		}
	} else if f := BeforeRead.Load(); f != nil {
		(*f)(list[0].FD)
	}
	bufs := make([][]byte, len(list))
	for i, t := range list {
		bufs[i] = t.Buf
	}
	for len(list) > 0 {
		first := list[0]
		n, err := call(first.FD, bufs, first.Offset)
		if err == unix.EINTR {
			continue
		}
		done := settle(list, n, err)
		list, bufs = list[done:], bufs[done:]
	}
}

// settle finishes those of neighbouring transfers that are over when the system has moved n bytes
// of them, or none because of an error, and returns how many are: at least one. Of the next one a
// part may be moved, which is moved again, from its start: direct input and output can't go on in
// the middle.
func settle(list []*Transfer, n int, err error) (done int) {
	for done < len(list) && n >= len(list[done].Buf) {
		n -= len(list[done].Buf)
		list[done].finish(nil)
		done++
	}
	if done == 0 {
		if err == nil {
			err = list[0].short(n)
		}
		list[0].finish(err)
		done = 1
	}
	return done
}

// short deals with a transfer of which the system has moved so many bytes only.
func (t *Transfer) short(n int) error {
	if t.Write || t.Least == 0 || n < t.Least {
		return ErrShort
	}
	// A disk that fails in the middle gives a part, too, which the size of the file tells apart.
	// The kernel knows it, while the file system may be another process that does not answer.
	var file unix.Statx_t
	err := unix.Statx(t.FD, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_SIZE, &file)
	if err != nil || int64(file.Size) > t.Offset+int64(n) {
		return ErrShort
	}
	clear(t.Buf[n:])
	return nil
}

// finish ends a transfer.
func (t *Transfer) finish(err error) {
	t.Err = err
	if t.Sum && err == nil {
		t.CRC = crc32.Checksum(t.Buf, castagnoli)
	}
}
