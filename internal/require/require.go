// Package require skips tests that need what a machine may lack, such as a device or a privilege.
// Where the machine must have it, it fails them, so that no check is lost unseen.
package require

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Env is the environment variable that names, separated by commas, what this machine must have:
// uffd, netns, root, memlock, perf, browser, rdma, rdma-link.
const Env = "DSMD_REQUIRE"

// Demanded reports whether this machine must have what.
func Demanded(what string) bool {
	return slices.Contains(strings.Split(os.Getenv(Env), ","), what)
}

// Missing ends the test for want of what: it skips the test, or fails it if what must be there. The
// format and what follows say what was tried and how to get it.
func Missing(t testing.TB, what, format string, args ...any) {
	t.Helper()
	if Demanded(what) {
		t.Errorf("%s demands %s", Env, what)
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Memlock skips the test, or fails it, where processes may not lock all of their memory (memlock).
func Memlock(t testing.TB) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capabilities [2]unix.CapUserData
	if err := unix.Capget(&header, &capabilities[0]); err != nil {
		t.Fatal(err)
	}
	if limit.Cur != unix.RLIM_INFINITY && capabilities[0].Effective&(1<<unix.CAP_IPC_LOCK) == 0 {
		Missing(t, "memlock", "needs to lock all memory of a process: the limit is %d bytes (ulimit -l unlimited), and CAP_IPC_LOCK is not here", limit.Cur)
	}
}
