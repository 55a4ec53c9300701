package pagetable_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/internal/require"
	"dsmd/internal/sigsegv"
	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
	"dsmd/pagetable"
)

// The programs of these tests are child processes: this test binary, started again with childEnv
// set. A child maps the table's memory file, opens a userfaultfd for itself, passes it back, and
// then makes the accesses it is told to, each in a thread of its own. Orders and answers are
// fixed-size packets on a socket pair.

const childEnv = "PAGETABLE_TEST_PROGRAM"

// childThreads is how many accesses a child can have waiting: each holds one of Go's Ps. More begin
// when these are over. Each P costs every child memory at its start.
const childThreads = 24

type command uint32

const (
	cmdLoad command = iota + 1
	cmdStore
	cmdRestart   // make all waiting threads start over
	cmdWriteCall // write(2) the word to a pipe: the kernel does the load
	cmdReadCall  // read(2) the value into the word: the kernel does the store
	cmdRegister  // map and register pages [Page, Page+Value), read-only if Off is 1
	cmdPopulate  // madvise(MADV_POPULATE_READ), or _WRITE if Value is 1
	cmdFork      // fork a process that only waits, and say whether it inherited the region
	cmdGarbage   // collect garbage
	cmdRemap     // map and register the whole region anew
	cmdLock      // lock all memory, what is mapped and what will be
	cmdCloseTrap // close its own userfaultfd
	// load from Value pages, one after the other, from Page on; store to them if Off is 1
	cmdScan
	// The rest is in sigsegv_program_test.go.
	cmdPanics // count the ways in which ordinary faults panic and are recovered
	cmdCrash  // fault in C code
	// Value additions by each of Off goroutines over Page pages, in a runtime that is up to
	// everything
	cmdStorm
	cmdUnmap // unmap the page behind the trap's back
	cmdStats // how often mappings were joined
	// The rest is in readonly_test.go.
	cmdUnregister // take pages [Page, Page+Value), as they were registered, out of the trap
	cmdMapGranted // map what is granted of pages [Page, Page+Value)
	cmdBareStore  // store, and don't recover from a fault
	cmdWatch      // load from Page pages Value times, each by Off goroutines, and try to store
)

// packet is an order or, with Errno, its answer.
type packet struct {
	Command command
	Errno   uint32
	ID      uint64
	Page    uint64
	Off     uint64
	Value   uint64
}

const packetBytes = 40

// setup is the first packet to a child.
type setup struct {
	Pages, PageBytes uint64
	Mode             uint64 // uffd.Mode to open in, 0 for any
	Registered       uint64 // map and register all pages at once
	Sigsegv          uint64 // trap by package sigsegv instead
	MaxSplits        uint64 // sigsegv.Config.MaxSplits
}

const setupBytes = 48

// hello is its answer: where it reserved the region, or, if not 0, how it failed.
type hello struct {
	Base  uint64
	Mode  uint64
	Errno uint64
}

const helloBytes = 24

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := childMain(); err != nil {
			fmt.Fprintln(os.Stderr, "test program:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	patience.Beside(8) // tests wait for programs, and for what must not happen
	os.Exit(m.Run())
}

func encode(v any) []byte {
	b, err := binary.Append(nil, binary.NativeEndian, v)
	if err != nil {
		panic(err)
	}
	return b
}

func decode(b []byte, v any) {
	if _, err := binary.Decode(b, binary.NativeEndian, v); err != nil {
		panic(err)
	}
}

// ---- the child's side ----

type child struct {
	sock   int
	base   uintptr
	setup  setup
	memfd  int
	fd     *uffd.FD
	segv   *sigsegv.Trap // instead of fd
	sendMu sync.Mutex

	mu      sync.Mutex
	waiting map[uint64]int // access → thread that makes it
}

// childMain is the child. Nothing in it may stop the world while an access waits, so the collector
// is off.
func childMain() error {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(childThreads)
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	c := &child{sock: 3, waiting: make(map[uint64]int)}
	buf, oob := make([]byte, setupBytes), make([]byte, unix.CmsgSpace(4))
	_, oobn, _, _, err := unix.Recvmsg(c.sock, buf, oob, 0)
	if err != nil {
		return err
	}
	decode(buf, &c.setup)
	if c.memfd, err = oneRight(oob[:oobn]); err != nil {
		return err
	}
	if err := c.attach(); err != nil {
		var errno unix.Errno
		if !errors.As(err, &errno) {
			return err
		}
		return unix.Sendmsg(c.sock, encode(hello{Errno: uint64(errno)}), nil, nil, 0)
	}
	return errors.Join(c.handOver(), c.serve())
}

// handOver passes back what the table needs.
func (c *child) handOver() error {
	if c.segv != nil {
		defer c.segv.HandedOver()
		return unix.Sendmsg(c.sock, encode(hello{Base: uint64(c.base)}), unix.UnixRights(c.segv.Handover()), nil, 0)
	}
	return unix.Sendmsg(c.sock, encode(hello{Base: uint64(c.base), Mode: uint64(c.fd.Mode())}), unix.UnixRights(c.fd.Sysfd()), nil, 0)
}

// attach reserves the region and opens the trap.
func (c *child) attach() error {
	size := uintptr(c.setup.Pages * c.setup.PageBytes)
	base, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	c.base = uintptr(base)
	modes := uffd.AllModes
	if c.setup.Mode != 0 {
		modes = []uffd.Mode{uffd.Mode(c.setup.Mode)}
	}
	if c.setup.Sigsegv != 0 {
		c.segv, err = sigsegv.Open(sigsegv.Config{Base: c.base, Bytes: size, PageBytes: uintptr(c.setup.PageBytes), MaxSplits: c.setup.MaxSplits})
	} else {
		c.fd, err = uffd.Open(modes...)
	}
	if err != nil {
		return err
	}
	if c.setup.Registered != 0 {
		return c.register(0, c.setup.Pages, false)
	}
	return nil
}

func (c *child) register(first, count uint64, readOnly bool) error {
	off, size := first*c.setup.PageBytes, uintptr(count*c.setup.PageBytes)
	at := c.at(off)
	if _, err := unix.MmapPtr(c.memfd, int64(off), at, size, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return err
	}
	region := unsafe.Slice((*byte)(at), size)
	if err := unix.Madvise(region, unix.MADV_DONTFORK); err != nil {
		return err
	}
	if c.segv != nil {
		return c.segv.Register(uintptr(at), size, readOnly)
	}
	if readOnly {
		return c.fd.RegisterReadOnly(uintptr(at), size)
	}
	return c.fd.Register(uintptr(at), size)
}

// at is the address of a byte of the region. It lies outside the Go heap, which is what makes the
// conversion sound.
func (c *child) at(off uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&[]uintptr{c.base + uintptr(off)}[0]))
}

func (c *child) serve() error {
	buf := make([]byte, packetBytes)
	for {
		n, err := unix.Read(c.sock, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err // the test has ended
		}
		var p packet
		decode(buf, &p)
		if p.Command == cmdRestart {
			c.restart()
			continue
		}
		go c.obey(p)
	}
}

func (c *child) obey(p packet) {
	runtime.LockOSThread()
	c.mu.Lock()
	c.waiting[p.ID] = unix.Gettid()
	c.mu.Unlock()
	if err := c.perform(&p); err != nil {
		var errno unix.Errno
		if !errors.As(err, &errno) {
			errno = unix.EIO
		}
		p.Errno = uint32(errno)
	}
	c.mu.Lock()
	delete(c.waiting, p.ID)
	c.mu.Unlock()
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if _, err := unix.Write(c.sock, encode(p)); err != nil {
		os.Exit(1) // the test has ended
	}
}

func (c *child) perform(p *packet) error {
	at := c.at(p.Page*c.setup.PageBytes + p.Off)
	word := unsafe.Slice((*byte)(at), 8)
	switch p.Command {
	case cmdLoad:
		return c.unlessLost(at, func() { p.Value = load((*uint64)(at)) })
	case cmdStore:
		return c.unlessLost(at, func() { store((*uint64)(at), p.Value) })
	case cmdRemap:
		if c.segv != nil {
			if err := c.segv.Unregister(c.base, uintptr(c.setup.Pages*c.setup.PageBytes)); err != nil {
				return err
			}
		}
		return c.register(0, c.setup.Pages, false)
	case cmdRegister:
		return c.register(p.Page, p.Value, p.Off == 1)
	case cmdPopulate:
		return unix.Madvise(unsafe.Slice((*byte)(at), c.setup.PageBytes), unix.MADV_POPULATE_READ+int(p.Value))
	case cmdCloseTrap:
		return c.fd.Close()
	case cmdLock:
		return unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE)
	case cmdFork:
		return c.fork(p)
	case cmdGarbage:
		runtime.GC()
	case cmdScan:
		c.scan(p)
	case cmdWriteCall, cmdReadCall:
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		defer unix.Close(ends[0])
		defer unix.Close(ends[1])
		var out [8]byte
		from, to := word, out[:]
		if p.Command == cmdReadCall {
			binary.NativeEndian.PutUint64(out[:], p.Value)
			from, to = out[:], word
		}
		if _, err := unix.Write(ends[1], from); err != nil {
			return err
		}
		if _, err := unix.Read(ends[0], to); err != nil {
			return err
		}
		p.Value = binary.NativeEndian.Uint64(out[:])
	default:
		return c.performMore(p)
	}
	return nil
}

// errnoLost stands for a memory fault at the address of an access, which is what an access to a
// lost page comes to, and a store to a read-only one.
const errnoLost = unix.EHWPOISON

// unlessLost makes an access at an address, and turns a memory fault there into errnoLost. Other
// faults are as always.
func (c *child) unlessLost(at unsafe.Pointer, access func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			if fault.Addr() != uintptr(at) {
				panic(fault)
			}
			err = errnoLost
		default:
			panic(fault)
		}
	}()
	access()
	return nil
}

// load is one load instruction. Not by sync/atomic, which under the race detector looks at the
// address by a load of its own first.
//
//go:norace
//go:noinline
func load(at *uint64) uint64 { return *at }

// store is one store instruction.
//
//go:norace
//go:noinline
func store(at *uint64, v uint64) { *at = v }

// scan touches pages in order.
func (c *child) scan(p *packet) {
	for i := range p.Value {
		word := (*uint64)(c.at((p.Page + i) * c.setup.PageBytes))
		if p.Off == 0 {
			load(word)
		} else {
			store(word, i)
		}
	}
}

// fork asks what a forked process has of the region: p.Value becomes the errno with which it
// touches it, 0 if it can. The forked process makes two system calls and nothing else.
func (c *child) fork(p *packet) error {
	vec := make([]byte, 1)
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		_, _, got := unix.RawSyscall(unix.SYS_MINCORE, c.base, uintptr(os.Getpagesize()), uintptr(unsafe.Pointer(&vec[0])))
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(got), 0, 0)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &ws, 0, nil); err != nil {
		return err
	}
	p.Value = uint64(ws.ExitStatus())
	return nil
}

// restart signals every thread that makes an access. SIGURG is what Go itself preempts by.
func (c *child) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tid := range c.waiting {
		unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
	}
}

func oneRight(oob []byte) (int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1, err
	}
	if len(msgs) != 1 {
		return -1, fmt.Errorf("%d control messages, want 1", len(msgs))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return -1, err
	}
	if len(fds) != 1 {
		return -1, fmt.Errorf("%d descriptors, want 1", len(fds))
	}
	return fds[0], nil
}

// ---- the test's side ----

// testProgram is a child process as the test sees it.
type testProgram struct {
	t    testing.TB
	cmd  *exec.Cmd
	sock int
	base uintptr
	mode uffd.Mode
	// stderr is what it has printed; to be read after Kill.
	stderr *bytes.Buffer

	mu       sync.Mutex
	lastID   uint64
	accesses map[uint64]*Access
	dead     bool
	read     chan struct{} // closed when the reader has ended
}

type programOptions struct {
	mode         uffd.Mode
	unregistered bool
	unpreempted  bool // Go's scheduler sends its threads no signals
	maxSplits    uint64
}

var errProgramEnded = errors.New("the test program has ended")

// startProgram starts a child and returns it with the userfaultfd that it opened, not attached yet.
func startProgram(t testing.TB, table pagetable.Table, opt programOptions) (*testProgram, int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	remote := os.NewFile(uintptr(pair[1]), "program")
	defer remote.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	if opt.unpreempted {
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1")
	}
	cmd.ExtraFiles = []*os.File{remote}
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &testProgram{t: t, cmd: cmd, stderr: &stderr, sock: pair[0], accesses: make(map[uint64]*Access), read: make(chan struct{})}
	s := setup{Pages: table.Pages(), PageBytes: uint64(table.PageBytes()), Mode: uint64(opt.mode), Registered: 1, MaxSplits: opt.maxSplits}
	if _, ok := table.(*pagetable.Sigsegv); ok {
		s.Sigsegv = 1
	}
	if opt.unregistered {
		s.Registered = 0
	}
	fd, err := p.greet(s, table.MemFD())
	go p.readAnswers()
	t.Cleanup(p.Kill)
	if err != nil {
		p.Kill()
		t.Fatalf("start a test program: %v; it said: %s", err, stderr.Bytes())
	}
	return p, fd
}

func (p *testProgram) greet(s setup, memFD int) (int, error) {
	if err := unix.Sendmsg(p.sock, encode(s), unix.UnixRights(memFD), nil, 0); err != nil {
		return -1, err
	}
	buf, oob := make([]byte, helloBytes), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(p.sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if n != helloBytes {
		return -1, errProgramEnded
	}
	var h hello
	decode(buf, &h)
	if h.Errno != 0 {
		return -1, fmt.Errorf("open a trap or register with it: %w", unix.Errno(h.Errno))
	}
	p.base, p.mode = uintptr(h.Base), uffd.Mode(h.Mode)
	return oneRight(oob[:oobn])
}

// readAnswers finishes accesses as the child reports them, and all that are left when it has ended.
func (p *testProgram) readAnswers() {
	defer close(p.read)
	buf := make([]byte, packetBytes)
	for {
		n, err := unix.Read(p.sock, buf)
		if err == unix.EINTR {
			continue
		}
		p.mu.Lock()
		if err != nil || n == 0 {
			p.dead = true
			for id, a := range p.accesses {
				a.Finish(0, errProgramEnded)
				delete(p.accesses, id)
			}
			p.mu.Unlock()
			return
		}
		var got packet
		decode(buf, &got)
		a := p.accesses[got.ID]
		delete(p.accesses, got.ID)
		p.mu.Unlock()
		switch unix.Errno(got.Errno) {
		case 0:
			a.Finish(got.Value, nil)
		case errnoLost:
			a.Finish(0, ErrLost)
		default:
			a.Finish(0, unix.Errno(got.Errno))
		}
	}
}

// answer waits for an access in a goroutine of its own.
func (p *testProgram) answer(a *Access) chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := a.Await()
		ended <- err
	}()
	return ended
}

// order tells the child to do something; its answer ends the access.
func (p *testProgram) order(c command, page pagetable.Page, off int, v uint64) *Access {
	a := NewAccess()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		a.Finish(0, errProgramEnded)
		return a
	}
	p.lastID++
	p.accesses[p.lastID] = a
	order := packet{Command: c, ID: p.lastID, Page: uint64(page), Off: uint64(off), Value: v}
	if _, err := unix.Write(p.sock, encode(order)); err != nil {
		delete(p.accesses, p.lastID)
		a.Finish(0, err)
	}
	return a
}

func (p *testProgram) Load(page pagetable.Page, off int) *Access {
	return p.order(cmdLoad, page, off, 0)
}

func (p *testProgram) Store(page pagetable.Page, off int, v uint64) *Access {
	return p.order(cmdStore, page, off, v)
}

func (p *testProgram) Restart() {
	if _, err := unix.Write(p.sock, encode(packet{Command: cmdRestart})); err != nil {
		p.t.Errorf("restart the accesses of a test program: %v", err)
	}
}

func (p *testProgram) Remap() {
	if _, err := p.order(cmdRemap, 0, 0, 0).Await(); err != nil {
		p.t.Errorf("map the region of a test program anew: %v", err)
	}
}

func (p *testProgram) Lock() *Access {
	require.Memlock(p.t)
	return p.order(cmdLock, 0, 0, 0)
}

// Kill ends the child and waits until it is gone. A second call does nothing.
func (p *testProgram) Kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Errorf("kill a test program: %v", err)
	}
	p.cmd.Wait() // its error is that it was killed
	<-p.read
	unix.Close(p.sock)
}

// stop returns when all threads of the child have stopped.
func (p *testProgram) stop(t testing.TB) {
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatalf("stop a test program: %v", err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(p.cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("a stopped test program reports %v, %v", status, err)
	}
}

func (p *testProgram) resume(t testing.TB) {
	if err := p.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatalf("let a test program go on: %v", err)
	}
}

// newFixture is the real back end under test.
func newFixture(t testing.TB) Fixture {
	uffdtest.Require(t)
	return fixtureOf(t, pagetable.Config{Pages: RegionPages})
}

func fixtureOf(t testing.TB, cfg pagetable.Config) Fixture {
	u, err := pagetable.NewUffd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	return Fixture{Table: u, Start: func(t testing.TB, proc pagetable.ProcID) Program {
		return attachProgram(t, u, proc, programOptions{})
	}}
}

func attachProgram(t testing.TB, u pagetable.Table, proc pagetable.ProcID, opt programOptions) *testProgram {
	t.Helper()
	p, fd := startProgram(t, u, opt)
	if err := u.Attach(proc, fd, p.base); err != nil {
		t.Fatal(err)
	}
	return p
}
