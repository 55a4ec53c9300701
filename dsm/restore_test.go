package dsm

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"dsmd/internal/attach"
)

// TestFilesAreNumberedInTurn: what one goroutine gives the daemon has numbers that follow one
// another, whatever others give meanwhile.
func TestFilesAreNumberedInTurn(t *testing.T) {
	f := newFake(t, 1, func(f *fake) {
		var given atomic.Uint32
		f.answer = func(call attach.Call) (r attach.Reply, mine bool) {
			if call.Op != attach.OpFile {
				return r, false
			}
			return attach.Reply{Ticket: call.Ticket, Rank: given.Add(1)}, true
		}
	})
	c := f.join()
	path := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 20 {
				if _, err := c.giveForReading(within(t), []string{path, path, path}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
