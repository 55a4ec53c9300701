package dsm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
	"dsmd/internal/uffd"
)

// wantError checks an error's sentinel and that its text has all of the parts.
func wantError(t *testing.T, err, is error, parts ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error %v is not %v", err, is)
		return
	}
	for _, part := range append(parts, "dsm: ") {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func TestJoin(t *testing.T) {
	f := newFake(t, 3, func(f *fake) { f.welcome.Node, f.welcome.Nodes = 1, 2 })
	t.Setenv(envSocket, f.socket)
	t.Setenv(envRank, "2")
	t.Setenv(envSize, "3")
	c, err := Join(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.Rank() != 2 || c.Size() != 3 || c.Node() != 1 || c.Nodes() != 2 || c.PageBytes() != testPage || c.Transport() != "fake" {
		t.Errorf("rank %d of %d on node %d of %d, pages of %d bytes, over %s", c.Rank(), c.Size(), c.Node(), c.Nodes(), c.PageBytes(), c.Transport())
	}
	stats, err := c.Stats(within(t))
	if err != nil || stats.Faults.Read != 7 {
		t.Errorf("Stats: %v, %v", stats, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	f.await("a clean end", func() bool { return f.programs[0].bye && f.programs[0].ended })
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.programs[0]
	if p.hello.PID != uint32(os.Getpid()) || p.hello.Program != filepath.Base(os.Args[0]) {
		t.Errorf("the daemon was told %+v", p.hello)
	}
	if uffd.Features(p.trap.Features)&uffd.Needed != uffd.Needed {
		t.Errorf("the daemon was told of features %v", uffd.Features(p.trap.Features))
	}
}

func TestJoinWithoutADaemon(t *testing.T) {
	t.Setenv(envSocket, "")
	_, err := Join(within(t))
	wantError(t, err, ErrNoDaemon, envSocket, "dsmd run")

	path := filepath.Join(t.TempDir(), "none.sock")
	_, err = Join(within(t), WithSocket(path))
	wantError(t, err, ErrNoDaemon, path, "dsmd serve", "dsmd run")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the kernel's reason is lost: %v", err)
	}

	// A socket file that a dead daemon left.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	_, err = Join(within(t), WithSocket(path))
	wantError(t, err, ErrNoDaemon, path, "dsmd serve")
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the kernel's reason is lost: %v", err)
	}
	if _, err := Join(within(t), WithSocket(strings.Repeat("x", 200))); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("a socket name of 200 bytes: %v", err)
	}
}

func TestJoinWithABadEnvironment(t *testing.T) {
	f := newFake(t, 2)
	for _, c := range []struct{ name, value string }{{envRank, "first"}, {envRank, "-1"}, {envSize, "0"}, {envSize, "many"}, {envSize, "3"}} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			_, err := Join(within(t), WithSocket(f.socket))
			if err == nil || !strings.Contains(err.Error(), c.name+"=") || !strings.Contains(err.Error(), "unset") {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := Join(within(t), WithRank(-1)); err == nil || !strings.Contains(err.Error(), "WithRank(-1)") {
		t.Errorf("WithRank(-1): %v", err)
	}
	if _, err := Join(within(t), WithLossGrace(-1)); err == nil || !strings.Contains(err.Error(), "negative") {
		t.Errorf("WithLossGrace(-1): %v", err)
	}
	var j joining
	if err := WithLossGrace(math.MaxInt64)(&j); err != nil || j.grace+watchMargin < time.Hour {
		t.Errorf("the longest time: %v, and with the margin %v", err, j.grace+watchMargin)
	}
}

func TestJoinRefused(t *testing.T) {
	for _, c := range []struct {
		code attach.RefuseCode
		want error
	}{{attach.RefuseOther, ErrRefused}, {attach.RefuseRank, ErrRefused}, {attach.RefuseVersion, ErrVersion}, {attach.RefuseTrap, ErrNoTrap}, {99, ErrRefused}} {
		t.Run(fmt.Sprint(c.code), func(t *testing.T) {
			f := newFake(t, 1, func(f *fake) { f.refuse = &attach.Refuse{Code: c.code, Reason: "because of the weather"} })
			_, err := Join(within(t), WithSocket(f.socket))
			wantError(t, err, c.want, "because of the weather", f.socket)
		})
	}
}

func TestJoinWithAStrangeDaemon(t *testing.T) {
	// Daemons whose Welcome can't be accepted.
	for name, c := range map[string]struct {
		spoil func(*attach.Welcome)
		want  error
		parts []string
	}{
		"version":         {func(w *attach.Welcome) { w.Version = 99 }, ErrVersion, []string{"99", fmt.Sprint(attach.Version), "same release"}},
		"trap":            {func(w *attach.Welcome) { w.Trap = "mouse" }, ErrNoTrap, []string{"mouse", "--trap uffd"}},
		"pages":           {func(w *attach.Welcome) { w.PageBytes = 4095 }, attach.ErrMalformed, []string{"4095"}},
		"beyond the file": {func(w *attach.Welcome) { w.RegionBytes = testRegion + testPage }, nil, []string{"memory file", fmt.Sprint(testRegion)}},
		"small pages": {func(w *attach.Welcome) { w.PageBytes, w.RegionBase, w.RegionBytes = 512, testBase+512, testPage }, nil,
			[]string{"whole pages"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, 1, func(f *fake) { c.spoil(&f.welcome) })
			_, err := Join(within(t), WithSocket(f.socket))
			if err == nil {
				t.Fatal("joined")
			}
			if c.want == nil {
				c.want = err
			}
			wantError(t, err, c.want, c.parts...)
		})
	}
	// Daemons that say something else first.
	for name, c := range map[string]struct {
		first func(*attach.Conn)
		want  error
		part  string
	}{
		"hangs up":   {func(*attach.Conn) {}, ErrNoDaemon, "is it a dsmd"},
		"no dsmd":    {func(c *attach.Conn) { c.Write([]byte("SSH-2.0-OpenSSH\r\n")) }, attach.ErrMalformed, "@"},
		"Ready":      {func(c *attach.Conn) { c.Write(attach.AppendReady(nil)) }, nil, "Welcome was due"},
		"Lost":       {func(c *attach.Conn) { c.Write(attach.AppendLost(nil, "node 3 died")) }, ErrLost, "node 3 died"},
		"half":       {func(c *attach.Conn) { c.Write(attach.AppendLost(nil, "node 3 died")[:12]) }, nil, "unexpected EOF"},
		"no file":    {func(c *attach.Conn) { w := goodWelcome(); c.Write(attach.AppendWelcome(nil, &w)) }, attach.ErrMalformed, "without its descriptor"},
		"other rank": {func(c *attach.Conn) { w := goodWelcome(); w.Rank = 1; c.Write(attach.AppendWelcome(nil, &w)) }, ErrRefused, "rank 1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, 1, func(f *fake) { f.first = c.first })
			_, err := Join(within(t), WithSocket(f.socket), WithRank(0))
			if err == nil {
				t.Fatal("joined")
			}
			if c.want == nil {
				c.want = err
			}
			wantError(t, err, c.want, c.part)
		})
	}
}

func goodWelcome() attach.Welcome {
	return attach.Welcome{Version: attach.Version, Nodes: 1, Size: 2, RegionBase: testBase, RegionBytes: testRegion, PageBytes: testPage, HomeStripe: 1, Reactors: 1, StripePages: 1, Trap: "uffd"}
}

func TestJoinCanceled(t *testing.T) {
	silent := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	f := newFake(t, 1, func(f *fake) { f.first = func(*attach.Conn) { cancel(); <-silent } })
	_, err := Join(ctx, WithSocket(f.socket))
	close(silent)
	wantError(t, err, context.Canceled, f.socket)
	if _, err := Join(ctx, WithSocket(f.socket)); !errors.Is(err, context.Canceled) {
		t.Errorf("Join with a context that had ended: %v", err)
	}
}

// TestJoinSaysThatItWaits: a program whose daemon does not let it in says so, to the launcher if
// there is one, and goes on when it does.
func TestJoinSaysThatItWaits(t *testing.T) {
	defer func(before time.Duration) { joinPatience = before }(joinPatience)
	joinPatience = 10 * time.Millisecond
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for name, here := range map[string]bool{"to the launcher": false, "here": true} {
		t.Run(name, func(t *testing.T) {
			if here {
				defer func(before *os.File) { os.Stderr = before }(os.Stderr)
				os.Stderr = w
			} else {
				t.Setenv(runstats.Env, fmt.Sprint(w.Fd()))
			}
			silent := make(chan struct{})
			f := newFake(t, 2, func(f *fake) { f.first = func(*attach.Conn) { <-silent } })
			joined := make(chan error)
			go func() {
				_, err := Join(within(t), WithSocket(f.socket), WithRank(1))
				joined <- err
			}()
			line, err := bufio.NewReader(r).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if !here {
				x, err := runstats.Decode([]byte(line))
				if err != nil || x.Hang == nil || x.Hang.Key == "" || len(x.Hang.Lines) != 1 {
					t.Fatalf("said %q: %v", line, err)
				}
				line = x.Hang.Lines[0]
			}
			if want := "rank 1 has waited 10ms for the daemon at " + f.socket + ", which waits for its peers"; !strings.Contains(line, want) {
				t.Errorf("said %q, want %q", line, want)
			}
			close(silent)
			wantError(t, <-joined, ErrNoDaemon)
		})
	}
}

func TestAddressesAreTaken(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	_, err := Join(within(t), WithSocket(f.socket))
	wantError(t, err, ErrAddressTaken, "Close it first")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	again := f.join() // a closed cluster's addresses can be used again
	again.Close()

	// Something that is not ours.
	const elsewhere = testBase + 1<<44
	mine, err := mmap(elsewhere+testPage, testPage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|mapFixedNoreplace, -1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.MunmapPtr(mine, testPage)
	f.mu.Lock()
	f.welcome.RegionBase = elsewhere
	f.mu.Unlock()
	_, err = Join(within(t), WithSocket(f.socket))
	wantError(t, err, ErrAddressTaken, fmt.Sprintf("%#x", elsewhere), fmt.Sprintf("%x-%x ---p", elsewhere+testPage, elsewhere+2*testPage))
}

// TestClosedAndOpenInTheWay: a region that overlaps that of a closed cluster and that of an open
// one can't be had, and the closed one's addresses stay reserved.
func TestClosedAndOpenInTheWay(t *testing.T) {
	const half = testRegion / 2
	f := newFake(t, 1, func(f *fake) { f.welcome.RegionBytes = half })
	f.join().Close()
	move := func(base, bytes uint64) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.welcome.RegionBase, f.welcome.RegionBytes = base, bytes
	}
	move(testBase+half, half)
	f.join()
	move(testBase, testRegion)
	_, err := Join(within(t), WithSocket(f.socket))
	wantError(t, err, ErrAddressTaken, "Close it first")
	if mine, err := mmap(testBase, testPage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|mapFixedNoreplace, -1, 0); err == nil {
		unix.MunmapPtr(mine, testPage)
		t.Error("the addresses of the closed cluster can be mapped by others")
	}
}

func TestJoinLeavesNothingBehind(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	f := newFake(t, 1)
	f.join().Close() // what stays open for good, such as Go's poller, is open now
	f.await("its end", func() bool { return f.programs[0].ended })
	before := count()
	for i := range 20 {
		c := f.join()
		if _, err := Alloc[int](within(t), c, "x", 1); err != nil {
			t.Fatal(err)
		}
		c.Close()
		f.await("its end", func() bool { return f.programs[i+1].ended })
	}
	f.mu.Lock()
	f.welcome.Trap = "none"
	f.mu.Unlock()
	for range 20 {
		Join(within(t), WithSocket(f.socket))
	}
	f.listen.Close()
	// the fake may still be closing its ends of the last ones
	for late := time.Now().Add(patience); count() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d descriptors are open, %d were before", count(), before)
		}
	}
}
