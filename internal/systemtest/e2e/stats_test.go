package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"dsmd/dsm"
	"dsmd/internal/require"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// wasteful is a program of two ranks that wastes its time in the way that its argument says.
var wasteful = testcluster.Define("wasteful", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	counts, err := dsm.Alloc[uint64](s.Ctx, c, "counts", 1024)
	if err != nil {
		return err
	}
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	switch s.Args[0] {
	case "lock":
		m := dsm.NewMutex(c, "accounts")
		for range 20 {
			if err := m.Lock(s.Ctx); err != nil {
				return err
			}
			time.Sleep(5 * time.Millisecond)
			if err := m.Unlock(); err != nil {
				return err
			}
		}
	case "false sharing", "seldom false sharing":
		if err := shareFalsely(s.Ctx, c, counts[c.Rank():], s.Args[0] == "false sharing"); err != nil {
			return err
		}
	case "division":
		time.Sleep(time.Duration(c.Rank()) * 300 * time.Millisecond)
	case "reduction":
		time.Sleep(time.Duration(c.Rank()) * 300 * time.Millisecond)
		if _, err := dsm.Reduce(s.Ctx, c, "error", 1, dsm.Max[int]); err != nil {
			return err
		}
	case "word count":
		return countWords(s.Ctx, c)
	case "no close":
		if c.Rank() == 0 {
			return nil
		}
	}
	if s.Args[0] != "no close" {
		if err := dsm.NewBarrier(c, "phase").Wait(s.Ctx); err != nil {
			return err
		}
	}
	return c.Close()
})

// shareFalsely counts in the first word, with pauses in which the other rank gets the page, until
// both have waited for the page often and, if asked, for a part of their time that is worth advice:
// on a busy machine that may take half a minute. (A rank that never paused would keep the page on a
// busy machine for as long as it kept the processor.) It only stores: what is read on the way is
// waited for to be read. (That is why it takes a slice. The race detector is called before the
// store, and before that a pointer is read, in case it is nil.)
func shareFalsely(ctx context.Context, c *dsm.Cluster, words []uint64, worthAdvice bool) error {
	const often = 600 // so that a profile, which follows a part of the time, has some of them
	began, count := time.Now(), uint64(0)
	for {
		for range 50 {
			count++
			words[0] = count
			// time.Sleep takes a millisecond where nothing else goes on: most of the time then.
			if err := unix.Nanosleep(&unix.Timespec{Nsec: 20_000}, nil); err != nil && err != unix.EINTR {
				return err
			}
		}
		stats, err := c.Stats(ctx)
		if err != nil {
			return err
		}
		took, enough := time.Since(began), 0
		if worth := took / 10; stats.Faults.Write >= often && (!worthAdvice || stats.Faults.Wait >= worth) || took > 30*time.Second {
			enough = 1
		}
		if all, err := dsm.Reduce(ctx, c, "enough", enough, dsm.Min[int]); err != nil || all == 1 {
			return err
		}
	}
}

// countWords counts words as a program of threads does: in a table, under a lock for each stripe.
func countWords(ctx context.Context, c *dsm.Cluster) error {
	const stripes, words = 64, 2000
	table, err := dsm.Alloc[uint64](ctx, c, "table", stripes)
	if err != nil {
		return err
	}
	var locks [stripes]*dsm.Mutex
	for i := range locks {
		locks[i] = dsm.NewMutex(c, fmt.Sprintf("stripe %d", i))
	}
	for word := range words {
		i := word * 37 % stripes
		if err := locks[i].Lock(ctx); err != nil {
			return err
		}
		table[i]++
		if err := locks[i].Unlock(); err != nil {
			return err
		}
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	if want := uint64(c.Size() * words / stripes); table[0] < want {
		return fmt.Errorf("%d words are counted, want %d", table[0], want)
	}
	return c.Close()
}

// TestStatsAndProfile: --stats names what a program has wasted its time with, and on what rank;
// --profile names the lines that wait, and what for. Each is told by itself, too.
func TestStatsAndProfile(t *testing.T) {
	uffdtest.Require(t)
	for _, test := range []struct {
		does    string
		flags   []string // the profile's file comes behind them
		stats   []string // lines
		profile string   // how a stack begins
	}{
		{"lock", []string{"--stats"}, []string{`lock +"accounts"`, `lock "accounts": many want it`}, ""},
		{"lock", []string{"--profile"}, nil, `[lock "accounts"] < dsmd/dsm.(*Mutex).Lock < stats_test.go`},
		{"false sharing", []string{"--stats", "--profile"}, []string{`memory +"counts"`, `memory "counts": others write .* whole pages`}, `[memory "counts"] < stats_test.go`},
		{"division", []string{"--stats", "--profile"}, []string{`barrier +"phase" +(0\.[2-9]|[1-9])`, `barrier "phase": rank 1 comes last`},
			`[barrier "phase"] < dsmd/dsm.(*Barrier).Wait < stats_test.go`},
		{"reduction", []string{"--stats", "--profile"}, []string{`reduction +"error" +(0\.[2-9]|[1-9])`, `reduction "error": rank 1 comes last`},
			`[reduction "error"] < dsmd/dsm.Reduce[...] < stats_test.go`},
		{"word count", []string{"--stats", "--profile"}, []string{`lock +"stripe \*" \((\d\d)\)`, `lock "stripe \*" \((\d\d)\): each time one of these`},
			`[lock "stripe *"] < dsmd/dsm.(*Mutex).Lock < stats_test.go`},
		{"no close", []string{"--stats"}, []string{`--stats knows nothing .*: rank 0$`}, ""},
	} {
		t.Run(test.does+" "+strings.Join(test.flags, " "), func(t *testing.T) {
			file, flags := filepath.Join(t.TempDir(), "profile"), test.flags
			if test.profile != "" {
				flags = slices.Concat(flags, []string{file})
			}
			job := testcluster.Job{Nodes: 2, Program: wasteful, Flags: flags, Args: []string{test.does}}.Run(t)
			job.Succeed(t)
			for _, line := range test.stats {
				if !regexp.MustCompile(`(?m)^dsmd: ` + line).MatchString(job.Errors()) {
					t.Errorf("no line is like %q:\n%s", line, job.Errors())
				}
			}
			if rows := sharesOf(t, job.Errors()); test.stats != nil && test.does != "no close" && rows != 2 {
				t.Errorf("%d rows:\n%s", rows, job.Errors())
			}
			if test.profile != "" {
				wantWaits(t, job, file, test.profile, test.does == "false sharing")
			}
		})
	}
}

// stripe is any of the stripes of countWords.
var stripe = regexp.MustCompile(`stripe \d+`)

// wantWaits checks that in the profile of a job both ranks have waited where a stack begins so,
// and, if they share falsely, for what the other has written.
func wantWaits(t *testing.T, job *testcluster.Process, file, stack string, sharing bool) {
	t.Helper()
	if strings.Contains(job.Errors(), "perf_event_open") {
		require.Missing(t, "perf", "%s", job.Errors())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, job.Errors())
	}
	p, err := profile.ParseData(data)
	if err != nil {
		t.Fatal(err)
	}
	ranks := map[string]int64{}
	for _, s := range p.Sample {
		if s.Value[0] > 0 && s.Value[1] > 0 && strings.HasPrefix(stripe.ReplaceAllString(trace(s), "stripe *"), stack) {
			ranks[s.Label["rank"][0]] += s.Value[0]
		}
	}
	if len(ranks) != 2 {
		t.Errorf("%v ranks wait at %s:\n%s", ranks, stack, p)
	}
	if sharing {
		wantCauses(t, p)
	}
}

// wantCauses checks that each rank has waited to write what the other has written, for pages that
// came whole. The profile is a sample that was multiplied, so each of its numbers is rounded.
func wantCauses(t *testing.T, p *profile.Profile) {
	t.Helper()
	waits := map[string]int64{}
	for _, s := range p.Sample {
		if s.Label["kind"][0] != "write" || s.Label["name"][0] != "counts" || len(s.Label["cause"]) != 1 {
			continue
		}
		waits[s.Label["rank"][0]+": "+s.Label["cause"][0]] += s.Value[0]
		if page := int64(os.Getpagesize()); s.Value[2] > (s.Value[0]+1)*page || s.Label["cause"][0] != "first touch" && s.Value[2] < s.Value[0]*page/2 {
			t.Errorf("%d waits brought %d bytes: %v", s.Value[0], s.Value[2], s.Label)
		}
	}
	for _, want := range []string{"0: rank 1 wrote", "1: rank 0 wrote"} {
		if waits[want] == 0 {
			t.Errorf("no rank %s: %v", want, waits)
		}
	}
}

// trace is a stack as text, without what lies inside the library.
func trace(s *profile.Sample) string {
	var frames []string
	for _, l := range s.Location {
		for _, line := range l.Line {
			switch f := line.Function; {
			case strings.HasSuffix(f.Filename, "stats_test.go"):
				frames = append(frames, "stats_test.go")
			case !strings.HasPrefix(f.Name, "dsmd/dsm.lock.") && !strings.HasPrefix(f.Name, "dsmd/dsm.gather") && !strings.HasPrefix(f.Name, "dsmd/dsm.(*reducing)"):
				frames = append(frames, f.Name)
			}
		}
	}
	return strings.Join(frames, " < ")
}

// sharesOf checks that the parts of each rank's time are all of it, and returns how many ranks
// there are.
func sharesOf(t *testing.T, report string) (ranks int) {
	row := regexp.MustCompile(`(?m)^dsmd: \d+ +\d+ +[\d.]+ +\d+ +(([\d.]+% +){8})`)
	for _, m := range row.FindAllStringSubmatch(report, -1) {
		sum := 0.0
		for cell := range strings.FieldsSeq(m[1]) {
			var part float64
			if _, err := fmt.Sscanf(cell, "%f%%", &part); err != nil {
				t.Fatal(err)
			}
			sum += part
		}
		if sum < 99 || sum > 101 {
			t.Errorf("the parts sum to %v %%: %s", sum, m[0])
		}
		ranks++
	}
	return ranks
}
