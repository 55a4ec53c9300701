package parallel_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/parallel"
	"dsmd/internal/kittest"
)

// TestProgress: on a terminal people see how far all ranks are, and elsewhere nothing is written.
func TestProgress(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const n = 1000
		parallel.SetProgressEvery(time.Millisecond)
		team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "team", parallel.Progress("sweep"), parallel.Threads(1)))
		seen := kittest.Must[*atomic.Bool](t)(dsm.Isolate[atomic.Bool](ctx, c, "seen"))
		// One item waits until the bar says that both ranks have done all others.
		loop := func() {
			if err := team.For(ctx, n, func(i int) error {
				for i == 0 && !seen.Load() {
					if err := ctx.Err(); err != nil {
						return err
					}
					time.Sleep(time.Millisecond)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		stderr := os.Stderr
		defer func() { os.Stderr = stderr }()
		if c.Rank() > 0 {
			loop()
			loop()
			return
		}
		terminal, screen := kittest.Terminal(t)
		os.Stderr = screen
		shown := make(chan string)
		go func() {
			var all strings.Builder
			buffer := make([]byte, 4096)
			for {
				k, err := terminal.Read(buffer)
				if err != nil { // EIO: the other side was closed
					shown <- all.String()
					return
				}
				if all.Write(buffer[:k]); strings.Contains(all.String(), fmt.Sprintf("(%d/%d, ", n-1, n)) {
					seen.Store(true)
				}
			}
		}()
		loop()
		_ = screen.Close()
		said := <-shown
		last := said[strings.LastIndex(said, "sweep"):]
		t.Logf("the bar was %q", last)
		if !strings.Contains(last, "%") || !strings.Contains(last, "it/s") || !strings.Contains(last, "[") {
			t.Errorf("a bar without share, rate and times: %q", last)
		}
		if !strings.HasSuffix(strings.TrimSuffix(said, "\x1b[2K"), "\r") {
			t.Errorf("the bar is left behind: %q", last)
		}
		// In a file there is nothing.
		file := kittest.Must[*os.File](t)(os.CreateTemp(t.TempDir(), ""))
		os.Stderr = file
		loop()
		if info := kittest.Must[os.FileInfo](t)(file.Stat()); info.Size() > 0 {
			t.Errorf("%d bytes were written to a file", info.Size())
		}
	})
}
