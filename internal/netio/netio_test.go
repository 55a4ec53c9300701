package netio

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
)

// connection is a TCP connection over loopback as two descriptors.
func connection(t *testing.T) (a, b int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var fds [2]int
	for i, conn := range []net.Conn{dialled, accepted} {
		if fds[i], err = Detach(conn.(*net.TCPConn)); err != nil {
			t.Fatal(err)
		}
	}
	return fds[0], fds[1]
}

// waitReadable waits until fd can be read, with a deadline.
func waitReadable(t *testing.T, fd int) {
	t.Helper()
	if !readableWithin(t, fd, patience.Or(10*time.Second)) {
		t.Fatalf("descriptor %d did not become readable", fd)
	}
}

func readable(t *testing.T, fd int) bool {
	t.Helper()
	return readableWithin(t, fd, 0)
}

// readableWithin waits for as long as wait at most. Signals, which Go's scheduler sends, do not end
// that.
func readableWithin(t *testing.T, fd int, wait time.Duration) bool {
	t.Helper()
	for deadline := time.Now().Add(wait); ; wait = max(time.Until(deadline), 0) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait/time.Millisecond))
		if err == nil {
			return n > 0
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

func TestSendAndReceive(t *testing.T) {
	a, b := connection(t)
	defer unix.Close(a)
	buf := make([]byte, 1000)
	if n, errno := Recv(b, buf); n != 0 || errno != unix.EAGAIN {
		t.Errorf("Recv of nothing: %d, %v, want EAGAIN", n, errno)
	}
	var v Vector
	var want []byte
	for _, pieces := range [][]string{{"alone"}, {"one,", "", "two"}} {
		v.Reset()
		size := 0
		for _, piece := range pieces {
			if !v.Add([]byte(piece)) {
				t.Fatal("an empty vector is full")
			}
			want = append(want, piece...)
			size += len(piece)
		}
		if n, errno := v.Send(a); n != size || errno != 0 {
			t.Fatalf("Send took %d bytes of %d: %v", n, size, errno)
		}
	}
	var got []byte
	for len(got) < len(want) {
		waitReadable(t, b)
		n, errno := Recv(b, buf)
		if errno != 0 {
			t.Fatal(errno)
		}
		got = append(got, buf[:n]...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
	unix.Close(b)
	waitReadable(t, a)
	if n, errno := Recv(a, buf); n != 0 || errno != 0 {
		t.Errorf("Recv at the end: %d, %v, want 0 bytes and no error", n, errno)
	}
}

// TestSendFull: a socket that takes nothing more says EAGAIN and does not wait; one whose peer is
// gone says so without a signal.
func TestSendFull(t *testing.T) {
	a, b := connection(t)
	defer unix.Close(a)
	var v Vector
	v.Add(make([]byte, 1<<20))
	sent := 0
	for {
		n, errno := v.Send(a)
		if errno == unix.EAGAIN {
			break
		}
		if errno != 0 {
			t.Fatal(errno)
		}
		if sent += n; sent > 1<<30 {
			t.Fatal("a socket that nobody reads took a gigabyte")
		}
	}
	// What is under way when the buffers fill up is answered a little later. From then on nothing
	// is unanswered.
	for deadline := time.Now().Add(patience.Or(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		silent, expects, err := Silence(a)
		if err != nil {
			t.Fatal(err)
		}
		if !expects {
			t.Fatal("a full socket expects no answer")
		}
		if silent == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a peer that does not read is silent for %v; its kernel is not", silent)
		}
	}
	unix.Close(b)
	waitReadable(t, a) // The reset has come.
	for range 2 {      // The first call may report the reset, from then on it is EPIPE.
		if _, errno := v.Send(a); errno != unix.ECONNRESET && errno != unix.EPIPE {
			t.Errorf("Send to a peer that is gone: %v, want ECONNRESET or EPIPE", errno)
		}
	}
}

// TestSilence: what a kernel does not answer is noticed, but not before it can have answered,
// however long nothing was sent before.
func TestSilence(t *testing.T) {
	a, b := connection(t)
	defer unix.Close(a)
	defer unix.Close(b)
	dropAll := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	err := unix.SetsockoptSockFprog(b, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &dropAll})
	if err == unix.EPERM && os.Geteuid() != 0 {
		t.Skip("this kernel lets only root filter what a socket receives")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := KeepAlive(a, time.Second, time.Second, 3); err != nil {
		t.Fatal(err)
	}
	const pause = 300 * time.Millisecond
	time.Sleep(pause)
	var v Vector
	v.Add([]byte("is anybody there"))
	start := time.Now()
	if _, errno := v.Send(a); errno != 0 {
		t.Fatal(errno)
	}
	silent, _, err := Silence(a)
	if err != nil {
		t.Fatal(err)
	}
	// Linux sends again after 200 ms.
	if took := time.Since(start); took < pause/2 && silent >= pause {
		t.Errorf("silent for %v, %v after something was sent", silent, took)
	}
	for deadline := time.Now().Add(patience.Or(10 * time.Second)); ; {
		silent, expects, err := Silence(a)
		if err != nil {
			t.Fatal(err)
		}
		if !expects {
			t.Fatal("a peer that has not answered owes no answer")
		}
		if silent >= 50*time.Millisecond {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a peer that has not answered is silent for %v", silent)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestNothingToAnswer: what was sent was answered, and nothing is expected any more.
func TestNothingToAnswer(t *testing.T) {
	a, b := connection(t)
	defer unix.Close(a)
	defer unix.Close(b)
	var v Vector
	v.Add([]byte("thanks"))
	if _, errno := v.Send(a); errno != 0 {
		t.Fatal(errno)
	}
	for deadline := time.Now().Add(patience.Or(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		silent, expects, err := Silence(a)
		if err != nil {
			t.Fatal(err)
		}
		if !expects {
			if silent != 0 {
				t.Errorf("silent for %v, and nothing to answer", silent)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a kernel does not answer")
		}
	}
}

// TestRetryWithin: the kernel takes the bound, unless it is too old to have one.
func TestRetryWithin(t *testing.T) {
	a, b := connection(t)
	defer unix.Close(a)
	defer unix.Close(b)
	err := RetryWithin(a, 1500*time.Millisecond)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unix.GetsockoptInt(a, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS); err != nil || got != 1500 {
		t.Errorf("the bound is %d ms, %v", got, err)
	}
	if err := RetryWithin(a, time.Millisecond); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a bound below what the kernel allows: %v", err)
	}
}

func TestVectorIsBounded(t *testing.T) {
	var v Vector
	for i := range MaxVector {
		if !v.Add([]byte{1}) {
			t.Fatalf("a vector is full after %d pieces, want %d", i, MaxVector)
		}
	}
	if v.Add([]byte{1}) {
		t.Error("a vector took more than MaxVector pieces")
	}
}

func TestPoller(t *testing.T) {
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	event, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer event.Close()
	a, b := connection(t)
	defer unix.Close(a)
	defer unix.Close(b)
	if err := p.Add(event.FD(), -1); err != nil {
		t.Fatal(err)
	}
	if err := p.Add(a, 7); err != nil {
		t.Fatal(err)
	}
	if n := p.Check(); n != 0 || readable(t, p.FD()) {
		t.Errorf("%d descriptors are ready, want none", n)
	}
	event.Signal()
	event.Signal()
	if n := p.Check(); n != 1 || p.At(0) != (Readiness{Token: -1, Readable: true}) || !readable(t, p.FD()) {
		t.Errorf("after Signal %d descriptors are ready, the first %+v", n, p.At(0))
	}
	event.Clear()
	if n := p.Check(); n != 0 {
		t.Errorf("after Clear %d descriptors are ready", n)
	}
	event.Clear() // Of an event that is clear: nothing happens, and nothing waits.
	if err := p.Watch(a, 7, true); err != nil {
		t.Fatal(err)
	}
	if n := p.Check(); n != 1 || p.At(0) != (Readiness{Token: 7, Writable: true}) {
		t.Errorf("of a socket with room %d are ready, the first %+v", n, p.At(0))
	}
	if err := p.Remove(a); err != nil {
		t.Fatal(err)
	}
	if n := p.Check(); n != 0 {
		t.Errorf("after Remove %d descriptors are ready", n)
	}
	if err := p.Watch(a, 7, false); err == nil {
		t.Error("Watch of a descriptor that was removed succeeded")
	}
}

func TestChangeCoreGoesRoundAndLeavesTheThreadFree(t *testing.T) {
	runtime.LockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	moved, err := ChangeCore()
	if err != nil {
		t.Fatal(err)
	}
	if want := before.Count() > 1; moved != want {
		t.Errorf("ChangeCore said %v with %d cores", moved, before.Count())
	}
	var after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &after); err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Error("the thread may not use the same cores as before")
	}
	runtime.UnlockOSThread() // only now: a thread whose cores are wrong dies with its goroutine
}

func TestCoreAfter(t *testing.T) {
	var allowed unix.CPUSet
	for _, c := range []int{2, 3, 500} {
		allowed.Set(c)
	}
	for core, want := range map[int]int{0: 2, 2: 3, 3: 500, 500: 2, 1023: 2} {
		if got := coreAfter(core, &allowed); got != want {
			t.Errorf("the core after %d is %d, want %d", core, got, want)
		}
	}
}

func TestDisplacedCountsWhoTakesTheCore(t *testing.T) {
	runtime.LockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	one.Set(currentCore())
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	stop, rival := make(chan struct{}), make(chan error)
	go func() { // a thread of its own, on the same core
		runtime.LockOSThread() // never unlocked: it ends with its core set
		err := unix.SchedSetaffinity(0, &one)
		rival <- err
		for {
			select {
			case <-stop:
				rival <- nil
				return
			default:
				Yield()
			}
		}
	}()
	if err := <-rival; err != nil {
		t.Fatal(err)
	}
	before := Displaced()
	deadline := time.Now().Add(patience.Or(10 * time.Second))
	for Displaced() < before+10 && time.Now().Before(deadline) {
		Yield()
	}
	if got := Displaced() - before; got < 10 {
		t.Errorf("displaced %d times in 10 s beside a thread that yields on the same core, want at least 10", got)
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	close(stop)
	<-rival
	runtime.UnlockOSThread()
}

func TestShortSlice(t *testing.T) {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: it ends with its slice
		before, err := unix.SchedGetAttr(0, 0)
		var length time.Duration
		if err == nil {
			length, err = ShortSlice()
		}
		var after, again *unix.SchedAttr
		if err == nil {
			after, err = unix.SchedGetAttr(0, 0)
		}
		if err == nil {
			_, err = SetSlice(length)
		}
		if err == nil {
			again, err = unix.SchedGetAttr(0, 0)
		}
		switch {
		case err != nil:
		case after.Policy != before.Policy || after.Nice != before.Nice:
			err = fmt.Errorf("the policy is %d and the niceness %d, they were %d and %d", after.Policy, after.Nice, before.Policy, before.Nice)
		case before.Runtime != 0 && before.Policy == unix.SCHED_NORMAL && after.Runtime != uint64(shortestSlice):
			// before Linux 6.12 there are no slices, and it is 0
			err = fmt.Errorf("the slice is %d ns, want %d", after.Runtime, shortestSlice)
		case again.Runtime != before.Runtime:
			err = fmt.Errorf("the slice is %d ns when that which it was is asked for, want %d", again.Runtime, before.Runtime)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTimer: the descriptor is readable from the time that was said, and no longer when another is.
func TestTimer(t *testing.T) {
	timer, err := NewTimer()
	if err != nil {
		t.Fatal(err)
	}
	defer timer.Close()
	if readable(t, timer.FD()) {
		t.Error("a timer rings that nobody has set")
	}
	const in = 5 * time.Millisecond
	began := time.Now()
	timer.Ring(in)
	if waitReadable(t, timer.FD()); time.Since(began) < in {
		t.Errorf("a timer set to %v has rung after %v", in, time.Since(began))
	}
	if timer.Ring(time.Hour); readable(t, timer.FD()) {
		t.Error("a timer that was set again is still readable")
	}
	timer.Ring(-time.Second)
	waitReadable(t, timer.FD())
	if timer.Stop(); readable(t, timer.FD()) {
		t.Error("a timer that was stopped is still readable")
	}
}

// TestUnpace has sockets with each congestion control of this kernel's: those that pace get
// another, and the others keep theirs.
func TestUnpace(t *testing.T) {
	available, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	a, b := connection(t)
	defer unix.Close(a)
	defer unix.Close(b)
	for _, name := range strings.Fields(string(available)) {
		if err := unix.SetsockoptString(a, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
			continue // not without a privilege
		}
		if err := Unpace(a); err != nil {
			t.Fatalf("a socket with %s: %v", name, err)
		}
		has, err := unix.GetsockoptString(a, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err != nil {
			t.Fatal(err)
		}
		if has != name && name != "bbr" || has == "bbr" {
			t.Errorf("a socket with %s has %s afterwards", name, has)
		}
	}
	if err := Unpace(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("of no socket: %v", err)
	}
}
