package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/e2e/testcluster"
)

// TestAsOrdinaryUser runs what matters most once more as a user without privileges, who can only trap the faults
// of user mode.
func TestAsOrdinaryUser(t *testing.T) {
	const core = "^(TestKilledProgram|TestKilledDaemon|TestAtomics|TestCollectorAndFaults|TestSystemCalls|TestBadUse|TestPrefetch|" +
		"TestFreedMemoryIsZero|TestLocksProtectMemory|TestReductionsAgree|TestRun)$"
	tests := testcluster.AsUser(t, core)
	if status := tests.Wait(t); status != 0 {
		t.Fatalf("as an ordinary user the tests ended with status %d", status)
	}
	if out := tests.Output(); strings.Count(out, "\n--- PASS: ") != 11-strings.Count(out, "SKIP") {
		t.Errorf("not all of the tests were run:\n%s", out)
	}
}
