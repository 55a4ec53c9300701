package dsm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/uffd"

	"dsmd/internal/uffd/uffdtest"
)

// The tests here touch shared memory, so they run a program in another process, whose page faults
// the fake serves, or does not. The program is this test binary, told by programEnv which of
// programs to be.

const programEnv = "DSM_TEST_PROGRAM"

var programs = map[string]func(*Cluster){
	"load and store": programLoadAndStore,
	"leave":          programLeave,
	"flags":          programFlags,
	"stuck":          programStuck,
	"wait":           programWait,
	"grace":          programGrace,
	"close in time":  programCloseInTime,
	"hook":           programHook,
	"close in hook":  programHook,
	"guard":          programGuard,
	"guard at last":  programGuardAtLast,
	"unguarded":      programUnguarded,
	"guarded close":  programGuardedClose,
	"board":          programBoard,
	"allocates":      programAllocates,
}

func TestMain(m *testing.M) {
	name := os.Getenv(programEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	var opts []Option
	switch name {
	case "grace":
		opts = append(opts, WithLossGrace(200*time.Millisecond))
	case "close in time":
		opts = append(opts, WithLossGrace(time.Hour))
	case "hook":
		opts = append(opts, WithOnLoss(func(err error) { fmt.Println("told:", errors.Is(err, ErrLost)) }))
	case "close in hook":
		opts = append(opts, WithLossGrace(time.Hour), WithOnLoss(func(error) {
			fmt.Println("closed:", errors.Is(told.Load().Close(), ErrLost))
			close(hooked)
		}))
	}
	c, err := Join(context.Background(), opts...)
	if err != nil {
		panic(err)
	}
	programs[name](c)
	os.Exit(0)
}

// must is for programs: the test sees the panic in the output.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// program is a running process.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// start starts a program, with files from descriptor 3 on.
func (f *fake) start(name string, files ...*os.File) *program {
	f.t.Helper()
	p := &program{t: f.t, cmd: exec.Command(os.Args[0])}
	p.cmd.ExtraFiles = files
	p.cmd.Env = append(os.Environ(), programEnv+"="+name, envSocket+"="+f.socket)
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	p.stdout = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { p.cmd.Process.Kill() })
	f.t.Cleanup(func() {
		late.Stop()
		if p.cmd.ProcessState == nil { // the test has failed before end
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
	})
	return p
}

// end waits for the program to end and returns its status and the rest of what it wrote.
func (p *program) end() (status int, stdout, stderr string) {
	p.t.Helper()
	var rest bytes.Buffer
	if _, err := p.stdout.WriteTo(&rest); err != nil {
		p.t.Fatal(err)
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode(), rest.String(), p.stderr.String()
}

// serve settles the faults of a program with zero pages, as a daemon does that is the first to
// touch all of them, but those of lost pages.
func serve(t *testing.T, lost ...uintptr) func(*uffd.FD, <-chan struct{}) {
	return func(fd *uffd.FD, stop <-chan struct{}) {
		eachFault(fd, stop, func(fault uffd.Fault) {
			page := fault.Addr &^ (testPage - 1)
			settle(t, fd, page, slices.Contains(lost, page))
		})
	}
}

// settle settles the faults at a page, with zeros or as lost.
func settle(t *testing.T, fd *uffd.FD, page uintptr, lost bool) {
	try := func() unix.Errno {
		if lost {
			_, errno := fd.Poison(page, testPage)
			return errno
		}
		_, errno := fd.Copy(page, make([]byte, testPage), 0)
		return errno
	}
	errno := try()
	for errno == unix.EAGAIN { // the program is mapping something
		errno = try()
	}
	if errno == unix.EEXIST {
		errno = fd.Wake(page, testPage)
	}
	if errno != 0 && errno != unix.ESRCH && errno != unix.ENOENT {
		// it has ended, or freed the page
		t.Errorf("settle a fault at %#x: %v", page, errno)
	}
}

// eachFault reports faults until stop is closed.
func eachFault(fd *uffd.FD, stop <-chan struct{}, f func(uffd.Fault)) {
	var buffer uffd.Buffer
	for {
		select {
		case <-stop:
			return
		default:
		}
		// The time is how long stop may go unnoticed.
		unix.Poll([]unix.PollFd{{Fd: int32(fd.Sysfd()), Events: unix.POLLIN}}, 20)
		faults, err := fd.ReadFaults(&buffer, uffd.MaxFaults)
		if err != nil {
			panic(err)
		}
		for _, fault := range faults {
			f(fault)
		}
	}
}

func programLoadAndStore(c *Cluster) {
	numbers := must(Alloc[int64](context.Background(), c, "numbers", 4096))
	for i, v := range numbers {
		if v != 0 {
			panic(fmt.Sprintf("element %d is %d before anybody wrote it", i, v))
		}
		numbers[i] = int64(i)
	}
	sum := int64(0)
	for _, v := range numbers {
		sum += v
	}
	counter := must(Isolate[atomic.Int64](context.Background(), c, "counter"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				counter.Add(1)
			}
		})
	}
	all.Wait()
	runtime.GC()
	fmt.Println(sum, counter.Load())
	if err := c.Close(); err != nil {
		panic(err)
	}
}

func TestProgramLoadsAndStores(t *testing.T) {
	uffdtest.Require(t)
	f := newFake(t, 1, func(f *fake) { f.trapped = serve(t) })
	status, out, stderr := f.start("load and store").end()
	if status != 0 || out != "8386560 8000\n" {
		t.Errorf("status %d, output %q\n%s", status, out, stderr)
	}
}

// touch loads a byte and reports whether that faulted.
func touch(p *byte) (faulted bool) {
	defer func() { faulted = recover() != nil }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	sink = *p
	return false
}

var sink byte

func programLeave(c *Cluster) {
	a, b := must(Alloc[byte](context.Background(), c, "a", 1)), must(Alloc[byte](context.Background(), c, "b", 1))
	a[0], b[0] = 1, 1
	before := touch(&a[0])
	if err := Free(context.Background(), c, a); err != nil {
		panic(err)
	}
	afterFree, other := touch(&a[0]), touch(&b[0])
	if err := c.Close(); err != nil {
		panic(err)
	}
	fmt.Println(before, afterFree, other, touch(&b[0]))
}

// TestFreedAndClosedMemoryFaults: a stray access must end in SIGSEGV, not in memory that
// belongs to somebody else.
func TestFreedAndClosedMemoryFaults(t *testing.T) {
	uffdtest.Require(t)
	f := newFake(t, 1, func(f *fake) { f.trapped = serve(t) })
	status, out, stderr := f.start("leave").end()
	if status != 0 || out != "false true false true\n" {
		t.Errorf("status %d, output %q; want access before, and to other memory, and a fault after Free and after Close\n%s", status, out, stderr)
	}
}

func programFlags(c *Cluster) {
	p := must(Isolate[byte](context.Background(), c, "p"))
	*p = 1
	maps := must(os.ReadFile("/proc/self/smaps"))
	_, mine, _ := strings.Cut(string(maps), fmt.Sprintf("%x-", addressOf(p)))
	_, flags, _ := strings.Cut(mine, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	fmt.Println(flags)
}

// TestMappingIsNotInheritedOrDumped looks at what the kernel says of the mapping.
func TestMappingIsNotInheritedOrDumped(t *testing.T) {
	uffdtest.Require(t)
	f := newFake(t, 1, func(f *fake) { f.trapped = serve(t) })
	status, out, stderr := f.start("flags").end()
	flags := strings.Fields(out)
	for flag, what := range map[string]string{"sh": "shared", "dc": "not copied on fork", "dd": "not dumped", "um": "trapped when missing", "uw": "trapped when protected", "ui": "trapped when minor"} {
		if !strings.Contains(" "+strings.Join(flags, " ")+" ", " "+flag+" ") {
			t.Errorf("the mapping is not %s (%s): %v, status %d\n%s", what, flag, flags, status, stderr)
		}
	}
}

// programStuck holds its only P in a fault that nobody serves: copy cannot be preempted.
func programStuck(c *Cluster) {
	runtime.GOMAXPROCS(1)
	s := must(Alloc[byte](context.Background(), c, "s", 1<<20))
	private := make([]byte, len(s))
	copy(private, s)
	fmt.Println("read", private[0])
}

// TestProgramIsStuckWhenTheDaemonDies: a thread that waits for a page when the daemon dies must
// neither hang for ever nor go on with zeros, also when no other goroutine can run.
func TestProgramIsStuckWhenTheDaemonDies(t *testing.T) {
	uffdtest.Require(t)
	faulted := make(chan struct{})
	var once sync.Once
	f := newFake(t, 1, func(f *fake) {
		f.trapped = func(fd *uffd.FD, stop <-chan struct{}) {
			eachFault(fd, stop, func(uffd.Fault) { once.Do(func() { close(faulted) }) })
		}
	})
	p := f.start("stuck")
	select {
	case <-faulted:
	case <-time.After(patience):
		t.Fatal("the program has not touched its memory")
	}
	f.die()
	status, out, stderr := p.end()
	if status != ExitLost || out != "" || !strings.Contains(stderr, "dsm: rank 0: the cluster is lost") || !strings.Contains(stderr, "status 70") {
		t.Errorf("status %d, output %q\n%s", status, out, stderr)
	}
}

func programWait(c *Cluster) {
	must(Alloc[byte](context.Background(), c, "s", 1))
	err := NewBarrier(c, "never", Parties(2)).Wait(context.Background())
	fmt.Println("still here:", err)
	select {}
}

func TestProgramEndsWhenTheClusterIsLost(t *testing.T) {
	uffdtest.Require(t)
	f := newFake(t, 1)
	p := f.start("wait")
	f.awaitCalls(attach.OpArrive, 1)
	if err := f.program(0).conn.Write(attach.AppendLost(nil, "node 3 (10.0.0.3) does not answer")); err != nil {
		t.Fatal(err)
	}
	status, _, stderr := p.end()
	if status != ExitLost || !strings.Contains(stderr, "node 3 (10.0.0.3) does not answer") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d\n%s", status, stderr)
	}
}

// programGrace has one goroutine wait for a page and another report the loss.
func programGrace(c *Cluster) {
	s := must(Alloc[byte](context.Background(), c, "s", 1))
	go func() {
		fmt.Println("read", s[0])
	}()
	err := NewBarrier(c, "never", Parties(2)).Wait(context.Background())
	fmt.Println("lost:", errors.Is(err, ErrLost))
	select {}
}

// TestNoZerosAfterTheDaemonDied: in the time of grace the load must go on waiting. The kernel would
// let it go through, with a page of zeros, if the program had not kept its userfaultfd. What else
// the program prints it may have no time for.
func TestNoZerosAfterTheDaemonDied(t *testing.T) {
	uffdtest.Require(t)
	f := newFake(t, 1)
	p := f.start("grace")
	f.awaitCalls(attach.OpArrive, 1)
	f.die()
	status, out, stderr := p.end()
	if status != ExitLost || out != "" && out != "lost: true\n" {
		t.Errorf("status %d, output %q\n%s", status, out, stderr)
	}
}

func programCloseInTime(c *Cluster) {
	must(Alloc[byte](context.Background(), c, "s", 1))
	err := NewBarrier(c, "never", Parties(2)).Wait(context.Background())
	fmt.Println("lost:", errors.Is(err, ErrLost))
	fmt.Println("closed:", errors.Is(c.Close(), ErrLost))
}

// TestCloseAfterLossIsAnOrderlyEnd: a program that closes within the grace goes on without shared
// memory.
func TestCloseAfterLossIsAnOrderlyEnd(t *testing.T) {
	uffdtest.Require(t)
	f := newFake(t, 1)
	p := f.start("close in time")
	f.awaitCalls(attach.OpArrive, 1)
	f.die()
	status, out, stderr := p.end()
	if status != 0 || out != "lost: true\nclosed: true\n" {
		t.Errorf("status %d, output %q\n%s", status, out, stderr)
	}
}

// told is the cluster of which a hook is told, and hooked is closed when it has closed that.
var (
	told   atomic.Pointer[Cluster]
	hooked = make(chan struct{})
)

func programHook(c *Cluster) {
	told.Store(c)
	must(Alloc[byte](context.Background(), c, "s", 1))
	_ = NewBarrier(c, "never", Parties(2)).Wait(context.Background())
	<-hooked
}

// TestHookOfALoss: a hook is told before the program ends, and can close the cluster, so that it
// does not end.
func TestHookOfALoss(t *testing.T) {
	for name, want := range map[string]struct {
		status int
		out    string
	}{"hook": {ExitLost, "told: true\n"}, "close in hook": {0, "closed: true\n"}} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, 1)
			p := f.start(name)
			f.awaitCalls(attach.OpArrive, 1)
			f.die()
			if status, out, stderr := p.end(); status != want.status || out != want.out {
				t.Errorf("status %d, output %q\n%s", status, out, stderr)
			}
		})
	}
}

// TestHookWithoutMemory: it is told once, and not by Close.
func TestHookWithoutMemory(t *testing.T) {
	f := newFake(t, 2)
	lost := make(chan error, 2)
	hook := WithOnLoss(func(err error) { lost <- err })
	closed, c := f.join(hook), f.join(hook)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	f.die()
	wantError(t, <-lost, ErrLost, "closed the connection")
	if err := c.Close(); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	select {
	case err := <-lost:
		t.Errorf("told again: %v", err)
	default:
	}
}
