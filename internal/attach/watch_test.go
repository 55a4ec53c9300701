//go:build amd64

package attach

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hangEnv makes this test binary a program that watches the socket in descriptor 3 and then
// spins without ever letting another goroutine run.
const hangEnv = "DSMD_ATTACH_TEST_HANG"

func TestMain(m *testing.M) {
	if os.Getenv(hangEnv) != "" {
		hang()
	}
	os.Exit(m.Run())
}

func hang() {
	runtime.GOMAXPROCS(1)
	c, err := connOf(os.NewFile(3, "socket"))
	if err != nil {
		panic(err)
	}
	if _, err := WatchDaemon(c, 10*time.Millisecond, 70, "the daemon is gone\n"); err != nil {
		panic(err)
	}
	if err := c.Write(AppendReady(nil)); err != nil {
		panic(err)
	}
	// A raw system call that never returns holds this P as a page fault does.
	for {
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// TestWatchEndsAProgramThatCannotRun holds the only P of a program, then closes the connection.
func TestWatchEndsAProgramThatCannotRun(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "theirs")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hangEnv+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	ended := make(chan error, 1)
	var s Stream
	if f, err := receive(fds[0], &s); err != nil || f.Kind != KindReady {
		t.Fatalf("the program did not come up: %v, %v", f.Kind, err)
	}
	// Data is no reason to end.
	if _, err := Send(fds[0], AppendReady(nil)); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("the program ended while the connection was open: %v\n%s", err, stderr.Bytes())
	case <-time.After(50 * time.Millisecond):
	}
	unix.Close(fds[0])
	select {
	case err = <-ended:
	case <-time.After(patience):
		cmd.Process.Kill()
		t.Fatal("the program still runs after its daemon has gone")
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 70 || stderr.String() != "the daemon is gone\n" {
		t.Errorf("the program ended with %v and said %q", err, stderr.String())
	}
}

// TestWatchStops starts and stops many watches, some with the peer gone, and collects garbage
// meanwhile. If a thread survived, or a signal reached one, this process would end.
func TestWatchStops(t *testing.T) {
	for i := range 50 {
		program, daemon := pair(t)
		w, err := WatchDaemon(program, patience, 70, "not stopped")
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			unix.Shutdown(daemon, unix.SHUT_RDWR)
		}
		runtime.GC()
		if err := syscall.Kill(os.Getpid(), syscall.SIGURG); err != nil {
			t.Fatal(err)
		}
		w.Stop()
		w.Stop()
	}
}
