package rdma

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestSizesAreBounded: whatever the cluster, the pool's bound holds, and what a peer may have on
// its way fits into what there is.
func TestSizesAreBounded(t *testing.T) {
	for _, pageBytes := range []int{1, 1001, 4096, 64 << 10} {
		for nodes := 1; nodes <= 1024; nodes++ {
			s, err := SizesFor(nodes, pageBytes, DefaultPoolBytes)
			if err != nil {
				if pageBytes <= 4096 {
					t.Errorf("%d nodes, pages of %d bytes: %v", nodes, pageBytes, err)
				}
				continue
			}
			switch {
			case s.Registered > DefaultPoolBytes:
				t.Errorf("%d nodes, pages of %d bytes: %d bytes are registered, %d are allowed", nodes, pageBytes, s.Registered, DefaultPoolBytes)
			case s.RecvBlocks < s.QueuePairs*(s.Window+ackReserve):
				t.Errorf("%d nodes: %d receives for %d windows of %d", nodes, s.RecvBlocks, s.QueuePairs, s.Window)
			case s.Window < minWindow || s.Slots < minSlots:
				t.Errorf("%d nodes: %+v", nodes, s)
			}
		}
	}
}

// TestReceivesDoNotGrowWithPeers: receive buffers belong to all peers together.
func TestReceivesDoNotGrowWithPeers(t *testing.T) {
	const floor = 1023*(minWindow+ackReserve) + slackBlocks
	for nodes := 2; nodes <= 1024; nodes++ {
		s, err := SizesFor(nodes, 4096, DefaultPoolBytes)
		if err != nil {
			t.Fatal(err)
		}
		if s.RecvBlocks > max(maxBlocks+slackBlocks, floor) {
			t.Errorf("%d nodes: %d receive buffers", nodes, s.RecvBlocks)
		}
	}
}

func TestPoolTooSmall(t *testing.T) {
	_, err := SizesFor(1024, 64<<10, DefaultPoolBytes)
	if err == nil || !strings.Contains(err.Error(), "raise --rdma-pool") {
		t.Errorf("a pool that is too small: %v", err)
	}
}

// TestDocumentedSizes: the table in the documentation is what the code computes.
func TestDocumentedSizes(t *testing.T) {
	doc, err := os.ReadFile("../../docs/rdma.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, nodes := range []int{2, 4, 8, 16, 32, 64, 128, 256, 512, 1024} {
		s, err := SizesFor(nodes, 4096, DefaultPoolBytes)
		if err != nil {
			t.Fatal(err)
		}
		row := fmt.Sprintf("| %d | %d | %d | %d | %d | %.1f | %.1f |", nodes, s.QueuePairs, s.Window, s.Slots, s.RecvBlocks,
			float64(s.RecvBlocks*blockBytes)/(1<<20), float64(s.Registered)/(1<<20))
		if !strings.Contains(string(doc), row) {
			t.Errorf("docs/rdma.md does not have the row\n%s", row)
		}
	}
}
