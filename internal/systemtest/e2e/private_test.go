package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// privately has all map a file, or files, that they can store to.
func privately(t *testing.T, all crew, words int, path, option string) {
	t.Helper()
	all.do(t, fmt.Sprintf("%d words", words), "map m %s private %s", path, option)
}

// TestCheckpointOfPrivate: a checkpoint has what was stored to a private mapping, over each trap,
// and zeros are stored like anything else. All other pages are as in the file, and in no
// checkpoint: not in the first one, nor in those of jobs that have begun with one, in the same
// directory or another. Jobs have any number of nodes.
func TestCheckpointOfPrivate(t *testing.T) {
	t.Parallel()
	withEachWay(t, func(t *testing.T, flags []string) {
		const page, words = 512, 300*512 + 9
		path := lay(t, filepath.Join(t.TempDir(), "file"), stamped(5, words))
		dir, elsewhere := t.TempDir(), t.TempDir()
		save := func(all crew, to string) {
			t.Helper()
			all.do(t, "ok", "save %s", to)
			verified(t, to)
			if x := newest(t, to); x.Bytes > 30*4200 {
				t.Errorf("checkpoint %d, of base %d, has %d bytes", x.Sequence, x.Base, x.Bytes)
			}
		}
		want := func(all crew, zeros, last int) {
			t.Helper()
			all.do(t, "ok", "same m 8 %d %d", 4*page, 6*page+7)
			all.do(t, "ok", "same m 5 %d %d", 6*page+7, 8*page)
			all.do(t, "0", "get m %d", 8*page)
			all.do(t, "0", "get m %d", 9*page-1)
			all.do(t, fmt.Sprint(zeros), "get m %d", 9*page)
			all.do(t, "ok", "same m 5 %d %d", 10*page, 200*page)
			all.do(t, "ok", "same m %d %d %d", last, 299*page, words)
			all.do(t, "ok", "same m 5 0 %d", 4*page)
		}
		all, _, _ := librarians(t, 3, flags...)
		privately(t, all, words, path, "")
		all[0].Do(t, "ok", "same m 5 0 %d", 100*page)
		all[1].Do(t, "ok", "stamp m 8 %d %d", 4*page, 6*page+7)
		all[2].Do(t, "ok", "clear m %d %d", 8*page, 9*page)
		save(all, dir)
		all[0].Do(t, "ok", "stamp m 9 %d %d", 299*page, words)
		all[0].Do(t, "ok", "put m %d 7", 9*page)
		save(all, dir)
		want(all, 7, 9)
		all.end(t)
		node := map[string]int{"uffd": 1, "sigsegv": 2}[flags[1]] // the last one of the next job
		again, _, _ := librarians(t, node+1, flags...)
		again.do(t, "restored ", "restore %s", dir)
		privately(t, again, words, path, "")
		again[0].Do(t, "7", "get m %d", 9*page)
		again[node].Do(t, "ok", "put m %d %d", 9*page, node)
		save(again, elsewhere) // nobody has touched most of what the other directory has
		again[node].Do(t, "ok", "put m %d 7", 9*page)
		save(again, dir)
		want(again, 7, 9)
		again.end(t)
		last, _, _ := librarians(t, 1, flags...)
		last.do(t, "restored ", "restore %s", elsewhere)
		privately(t, last, words, path, "")
		want(last, node, 9)
		last.do(t, "ok", "free m")
		privately(t, last, words, path, "") // for the second time
		last.do(t, "ok", "same m 5 0 %d", words)
		last.end(t)
		wantFile(t, path, stamped(5, words))
	})
}

// TestCheckpointOfPrivateThatDoesNotFit: what was stored to is saved from the spill file, too, and
// what was dropped is not, wherever the mapped files are (one of three ways is drawn). A job with
// as little memory gets it back, drops what is in the checkpoint, reads it again, and saves it
// elsewhere.
func TestCheckpointOfPrivateThatDoesNotFit(t *testing.T) {
	long(t)
	t.Parallel()
	const words, changed = 640 * 3 * 8192 / 8, 13 << 20 / 8
	for _, option := range drawn([]string{"striped=8192", "", "on=2"}, 1) {
		t.Run(option, func(t *testing.T) {
			spill, err := os.MkdirTemp("/var/tmp", "dsmd-e2e-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(spill)
			shared := lay(t, filepath.Join(t.TempDir(), "pages"), stamped(5, words))
			from := t.TempDir()
			for round, to := range []string{from, t.TempDir()} {
				all, _, dirs := librarians(t, 3, "--memory", "4MiB", "--spill", spill)
				path := here
				switch option {
				case "":
					path = shared
				case "on=2":
					lay(t, filepath.Join(dirs[2], "pages"), stamped(5, words))
				default:
					for i, dir := range dirs {
						lay(t, filepath.Join(dir, "pages"), stripes(stamped(5, words), i))
					}
				}
				if round > 0 {
					all.do(t, "restored ", "restore %s", from)
				}
				privately(t, all, words, path, option)
				if round == 0 {
					all[0].Do(t, "ok", "stamp m 9 0 %d", changed)
				}
				all[0].Do(t, "ok", "same m 9 0 %d", changed)
				all[2].Do(t, "ok", "same m 5 %d %d", changed, words)
				all.do(t, "ok", "save %s only=%s", to, path)
				verified(t, to)
				if x := newest(t, to); x.Bytes < 8*changed || x.Bytes > 8*words {
					t.Errorf("round %d: %d bytes of %d were changed, and the checkpoint has %d", round, 8*changed, 8*words, x.Bytes)
				}
				all[1].Do(t, "ok", "same m 9 0 %d", changed)
				if n := all.sum(t, "pages_unloaded"); round > 0 && n == 0 {
					t.Error("no page was dropped that is in a file")
				}
				all.end(t)
			}
		})
	}
}

// TestRestoreOfOtherPrivate: what was stored to a file goes with no other part of it, nor with
// memory that begins otherwise, nor with a file that has become longer. It goes with the file
// mapped for reading.
func TestRestoreOfOtherPrivate(t *testing.T) {
	t.Parallel()
	const page, words = 512, 20 * 512
	path, dir := lay(t, filepath.Join(t.TempDir(), "file"), stamped(5, words)), t.TempDir()
	longer := stamped(5, words+page)
	all, _, _ := librarians(t, 2)
	all.do(t, fmt.Sprintf("%d words", words-page), "map m %s private from=4096", path)
	all[1].Do(t, "ok", "put m 3 9")
	all.do(t, "ok", "save %s", dir)
	all.end(t)
	all, _, _ = librarians(t, 2)
	all.do(t, "restored ", "restore %s", dir)
	for line, want := range map[string]string{
		fmt.Sprintf("map m %s private", path):           "10240 elements",
		fmt.Sprintf("map m %s back from=4096", path):    "has what was changed of its file from byte 4096 on, and this program asks for all of it",
		fmt.Sprintf("words %s %d", path, words-page):    "and this program asks for all of it",
		fmt.Sprintf("map m %s private from=8192", path): "9216 elements",
	} {
		for rank, got := range all.ask(t, "%s", line) {
			if !strings.HasPrefix(got, "error: ") || !strings.Contains(got, want) {
				t.Errorf("rank %d answers %q with %q, want %q", rank, line, got, want)
			}
		}
	}
	lay(t, path, longer)
	for rank, got := range all.ask(t, "map m %s private from=8192", path) {
		if want := "has what was changed of its file from byte 4096 on, and this program asks for what was changed of its file from byte 8192 on"; !strings.Contains(got, want) {
			t.Errorf("rank %d answers %q, want %q", rank, got, want)
		}
	}
	lay(t, path, stamped(5, words))
	all.do(t, fmt.Sprintf("%d words", words-page), "map m %s from=4096", path)
	all.do(t, "9", "get m 3")
	all.do(t, "it faults", "break m 3")
	all.do(t, fmt.Sprint(stamp(5, page+4)), "get m 4")
	all.end(t)
}

// TestRestoreOfOtherStripes: what was saved of files in stripes is not laid over others.
func TestRestoreOfOtherStripes(t *testing.T) {
	t.Parallel()
	path, dir := lay(t, filepath.Join(t.TempDir(), "file"), stamped(5, 16*512)), t.TempDir()
	all, _, _ := librarians(t, 2)
	all.do(t, fmt.Sprintf("%d words", 2*16*512), "map m %s private striped=8192", path)
	all[1].Do(t, "ok", "put m 3 9")
	all.do(t, "ok", "save %s", dir)
	all.end(t)
	all, _, _ = librarians(t, 2)
	all.do(t, "restored ", "restore %s", dir)
	for rank, got := range all.ask(t, "map m %s private striped=16384", path) {
		if want := "8192 bytes of each in turn, and this program asks for"; !strings.Contains(got, want) {
			t.Errorf("rank %d answers %q, want %q", rank, got, want)
		}
	}
	all.do(t, fmt.Sprintf("%d words", 2*16*512), "map m %s private striped=8192", path)
	all.do(t, "9", "get m 3")
	all.end(t)
}

// lender is a librarian whose lost pages go back to the last checkpoint.
var lender = testcluster.Define("lender", func(s *testcluster.Self) error {
	if err := os.Setenv("DSM_LOST", "checkpoint"); err != nil {
		return err
	}
	return converse(s, func(d desk) obedient { return &library{safe{desk: d}} })
})

// TestLostPrivatePagesGoBack: pages of a private mapping that are lost with a node go back to the
// last checkpoint, over each trap: to what was stored to them, zeros too, and else to the file.
// With files that only some nodes have they are lost.
func TestLostPrivatePagesGoBack(t *testing.T) {
	t.Parallel()
	withEachWay(t, func(t *testing.T, flags []string) {
		const page, words = 512, 60 * 512
		shared, dir := lay(t, filepath.Join(t.TempDir(), "file"), stamped(5, words)), t.TempDir()
		c := serve(t, 3, 3, append(flags, "--survive")...)
		var all crew
		for rank := range 3 {
			all = append(all, c.Program(t, lender, rank, rank))
		}
		for rank, p := range all {
			p.Expect(t, fmt.Sprintf("rank %d of 3", rank))
		}
		privately(t, all, words, shared, "")
		onlyHere := lay(t, filepath.Join(t.TempDir(), "file"), stamped(5, words))
		all.do(t, fmt.Sprintf("%d words", words), "map o %s private on=0", onlyHere)
		doomed := all[2]
		doomed.Do(t, "ok", "stamp m 1 0 %d", 8*page)
		doomed.Do(t, "ok", "clear m %d %d", 10*page, 11*page)
		doomed.Do(t, "ok", "same m 5 %d %d", 30*page, 40*page)
		all[0].Do(t, "ok", "stamp m 1 %d %d", 50*page, 51*page)
		all.do(t, "ok", "save %s", dir)
		doomed.Do(t, "ok", "stamp m 2 %d %d", 4*page, 20*page)
		doomed.Do(t, "ok", "put o 0 3")
		all[0].Do(t, "ok", "stamp m 2 %d %d", 50*page, 51*page)
		c.Daemons[2].Kill(t)
		for _, p := range all[:2] {
			p.Do(t, "ok", "same m 1 0 %d", 8*page)
			p.Do(t, "ok", "same m 5 %d %d", 8*page, 10*page)
			p.Do(t, "0", "get m %d", 11*page-1)
			p.Do(t, "ok", "same m 5 %d %d", 11*page, 50*page)
			p.Do(t, "ok", "same m 2 %d %d", 50*page, 51*page)
			p.Do(t, "ok", "same m 5 %d %d", 51*page, words)
			p.Do(t, "lost with node 2: byte 0 of "+onlyHere, "get o 0")
		}
		all[1].Do(t, "ok", "stamp m 4 0 %d", 20*page)
		all[0].Do(t, "ok", "same m 4 0 %d", 20*page)
		wantFile(t, shared, stamped(5, words))
	})
}

// TestPrivateOfJobs: what a job stores to a private mapping is its own. Another job of the cluster
// that maps the same file has the file, or what it restores, also the job without a name, and for
// reading. What was restored for reading is in the next checkpoint.
func TestPrivateOfJobs(t *testing.T) {
	t.Parallel()
	const words = 4 * 512
	path, dir, elsewhere := lay(t, filepath.Join(t.TempDir(), "file"), stamped(5, words)), t.TempDir(), t.TempDir()
	c := serve(t, 2, 1)
	jobs := map[string]crew{}
	for node, job := range []string{"one", "two", "", "four", "five"} {
		all := crew{c.OfJob(t, librarian, node%2, job, 1)}
		all[0].Expect(t, "rank 0 of 1")
		jobs[job] = all
	}
	for _, job := range []string{"one", "two"} {
		privately(t, jobs[job], words, path, "")
		jobs[job].do(t, "ok", "same m 5 0 %d", words)
		jobs[job].do(t, "ok", "stamp m %d 0 512", len(job)+int(job[0]))
	}
	jobs["two"].do(t, "ok", "save %s", dir)
	jobs[""].do(t, "restored ", "restore %s", dir)
	privately(t, jobs[""], words, path, "")
	jobs[""].do(t, "ok", "put m 600 3")
	jobs["four"].do(t, "restored ", "restore %s", dir)
	for _, job := range []string{"four", "five"} {
		jobs[job].do(t, fmt.Sprintf("%d words", words), "map m %s", path)
	}
	jobs["five"].do(t, "ok", "same m 5 0 %d", words)
	jobs["four"].do(t, "ok", "same m %d 0 512", 3+'t')
	jobs["four"].do(t, "ok", "save %s", elsewhere)
	jobs["five"].do(t, "ok", "free m")
	jobs["five"].do(t, "restored ", "restore %s", elsewhere)
	privately(t, jobs["five"], words, path, "")
	jobs["five"].do(t, "ok", "same m %d 0 512", 3+'t')
	jobs["one"].do(t, "ok", "same m %d 0 512", 3+'o')
	jobs["one"].do(t, "ok", "same m 5 512 %d", words)
	jobs["one"].do(t, "ok", "free m")
	for _, job := range []string{"two", ""} {
		jobs[job].do(t, "ok", "same m %d 0 512", 3+'t')
	}
	jobs["two"].do(t, "ok", "same m 5 512 %d", words)
}

// TestRestoredMemoryIsNoOther: a program that has not restored a checkpoint does not find memory
// that began with it. Its node would take pages that nobody has touched for zeros. One that has,
// and has freed it since, does.
func TestRestoredMemoryIsNoOther(t *testing.T) {
	t.Parallel()
	const words = 4096
	all, _ := engageAt(t, 2, 2)
	dir := t.TempDir()
	all.do(t, "ok", "words x %d", words)
	for rank, p := range all {
		p.Do(t, "ok", "stamp x 7 %d %d", rank*words/2, (rank+1)*words/2)
	}
	all.do(t, "ok", "save %s", dir)
	all.do(t, "ok", "free x")
	first, other := all[0], all[1]
	first.Do(t, "restored ", "restore %s", dir)
	first.Do(t, "ok", "words x %d", words)
	first.Do(t, "ok", "same x 7 0 10")
	if got := other.Ask(t, "words x %d", words); !strings.HasPrefix(got, "error: mismatch: ") || !strings.Contains(got, "restored") {
		t.Errorf("a program that has restored nothing is told %q", got)
	}
	other.Do(t, "restored ", "restore %s", dir)
	other.Do(t, "ok", "words x %d", words)
	other.Do(t, "ok", "same x 7 0 %d", words)
	other.Do(t, "ok", "free x") // the other one has it still
	other.Do(t, "ok", "words x %d", words)
	other.Do(t, "ok", "same x 7 0 %d", words)
	all.end(t)
}
