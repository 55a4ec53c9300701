package diskio

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
)

const bufBytes = 64 << 10

// makeEngine is how queues make their transfers.
var makeEngine func() (engine, error)

// both runs a test with io_uring, if the system has it, and with threads.
func both(t *testing.T, test func(t *testing.T)) {
	for name, make := range map[string]func() (engine, error){
		"io_uring": func() (engine, error) { return newDivided() },
		"threads":  func() (engine, error) { return newThreads() },
	} {
		t.Run(name, func(t *testing.T) {
			e, err := make()
			if err != nil {
				t.Logf("the system does not let this process have it: %v", err)
				return
			}
			if err := e.close(); err != nil {
				t.Fatal(err)
			}
			makeEngine = make
			test(t)
		})
	}
}

func open(t *testing.T) *Queue {
	t.Helper()
	e, err := makeEngine()
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue(bufBytes, e)
	t.Cleanup(func() {
		if q.engine != nil {
			q.Close()
		}
	})
	return q
}

// newFile makes a file and opens it with some flags more. ok: the file system has them.
func newFile(t *testing.T, flags int, contents []byte) (fd int, ok bool) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, contents, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(name, flags|unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) && flags != 0 {
		t.Logf("%s: no direct input and output here", name)
		return -1, false
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd, true
}

// filled is a buffer full of one byte.
func filled(t *testing.T, q *Queue, with byte) []byte {
	t.Helper()
	buf, err := q.Buffer()
	if err != nil {
		t.Fatal(err)
	}
	for i := range buf {
		buf[i] = with
	}
	return buf
}

// readable is whether the queue's descriptor is.
func readable(t *testing.T, q *Queue) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, 0)
		if err == nil {
			return n > 0
		}
		if err != unix.EINTR { // which is no answer: Go's runtime sends signals to its threads
			t.Fatal(err)
		}
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience.Or(10 * time.Second)); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so that %s", what)
		}
	}
}

// all submits transfers and waits until they are over.
func all(t *testing.T, q *Queue, list ...*Transfer) {
	t.Helper()
	q.Submit(list...)
	open := map[*Transfer]bool{}
	for _, tr := range list {
		open[tr] = true
	}
	for deadline := time.Now().Add(patience.Or(10 * time.Second)); len(open) > 0; {
		unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, 100)
		for _, tr := range q.Take() {
			if !open[tr] {
				t.Fatalf("a transfer at %d is over that was not under way", tr.Offset)
			}
			delete(open, tr)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d transfers are not over", len(open), len(list))
		}
	}
}

// TestThereAndBack: what is written to several files, in any order, is there, and is read back,
// with and without the page cache. The checksums are those of what was moved.
func TestThereAndBack(t *testing.T) { both(t, testThereAndBack) }

func testThereAndBack(t *testing.T) {
	const buffers = 200
	for _, flags := range []int{0, unix.O_DIRECT} {
		var fds [3]int
		for i := range fds {
			var ok bool
			if fds[i], ok = newFile(t, flags, nil); !ok {
				return
			}
		}
		q := open(t)
		var writes, reads []*Transfer
		for i := range buffers {
			for j, fd := range fds {
				with := byte(i*len(fds) + j)
				writes = append(writes, &Transfer{FD: fd, Offset: int64(i) * bufBytes, Buf: filled(t, q, with), Write: true, Sum: true, Owner: with})
				reads = append(reads, &Transfer{FD: fd, Offset: int64(i) * bufBytes, Buf: filled(t, q, with+1), Sum: true, Owner: with})
			}
		}
		mixed := writes[:len(writes)/2]
		rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		all(t, q, writes...)
		all(t, q, reads...)
		for _, tr := range append(writes, reads...) {
			want := bytes.Repeat([]byte{tr.Owner.(byte)}, bufBytes)
			if tr.Err != nil || !bytes.Equal(tr.Buf, want) || tr.CRC != crc32.Checksum(want, crc32.MakeTable(crc32.Castagnoli)) {
				t.Fatalf("at %d: %v, %d instead of %d, checksum %08x", tr.Offset, tr.Err, tr.Buf[0], want[0], tr.CRC)
			}
			q.Recycle(tr.Buf)
		}
		if got := len(q.spare); got != len(q.slabs)*slabBuffers {
			t.Errorf("%d buffers of %d slabs are spare", got, len(q.slabs))
		}
	}
}

// TestNeighbours: together go transfers of one file, in one direction, that follow each other.
func TestNeighbours(t *testing.T) { both(t, testNeighbours) }

func testNeighbours(t *testing.T) {
	at := func(fd int, offset int64, write bool) *Transfer {
		return &Transfer{FD: fd, Offset: offset, Buf: make([]byte, 10), Write: write}
	}
	long := []*Transfer{at(1, 0, false)}
	for i := range int64(2 * mostAtOnce) {
		long = append(long, at(1, 10*(i+1), false))
	}
	for _, c := range []struct {
		name string
		list []*Transfer
		want int
	}{
		{"one", []*Transfer{at(1, 0, false)}, 1},
		{"three", []*Transfer{at(1, 20, true), at(1, 30, true), at(1, 40, true)}, 3},
		{"another file", []*Transfer{at(1, 0, false), at(1, 10, false), at(2, 20, false)}, 2},
		{"the other direction", []*Transfer{at(1, 0, false), at(1, 10, true)}, 1},
		{"a gap", []*Transfer{at(1, 0, false), at(1, 10, false), at(1, 30, false)}, 2},
		{"backwards", []*Transfer{at(1, 10, false), at(1, 0, false)}, 1},
		{"too many", long, mostAtOnce},
	} {
		if got := neighbours(c.list); got != c.want {
			t.Errorf("%s: %d go together, want %d", c.name, got, c.want)
		}
	}
}

// TestEndOfFile: what lies behind the end of a file can't be read, or reads as zeros. What lies
// before it, read by the same system call, is not harmed.
func TestEndOfFile(t *testing.T) { both(t, testEndOfFile) }

func testEndOfFile(t *testing.T) {
	const size = 2*bufBytes + 100
	for _, flags := range []int{0, unix.O_DIRECT} {
		fd, ok := newFile(t, flags, bytes.Repeat([]byte{7}, size))
		if !ok {
			return
		}
		for _, pad := range []bool{false, true} { // as far as the file goes
			q := open(t)
			var reads []*Transfer
			for i := range int64(4) {
				reads = append(reads, &Transfer{FD: fd, Offset: i * bufBytes, Buf: filled(t, q, 9), Sum: true})
				if there := min(size-i*bufBytes, bufBytes); pad && there > 0 {
					reads[i].Least = int(there)
				}
			}
			all(t, q, reads...)
			for i, tr := range reads {
				if i >= 2 && !pad || i == 3 {
					if !errors.Is(tr.Err, ErrShort) {
						t.Errorf("buffer %d lies behind the end: %v", i, tr.Err)
					}
					continue
				}
				there := min(max(size-i*bufBytes, 0), bufBytes)
				want := append(bytes.Repeat([]byte{7}, there), make([]byte, bufBytes-there)...)
				if tr.Err != nil || !bytes.Equal(tr.Buf, want) || tr.CRC != crc32.Checksum(want, castagnoli) {
					t.Errorf("buffer %d, pad %t: %v, checksum %08x", i, pad, tr.Err, tr.CRC)
				}
			}
		}
	}
}

// TestErrors: each transfer has the error that it met, and those after it go on.
func TestErrors(t *testing.T) { both(t, testErrors) }

func testErrors(t *testing.T) {
	q := open(t)
	full, err := unix.Open("/dev/full", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(full)
	good, _ := newFile(t, 0, make([]byte, bufBytes))
	list := []*Transfer{
		{FD: full, Buf: filled(t, q, 1), Write: true, Sum: true},
		{FD: full, Offset: bufBytes, Buf: filled(t, q, 1), Write: true},
		{FD: -1, Buf: filled(t, q, 1), Least: 1},
		{FD: good, Buf: filled(t, q, 1)},
	}
	all(t, q, list...)
	for i, want := range []error{unix.ENOSPC, unix.ENOSPC, unix.EBADF, nil} {
		if !errors.Is(list[i].Err, want) {
			t.Errorf("transfer %d: %v, want %v", i, list[i].Err, want)
		}
	}
	at := Transfer{FD: good, Offset: 1 << 20, Buf: make([]byte, 10)}
	if err := at.Do(); !errors.Is(err, ErrShort) {
		t.Errorf("at once, behind the end: %v", err)
	}
}

// TestTell: the descriptor is readable after Tell until Take. Threads start with the first
// transfer.
func TestTell(t *testing.T) { both(t, testTell) }

func testTell(t *testing.T) {
	q := open(t)
	if readable(t, q) || q.Take() != nil {
		t.Error("there is something before anything was submitted")
	}
	q.Tell()
	if !readable(t, q) {
		t.Error("the descriptor is not readable after Tell")
	}
	if got := q.Take(); len(got) > 0 || readable(t, q) {
		t.Errorf("Take returns %d transfers, and the descriptor is readable: %t", len(got), readable(t, q))
	}
	q.Submit()
	if e, is := q.engine.(*threads); is && e.started {
		t.Error("threads run for nothing")
	}
}

// TestManyTells: who tells often before anybody takes holds up no transfer.
func TestManyTells(t *testing.T) { both(t, testManyTells) }

func testManyTells(t *testing.T) {
	fd, _ := newFile(t, 0, bytes.Repeat([]byte{7}, 64*bufBytes))
	q := open(t)
	var reads []*Transfer
	for i := range int64(64) {
		reads = append(reads, &Transfer{FD: fd, Offset: (i * 7 % 64) * bufBytes, Buf: filled(t, q, 9)})
	}
	for range 1000 {
		q.Tell()
	}
	all(t, q, reads...)
	q.Take()
	if readable(t, q) {
		t.Error("the descriptor is readable when all was taken")
	}
}

// TestCloseWaits: Close waits for what runs, and nothing touches memory after it.
func TestCloseWaits(t *testing.T) { both(t, testCloseWaits) }

func testCloseWaits(t *testing.T) {
	fd, _ := newFile(t, 0, bytes.Repeat([]byte{7}, 64*bufBytes))
	for range 50 {
		q := open(t)
		var reads []*Transfer
		for i := range int64(64) {
			reads = append(reads, &Transfer{FD: fd, Offset: (i * 7 % 64) * bufBytes, Buf: make([]byte, bufBytes), Sum: true})
		}
		q.Submit(reads...)
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		q.engine = nil
		for _, tr := range reads {
			if whole := tr.CRC != 0; whole != (tr.Buf[0] == 7) || whole != (tr.Buf[bufBytes-1] == 7) || tr.Err != nil {
				t.Fatalf("a transfer has ended: %t, and its memory has %d to %d; %v", whole, tr.Buf[0], tr.Buf[bufBytes-1], tr.Err)
			}
		}
	}
}

// stuck is an engine whose transfers end when they are let.
type stuck struct {
	engine
	let chan struct{}
}

func (s *stuck) close() error {
	<-s.let
	return s.engine.close()
}

// TestAbandon: who abandons a queue does not wait, and the memory of the transfers stays until they
// are over.
func TestAbandon(t *testing.T) { both(t, testAbandon) }

func testAbandon(t *testing.T) {
	fd, _ := newFile(t, 0, bytes.Repeat([]byte{7}, bufBytes))
	q := open(t)
	s := &stuck{q.engine, make(chan struct{})}
	q.engine = s
	buf := filled(t, q, 9)
	q.Submit(&Transfer{FD: fd, Buf: buf, Write: true})
	ended := make(chan error, 1)
	q.Abandon(func(err error) { ended <- err })
	clear(buf) // it is memory still
	if len(ended) > 0 {
		t.Error("it is over before the transfer is")
	}
	close(s.let)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(q.slabs)+len(q.spare) > 0 {
		t.Error("the memory is there still")
	}
	q.engine = nil
}

// TestHang: of some files more is wanted than is done at a time, and they do not answer. Another
// file is read all the same, and they are when they answer.
func TestHang(t *testing.T) { both(t, testHang) }

func testHang(t *testing.T) {
	const hung, each = 3, 1000
	let, hangs := make(chan struct{}), map[int]bool{}
	hang := func(fd int) {
		if hangs[fd] {
			<-let
		}
	}
	BeforeRead.Store(&hang)
	defer BeforeRead.Store(nil)
	q := open(t)
	for range hung {
		var ends [2]int // io_uring reads pipes, and waits for what they have; threads can't
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		hangs[ends[0]] = true
		goOn := sync.OnceFunc(func() { unix.Close(ends[1]) })
		defer unix.Close(ends[0])
		defer goOn()
		go func() {
			<-let
			goOn()
		}()
	}
	answer := sync.OnceFunc(func() { close(let) })
	defer answer()
	buf, left := make([]byte, 4096), 0
	for fd := range hangs {
		var reads []*Transfer
		for i := range int64(each) {
			reads = append(reads, &Transfer{FD: fd, Offset: 2 * i * 4096, Buf: buf})
		}
		q.Submit(reads...)
		left += each
	}
	good, _ := newFile(t, 0, bytes.Repeat([]byte{7}, 64*bufBytes))
	for i := range int64(64) {
		all(t, q, &Transfer{FD: good, Offset: i * bufBytes, Buf: filled(t, q, 9)})
	}
	answer()
	eventually(t, "what hung is over", func() bool { left -= len(q.Take()); return left == 0 })
}

// TestHangInKernel: it is the same where a thread of the kernel waits for each read. They are of a
// file system that has io_uring use them, into memory that nobody gives.
func TestHangInKernel(t *testing.T) { both(t, testHangInKernel) }

func testHangInKernel(t *testing.T) {
	const hung = 2 * ringGroups
	uffdtest.Require(t)
	q := open(t)
	file, err := unix.MemfdCreate("hangs", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if err := unix.Ftruncate(file, hung*4096); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(file, 0, hung*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	gives, err := uffd.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gives.Close() })
	if !gives.Mode().KernelFaults() {
		t.Skip("this process may not trap faults of the kernel, for whom the memory would be missing")
	}
	if err := gives.Register(uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory))); err != nil {
		t.Fatal(err)
	}
	var files [2]int
	for i := range files {
		if files[i], err = unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(files[i])
	}
	var reads []*Transfer
	for buf := range slices.Chunk(memory, 4096) {
		reads = append(reads, &Transfer{FD: files[0], Buf: buf, Least: 1})
	}
	q.Submit(reads...)
	all(t, q, &Transfer{FD: files[1], Buf: make([]byte, 4096), Least: 1})
	gives.Close()
	left := len(reads)
	eventually(t, "what hung is over", func() bool { left -= len(q.Take()); return left == 0 })
	if err := unix.Munmap(memory); err != nil {
		t.Error(err)
	}
}

// TestShares: a file gets a third, and all of its file system half.
func TestShares(t *testing.T) {
	const most = 300
	s := NewShares(most)
	got := map[int]int{}
	for fd := -1; fd > -100; fd-- { // those that can't be asked are of one file system
		for s.May(fd) {
			s.Take(fd, 1)
			got[fd]++
		}
	}
	if got[-1] != most/3 || got[-2] == 0 || s.Free() < most/2 {
		t.Errorf("the first file gets %d of %d, the second %d, and %d are left", got[-1], most, got[-2], s.Free())
	}
	other, _ := newFile(t, 0, nil)
	if !s.May(other) {
		t.Error("a file of another file system gets nothing")
	}
	for fd, n := range got {
		s.GiveBack(fd, n)
	}
	if s.Free() != most {
		t.Errorf("%d of %d are left when all was given back", s.Free(), most)
	}
	if len(s.files)+len(s.disks) > 0 {
		t.Errorf("what is remembered of %v would be taken for that of other files with these descriptors", s.files)
	}
}

// TestEndsLeaveTheRest: the end of some reads leaves those alone that wait.
func TestEndsLeaveTheRest(t *testing.T) {
	r, err := newRing()
	if err != nil {
		t.Skip(err)
	}
	defer r.close()
	flying, waits := &Transfer{Buf: make([]byte, 4096)}, []*Transfer{{}, {}}
	r.waiting.add([]*Transfer{flying})
	r.groups[0].list = r.waiting.next(nil)
	f := r.waiting.of(flying.FD)
	f.waiting = waits
	if r.over(0, 4096); len(f.waiting) != 2 || &f.waiting[0] != &waits[0] || len(r.finished) != 1 {
		t.Errorf("%d wait, which were copied, and %d are over", len(f.waiting), len(r.finished))
	}
	r.waiting.forget()
	r.free = r.free[:len(r.free)-1] // it was free before
}

// TestPageSize: buffers that direct input and output can't use are a bug of the caller.
func TestPageSize(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a queue has buffers of 1000 bytes")
		}
	}()
	New(1000)
}

// TestClosedByAnother: somebody closes the descriptor of a ring. That is a bug, and is told as one
// at the next transfer; the caller is not kept for ever.
func TestClosedByAnother(t *testing.T) {
	r, err := newRing()
	if err != nil {
		t.Logf("the system does not let this process have it: %v", err)
		return
	}
	q := newQueue(bufBytes, r)
	fd, _ := newFile(t, 0, nil)
	unix.Close(r.fd)
	r.fd = -1 // that number may be another's by now
	defer func() {
		if what := fmt.Sprint(recover()); !strings.Contains(what, "io_uring_enter") || !strings.Contains(what, "bad file descriptor") {
			t.Errorf("it panics with %s", what)
		}
		if err := unix.Munmap(r.rings); err != nil {
			t.Error(err)
		}
		if err := unix.Munmap(r.entries); err != nil {
			t.Error(err)
		}
	}()
	q.Submit(&Transfer{FD: fd, Buf: filled(t, q, 1)})
}
