// Package uffdtest lets tests say that they need userfaultfd: Require skips them where this process
// can't have it, records why, and makes the skip a failure on machines that are known to have it.
package uffdtest

import (
	"testing"

	"dsmd/internal/require"
	"dsmd/internal/uffd"
)

// Require skips the test if this process can't open a userfaultfd in any of modes (none given:
// all), and says why, or fails it where DSMD_REQUIRE names uffd. It returns the most capable mode
// that works.
func Require(t testing.TB, modes ...uffd.Mode) uffd.Mode {
	t.Helper()
	fd, err := uffd.Open(modes...)
	if err == nil {
		defer fd.Close()
		return fd.Mode()
	}
	require.Missing(t, "uffd", "needs userfaultfd: %v", err)
	return 0
}
