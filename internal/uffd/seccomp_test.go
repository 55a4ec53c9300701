package uffd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/require"
	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
)

const seccompEnv = "UFFD_TEST_SECCOMP"

func TestMain(m *testing.M) {
	if os.Getenv(seccompEnv) != "" {
		if err := uffdtest.Forbid(); err != nil {
			fmt.Fprintln(os.Stderr, "seccomp:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// TestSeccompIsNamed: where a container's filter hides userfaultfd, the error says so, and tests
// that need it are skipped, or fail if DSMD_REQUIRE asks for it.
func TestSeccompIsNamed(t *testing.T) {
	if os.Getenv(seccompEnv) == "" {
		t.Run("Skipped", func(t *testing.T) { runInSeccomp(t, "", "--- SKIP: TestSeccompIsNamed", true) })
		t.Run("Required", func(t *testing.T) { runInSeccomp(t, "other,uffd", "--- FAIL: TestSeccompIsNamed", false) })
		return
	}
	_, err := uffd.Open()
	if !errors.Is(err, unix.EPERM) || !errors.Is(err, uffd.ErrUnavailable) || !strings.Contains(err.Error(), "seccomp profile") {
		t.Errorf("Open under a filter: %v", err)
	}
	uffdtest.Require(t)
}

func runInSeccomp(t *testing.T, demanded, want string, wantOK bool) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.v", "-test.run=^TestSeccompIsNamed$")
	cmd.Env = append(os.Environ(), seccompEnv+"=1", require.Env+"="+demanded)
	out, err := cmd.CombinedOutput()
	if (err == nil) != wantOK || !strings.Contains(string(out), want) || strings.Contains(string(out), "Open under a filter") {
		t.Errorf("under a filter, %s=%q: %v, want %q in\n%s", require.Env, demanded, err, want, out)
	}
}
