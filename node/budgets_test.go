package node

import (
	"strings"
	"testing"

	"dsmd/protocol"
	"dsmd/transport"
)

// TestBudgets: what can never fit is refused, with what each node has room for, and nothing else.
func TestBudgets(t *testing.T) {
	const mib = 1 << 20
	others := map[transport.NodeID]uint64{1: 16 * mib, 2: 32 * mib}
	nodes := func(count int) func() []protocol.NodeID {
		return func() (list []protocol.NodeID) {
			for n := range protocol.NodeID(count) {
				list = append(list, n)
			}
			return list
		}
	}
	b := &budgets{pageBytes: 4096, own: Memory{Bytes: 8 * mib}, nodes: nodes(3), of: func(n transport.NodeID) uint64 { return others[n] }}
	const all = 56 * mib / 4096
	if why := b.refuse(all); why != "" {
		t.Errorf("what fits is refused: %s", why)
	}
	why := b.refuse(all + 256)
	for _, part := range []string{"57 MiB", "56 MiB", "node 0 for 8 MiB, node 1 for 16 MiB, node 2 for 32 MiB)", "--memory", "--spill"} {
		if !strings.Contains(why, part) {
			t.Errorf("the refusal %q does not say %q", why, part)
		}
	}
	for i := range transport.NodeID(100) {
		others[i] = mib
	}
	b.nodes = nodes(100)
	if why := b.refuse(1 << 30); !strings.Contains(why, "node 7 for 1 MiB, and 92 more") || strings.Contains(why, "node 8") {
		t.Errorf("a hundred nodes: %s", why)
	}
	others[50] = noBound
	if why := b.refuse(1 << 30); why != "" {
		t.Errorf("one of them has no bound: %s", why)
	}
	others[50], b.own.Spill = mib, "/somewhere"
	if why := b.refuse(1 << 30); why != "" {
		t.Errorf("this node has a spill file: %s", why)
	}
	b.own, b.of = Memory{Bytes: 8 * mib}, nil
	if why := b.refuse(1 << 30); why != "" {
		t.Errorf("what others have is not known: %s", why)
	}
}
