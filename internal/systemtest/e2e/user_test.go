package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestAsOrdinaryUser runs once more as a user without privileges, who can only trap the faults of
// user mode, what that matters for most; of tests with parts, one of these.
func TestAsOrdinaryUser(t *testing.T) {
	long(t)
	if testing.Short() {
		t.Skip("the same tests are run as this user")
	}
	t.Parallel()
	const core = "^(TestKilledProgram|TestCollectorAndFaults|TestSystemCalls|TestBadUse|TestPrefetch|TestLocksProtectMemory|" +
		"TestRun|TestUnsampled|TestChildrenInheritNothing|TestLargestRegion)$" +
		"/^(.GOMAXPROCS=1 .*|1 nodes|uffd)$"
	status, out := testcluster.AsUser(t, core)
	if status != 0 {
		t.Fatalf("as an ordinary user the tests ended with status %d", status)
	}
	want := strings.Count(core, "Test")
	if strings.Count(out, "\n--- PASS: ")+strings.Count(out, "\n--- SKIP: ") != want {
		t.Errorf("not all of the %d tests were run:\n%s", want, out)
	}
	if want := strings.Count(core[strings.LastIndex(core, "/"):], "|") + 1; strings.Count(out, "\n    --- PASS: ")+strings.Count(out, "\n    --- SKIP: ") != want {
		t.Errorf("not all of the %d parts were run:\n%s", want, out)
	}
}
