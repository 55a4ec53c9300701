package verbs_test

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"dsmd/internal/verbs"
)

// hugePagesEnv says how many huge pages a test may have the kernel reserve, on a machine that is
// there for the tests. They stay.
const hugePagesEnv = "DSMD_TEST_HUGE_PAGES"

// TestMemoryIsNotInherited: a child of fork has no memory that a device writes, whatever pages it
// is of.
func TestMemoryIsNotInherited(t *testing.T) {
	if n := os.Getenv(hugePagesEnv); n != "" {
		if err := os.WriteFile("/proc/sys/vm/nr_hugepages", []byte(n), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, huge := range []bool{false, true} {
		m, err := verbs.Map(3<<20, huge)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if huge && !m.Huge() {
			if os.Getenv(hugePagesEnv) != "" {
				t.Error("huge pages are reserved, and the memory is of ordinary ones")
			}
			t.Log("this machine has no reserved huge pages, so those are not tested; " + hugePagesEnv + " reserves some")
		}
		if flags := flagsOf(t, m.Bytes()); !slices.Contains(flags, "dc") { // don't copy
			t.Errorf("memory (asked for huge pages: %t, has them: %t) is inherited by children; its flags are %v", huge, m.Huge(), flags)
		}
	}
}

// flagsOf are the kernel's flags of the mapping that memory lies in.
func flagsOf(t *testing.T, b []byte) []string {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at, inside := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var start, end uint64
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &start, &end); n == 2 {
			inside = start <= at && at < end
		} else if flags, is := strings.CutPrefix(lines.Text(), "VmFlags:"); is && inside {
			return strings.Fields(flags)
		}
	}
	t.Fatalf("no mapping at %#x", at)
	return nil
}
