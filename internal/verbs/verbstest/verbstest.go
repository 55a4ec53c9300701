// Package verbstest finds the RDMA device that a test runs on, or says why there is none; and it makes the queue pairs of other processes fail,
// or fall silent, without their doing.
package verbstest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"dsmd/internal/verbs"
)

// RequireEnv names the environment variable that lists, with commas, what must be there: with "rdma" among it, a test
// that would be skipped for want of a device fails.
const RequireEnv = "DSMD_REQUIRE"

// Require returns the devices that can be used, at least one. Without one the test is skipped, or fails if the environment
// says that there must be one.
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
	give := t.Skipf
	if slices.Contains(strings.Split(os.Getenv(RequireEnv), ","), "rdma") {
		give = t.Fatalf
	}
	give("no RDMA device with an active port (error: %v); transport/rdma/testbed/run makes a machine that has one", err)
	return nil
}
