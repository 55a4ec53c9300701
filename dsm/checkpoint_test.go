package dsm

import (
	"os"
	"path/filepath"
	"testing"

	"dsmd/internal/checkpoint"
)

// TestLeftovers: what a job that was killed has left of a checkpoint takes no room from the next
// one, whose number is another.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, checkpoint.PartName(5, 1))
	if err := os.WriteFile(left, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var s saves
	p, err := s.plan(nil, dir, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if p.Sequence != 6 {
		t.Errorf("the next checkpoint is %d", p.Sequence)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what is left of checkpoint 5 stays: %v", err)
	}
}
