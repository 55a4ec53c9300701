package uffd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
)

const seccompEnv = "UFFD_TEST_SECCOMP"

func TestMain(m *testing.M) {
	if os.Getenv(seccompEnv) != "" {
		if err := forbidUserfaultfd(); err != nil {
			fmt.Fprintln(os.Stderr, "seccomp:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// forbidUserfaultfd makes the system call fail with EPERM in all threads, as container engines do.
func forbidUserfaultfd() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_USERFAULTFD, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // the filter may only be set by a thread without new privileges; TSYNC gives both to the other threads
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}

// TestSeccompIsNamed: where a container's filter hides userfaultfd, the error says so, and tests that need it are skipped,
// or fail if DSMD_REQUIRE asks for it.
func TestSeccompIsNamed(t *testing.T) {
	if os.Getenv(seccompEnv) == "" {
		t.Run("Skipped", func(t *testing.T) { runInSeccomp(t, "", "--- SKIP: TestSeccompIsNamed", true) })
		t.Run("Required", func(t *testing.T) { runInSeccomp(t, "other,uffd", "--- FAIL: TestSeccompIsNamed", false) })
		return
	}
	_, err := uffd.Open(uffd.ModeSyscall, uffd.ModeUserOnly)
	if !errors.Is(err, unix.EPERM) || !errors.Is(err, uffd.ErrUnavailable) || !strings.Contains(err.Error(), "seccomp profile") {
		t.Errorf("Open under a filter: %v", err)
	}
	uffdtest.Require(t, uffd.ModeSyscall, uffd.ModeUserOnly)
}

func runInSeccomp(t *testing.T, require, want string, wantOK bool) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.v", "-test.run=^TestSeccompIsNamed$")
	cmd.Env = append(os.Environ(), seccompEnv+"=1", uffdtest.RequireEnv+"="+require)
	out, err := cmd.CombinedOutput()
	if (err == nil) != wantOK || !strings.Contains(string(out), want) || strings.Contains(string(out), "Open under a filter") {
		t.Errorf("under a filter, %s=%q: %v, want %q in\n%s", uffdtest.RequireEnv, require, err, want, out)
	}
}
