// Package verbstest finds the RDMA device that a test runs on, or says why there is none; and it
// makes the queue pairs of other processes fail, or fall silent, without their doing.
package verbstest

import (
	"slices"
	"testing"

	"dsmd/internal/require"
	"dsmd/internal/verbs"
)

// Require returns the devices that can be used, at least one. Without one the test is skipped, or
// fails where DSMD_REQUIRE names rdma.
func Require(t testing.TB) []verbs.DeviceInfo {
	t.Helper()
	all, err := verbs.Devices()
	usable := slices.DeleteFunc(all, func(d verbs.DeviceInfo) bool {
		_, _, ok := d.UsablePort()
		return !ok
	})
	if err == nil && len(usable) > 0 {
		return usable
	}
	require.Missing(t, "rdma", "no RDMA device with an active port (error: %v); transport/rdma/testbed/run makes a machine that has one", err)
	return nil
}
