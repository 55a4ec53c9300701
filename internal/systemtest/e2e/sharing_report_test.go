package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/require"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// A sharer uses memory in its way until its rank has waited for pages often.
type sharer struct {
	*testcluster.Self
	c   *dsm.Cluster
	sum uint64 // of what it has read
}

// particle has two fields, which two ranks write.
type particle struct {
	Place, Speed float64
}

// enoughFaults is how many faults a rank has before it ends: one of seven tells its line.
const enoughFaults = 150

// sharers are programs of two ranks that share memory in one way each.
var sharers = map[string]func(s *sharer) error{
	"counters": func(s *sharer) error {
		counts, err := dsm.Alloc[uint64](s.Ctx, s.c, "counts", s.c.Size())
		return s.until(err, func() {
			counts[s.c.Rank()]++ // counters
		})
	},
	"total": func(s *sharer) error {
		total, err := dsm.Isolate[atomic.Uint64](s.Ctx, s.c, "total")
		return s.until(err, func() {
			total.Add(1) // total
		})
	},
	"locks": func(s *sharer) error {
		books, err := dsm.Alloc[uint64](s.Ctx, s.c, "books", 100)
		in, out := dsm.NewMutex(s.c, "in"), dsm.NewMutex(s.c, "out")
		if err != nil {
			return err
		}
		guarded := func(m *dsm.Mutex, add func()) {
			if err == nil {
				err = m.Lock(s.Ctx)
			}
			if err == nil {
				add()
				err = m.Unlock()
			}
		}
		return s.until(nil, func() {
			guarded(in, func() {
				books[3]++ // in
			})
			guarded(out, func() {
				books[70]++ // out
			})
			if err != nil {
				panic(err)
			}
		})
	},
	"fields": func(s *sharer) error {
		bodies, err := dsm.Alloc[particle](s.Ctx, s.c, "bodies", 8)
		return s.until(err, func() {
			for i := range bodies {
				if s.c.Rank() == 0 {
					bodies[i].Place++ // place
				} else {
					bodies[i].Speed++ // speed
				}
			}
		})
	},
	"reader": func(s *sharer) error {
		state, err := dsm.Alloc[uint64](s.Ctx, s.c, "state", 200)
		return s.until(err, func() {
			if s.c.Rank() == 0 {
				state[150]++ // writer
			} else {
				s.sum += state[5] // reader
			}
		})
	},
	"producer": func(s *sharer) error {
		queue, err := dsm.Alloc[uint64](s.Ctx, s.c, "queue", 16)
		if err != nil {
			return err
		}
		phase := dsm.NewBarrier(s.c, "phase")
		for range 3 * enoughFaults { // most of the pages are asked for before they are read
			if s.c.Rank() == 0 {
				for i := range queue {
					queue[i]++ // produce
				}
			}
			if err := phase.Wait(s.Ctx); err != nil {
				return err
			}
			if s.c.Rank() == 1 {
				s.sum += queue[7] // consume
			}
			if err := phase.Wait(s.Ctx); err != nil {
				return err
			}
		}
		return nil
	},
	"innocent": func(s *sharer) error {
		mine, err := dsm.Alloc[uint64](s.Ctx, s.c, "mine", 4096)
		if err != nil {
			return err
		}
		for i := range mine {
			if s.c.Rank() == 0 {
				mine[i] = 1
			}
		}
		phase := dsm.NewBarrier(s.c, "phase")
		for range 20 {
			if err := phase.Wait(s.Ctx); err != nil {
				return err
			}
			for i := range 1024 {
				mine[1024*s.c.Rank()+i] += mine[3000]
				s.sum += mine[2100+i]
			}
			time.Sleep(10 * time.Millisecond) // so that there are several pieces of the log
		}
		return nil
	},
}

// until calls f until both ranks have waited for pages often enough.
func (s *sharer) until(err error, f func()) error {
	for enough := false; !enough && err == nil; {
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
			f()
		}
		var stats dsm.Stats
		if stats, err = s.c.Stats(s.Ctx); err == nil {
			var least uint64
			least, err = dsm.Reduce(s.Ctx, s.c, "least", stats.Faults.Remote(), dsm.Min)
			enough = least >= enoughFaults
		}
	}
	return err
}

var sharing = testcluster.Define("sharing", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	if err := sharers[s.Args[0]](&sharer{Self: s, c: c}); err != nil {
		return err
	}
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	return c.Close()
})

// TestSharing: --sharing says why pages travel, with the elements, lines and locks of both sides.
// Of the ways to share that are told apart like others, one is drawn.
func TestSharing(t *testing.T) {
	long(t)
	t.Parallel()
	uffdtest.Require(t)
	kinds := append(drawn([]string{"total", "fields", "reader", "innocent"}, unlessShort(1, 0)), "counters", "locks", "producer")
	for does, want := range map[string][]string{
		"counters": {
			`false sharing: page 0 of "counts" ([]uint64): nodes write different words; `,
			"  rank 0 writes counts[0] (@counters)", "  rank 1 writes counts[1] (@counters)", "  advice: give each rank a page of its own: pad",
		},
		"total":    {`true sharing: page 0 of "total" ([]atomic.Uint64): nodes write the same words; `, "  rank 0 writes total[0]", "  rank 1 writes total[0]", "  advice: combine first"},
		"locks":    {`false sharing: page 0 of "books" ([]uint64): different locks guard different words; `, `  lock "in" guards books[3]`, `  lock "out" guards books[70]`, "  advice: put what each lock guards on pages of its own"},
		"fields":   {`false sharing: page 0 of "bodies" ([]e2e.particle): `, "  rank 0 writes bodies[0..7].Place (@place)", "  rank 1 writes bodies[0..7].Speed (@speed)", "  advice: divide the struct"},
		"reader":   {`false sharing: page 0 of "state" ([]uint64): one node writes, and others read other words; `, "  rank 0 writes state[150] (@writer)", "  rank 1 reads state[5] (@reader)", "  advice: keep what is written apart"},
		"producer": {`communication: page 0 of "queue" ([]uint64): one node writes what others read; `, "  rank 0 writes queue[0..15] (@produce)", "  rank 1 reads queue[7] (@consume)", "  advice: none"},
		"innocent": {"no page went to and fro between nodes"},
	} {
		if !slices.Contains(kinds, does) {
			continue
		}
		t.Run(does, func(t *testing.T) {
			var missing []string
			var said string
			// Lines come from samples. On a busy machine a program may end in a pause between them.
			for range 3 {
				job := testcluster.Job{Nodes: 2, Program: sharing, Flags: []string{"--sharing"}, Args: []string{does}}.Run(t)
				job.Succeed(t)
				missing, said = nil, job.Errors()
				for _, line := range want {
					if line = atLine(t, line); !strings.Contains("\n"+job.Errors(), "\ndsmd: "+line) {
						missing = append(missing, line)
					}
				}
				if n := len(regexp.MustCompile(`(?m)^dsmd:   advice: `).FindAllString(job.Errors(), -1)); n > 1 {
					t.Errorf("it says %d things, and not one:\n%s", n, job.Errors())
				}
				if len(missing) == 0 {
					return
				}
			}
			if strings.Contains(said, "perf_event_open") { // nor did the two runs before have lines
				require.Missing(t, "perf", "%s", said)
			}
			t.Errorf("no line begins with %q", missing)
		})
	}
}

// atLine replaces a (@mark) by the line of this file that has it as its comment.
func atLine(t *testing.T, text string) string {
	t.Helper()
	before, mark, found := strings.Cut(text, "(@")
	if !found {
		return text
	}
	src, err := os.ReadFile("sharing_report_test.go")
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(src), "// "+strings.TrimSuffix(mark, ")")+"\n")
	if at < 0 {
		t.Fatalf("no line has the mark %q", mark)
	}
	return fmt.Sprintf("%s(sharing_report_test.go:%d", before, 1+strings.Count(string(src[:at]), "\n"))
}
