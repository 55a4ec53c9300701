package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/require"
)

// TestExplainLimit: who meets a limit of the kernel is told which one to raise.
func TestExplainLimit(t *testing.T) {
	for errno, advice := range map[syscall.Errno]string{
		syscall.EMFILE: "ulimit -Hn",
		syscall.EAGAIN: "ulimit -u",
		syscall.E2BIG:  "ulimit -s",
		syscall.ENFILE: "fs.file-max",
		syscall.EPERM:  "",
	} {
		err := os.NewSyscallError("fork", errno)
		text, advised := strings.CutPrefix(explainLimit(err).Error(), fmt.Sprint(err))
		if !advised || !strings.Contains(text, advice) || advice == "" && text != "" {
			t.Errorf("%v is explained by %q, want %q", err, text, advice)
		}
	}
}

// TestStatusOfAJobThatIsNotStarted: only a program that may not be executed is not executable.
// Where a container forbids what a daemon needs, such as memfd_create, it is the job's start.
func TestStatusOfAJobThatIsNotStarted(t *testing.T) {
	for _, test := range []struct {
		role   role
		errno  syscall.Errno
		status int
	}{
		{program, syscall.EACCES, StatusNotExecutable},
		{program, syscall.ENOEXEC, StatusNotExecutable},
		{program, syscall.EAGAIN, StatusSystem},
		{daemon, syscall.EPERM, StatusSystem},
	} {
		if got := startStatus(test.role, fmt.Errorf("starting: %w", test.errno)); got != test.status {
			t.Errorf("role %d, %v: status %d, want %d", test.role, test.errno, got, test.status)
		}
	}
}

// apart calls f in namespaces of its own, on a thread that ends with it.
func apart(t *testing.T, spaces int, f func() error) (err error) {
	t.Helper()
	ran := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		if err := unix.Unshare(spaces); err != nil {
			ran <- fmt.Errorf("%w: %w", errApart, err)
			return
		}
		ran <- f()
	}()
	if err = <-ran; errors.Is(err, errApart) {
		require.Missing(t, "root", "%v", err)
	}
	return err
}

var errApart = errors.New("making a namespace needs root")

// TestNoLoopback: in a namespace where the nodes of a machine would wait for each other for ever, a
// job does not start, and says how to get what is missing. One node alone needs no connection.
func TestNoLoopback(t *testing.T) {
	for host, advice := range map[string]string{"127.0.0.1": "ip link set lo up", "[::1]": "lo"} {
		order := openOrder{Data: host + ":0", Nodes: []int{0, 1}}
		if err := tryLoopback(order); err != nil && host == "127.0.0.1" {
			t.Errorf("here: %v", err)
		}
		if err := apart(t, unix.CLONE_NEWNET, func() error { return tryLoopback(order) }); err == nil || !strings.Contains(err.Error(), advice) {
			t.Errorf("%s: %v, want %q", host, err, advice)
		}
	}
	if err := apart(t, unix.CLONE_NEWNET, func() error { return tryLoopback(openOrder{Data: "127.0.0.1:0", Nodes: []int{0}}) }); err != nil {
		t.Errorf("one node: %v", err)
	}
	if err := explainLoopback(os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)); !strings.HasSuffix(err.Error(), "ip addr add 127.0.0.1/8 dev lo") {
		t.Error(err)
	}
}

// TestNoProc: without /proc no job starts, and the error says what to mount.
func TestNoProc(t *testing.T) {
	if err := tryProc(); err != nil {
		t.Error(err)
	}
	err := apart(t, unix.CLONE_NEWNS, func() error {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Unmount("/proc", unix.MNT_DETACH)); err != nil {
			return fmt.Errorf("%w: %w", errApart, err)
		}
		return tryProc()
	})
	if err == nil || !strings.Contains(err.Error(), "mount -t proc proc /proc") {
		t.Error(err)
	}
}
