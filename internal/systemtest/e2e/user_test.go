package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestAsOrdinaryUser runs what matters most once more as a user without privileges, who can only
// trap the faults of user mode.
func TestAsOrdinaryUser(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests are run as this user")
	}
	t.Parallel()
	const core = "^(TestKilledProgram|TestKilledDaemon|TestAtomics|TestCollectorAndFaults|TestSystemCalls|TestBadUse|TestPrefetch|" +
		"TestFreedMemoryIsZero|TestLocksProtectMemory|TestReductionsAgree|TestRun|TestUnsampled|TestChildrenInheritNothing|TestLargestRegion)$"
	status, out := testcluster.AsUser(t, core)
	if status != 0 {
		t.Fatalf("as an ordinary user the tests ended with status %d", status)
	}
	want := strings.Count(core, "Test")
	if strings.Count(out, "\n--- PASS: ")+strings.Count(out, "\n--- SKIP: ") != want {
		t.Errorf("not all of the %d tests were run:\n%s", want, out)
	}
}
