// Package uffdtest lets tests say that they need userfaultfd: Require skips them where this process can't have it, records
// why, and makes the skip a failure on machines that are known to have it.
package uffdtest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"dsmd/internal/uffd"
)

// RequireEnv is the environment variable that lists, separated by commas, the features that this machine must have. With
// "uffd" among them a test that needs userfaultfd and can't have it fails instead of being skipped.
const RequireEnv = "DSMD_REQUIRE"

// Require skips the test if this process can't open a userfaultfd in any of modes (none given: all), and says why; see
// RequireEnv. It returns the most capable mode that works.
func Require(t testing.TB, modes ...uffd.Mode) uffd.Mode {
	t.Helper()
	fd, err := uffd.Open(modes...)
	if err == nil {
		defer fd.Close()
		return fd.Mode()
	}
	if slices.Contains(strings.Split(os.Getenv(RequireEnv), ","), "uffd") {
		t.Fatalf("%s demands it, but %v", RequireEnv, err)
	}
	t.Skipf("needs userfaultfd: %v", err)
	return 0
}
