package main

import (
	"strings"
	"testing"

	"dsmd/internal/attach"
)

// TestStatusNamesWhatIsFoughtFor: under the table stand the allocations that are falsely shared,
// the worst of each daemon first.
func TestStatusNamesWhatIsFoughtFor(t *testing.T) {
	list := []daemonStatus{
		{Socket: "@a", Node: 0, Counters: map[string]uint64{"contended_pages": 7, attach.ContendedIn + "few": 1, attach.ContendedIn + "radix/keys0": 6}},
		{Socket: "@b", Node: 1, Counters: map[string]uint64{"contended_pages": 0}},
	}
	var out strings.Builder
	if err := printStatus(&out, list); err != nil {
		t.Fatal(err)
	}
	_, lines, found := strings.Cut(out.String(), "@b\n")
	const want = `node 0: pages of "radix/keys0" were taken 6 times by other nodes that write beside this one (false sharing)
node 0: pages of "few" were taken 1 times by other nodes that write beside this one (false sharing)
`
	if !found || lines != want {
		t.Errorf("got:\n%s\nwant, under the table:\n%s", out.String(), want)
	}
}
