package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/checkpoint"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// told fails the test if an answer has not all of these words.
func told(t *testing.T, who, answer string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(answer, w) {
			t.Errorf("%s is told %q, without %q", who, answer, w)
		}
	}
}

// toldAll gives all a line, and fails the test if an answer has not all of these words.
func (all crew) toldAll(t *testing.T, line string, words ...string) {
	t.Helper()
	for rank, answer := range all.ask(t, "%s", line) {
		told(t, fmt.Sprintf("rank %d by %q", rank, line), answer, words...)
	}
}

// saveTwo makes a directory with one or two checkpoints of "data", of 3 ranks: the second has other
// contents everywhere.
func saveTwo(t *testing.T, number int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "checkpoints")
	all := engage(t, 3, 3)
	all.do(t, "ok", "words data %d", words)
	for seed := 1; seed <= number; seed++ {
		for rank, p := range all {
			p.Do(t, "ok", "stamp data %d %d %d", seed, rank*words/3, (rank+1)*words/3)
		}
		all.do(t, "ok", "save %s", dir)
	}
	all.end(t)
	verified(t, dir)
	return dir
}

// copied makes a copy of a directory with checkpoints.
func copied(t *testing.T, from string) (to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "checkpoints")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// isStill fails the test if the newest checkpoint of a directory is not that of this sequence, with
// words that were stamped so.
func isStill(t *testing.T, dir string, sequence uint64, seed int) {
	t.Helper()
	verified(t, dir)
	noRemains(t, dir)
	if x := newest(t, dir); x.Sequence != sequence {
		t.Errorf("the newest checkpoint is %d, want %d", x.Sequence, sequence)
	}
	all := engage(t, 2, 2)
	all.do(t, "restored ", "restore %s", dir)
	all.do(t, "ok", "words data %d", words)
	all.do(t, "ok", "same data %d 0 %d", seed, words)
	all.end(t)
}

// TestCheckpointMismatch: ranks that want different things saved are told so, and so is who asks
// for other memory than the checkpoint has. They can do better then.
func TestCheckpointMismatch(t *testing.T) {
	t.Parallel()
	dir := saveTwo(t, 1)
	all := engage(t, 2, 3)
	all.do(t, "restored ", "restore %s", dir)
	all.toldAll(t, fmt.Sprintf("words data %d", words+1), "error: mismatch: ", "\"data\"", dir, fmt.Sprint(words))
	all.toldAll(t, fmt.Sprintf("alloc32 data %d", words), "error: mismatch: ", "uint32", "uint64")
	all.do(t, "ok", "words data %d", words)
	all.do(t, "ok", "same data 1 0 %d", words)

	all.do(t, "ok", "begin %s", dir)
	all.toldAll(t, "save "+dir, "error: in use: ", "Wait")
	all.do(t, "ok", "finish")
	if x := newest(t, dir); x.Sequence != 2 || x.OwnBytes != 0 { // all is as it was restored
		t.Errorf("the newest checkpoint is %d, with %d bytes of its own", x.Sequence, x.OwnBytes)
	}

	all[1].Do(t, "ok", "words more 700")
	for range 2 {
		all.toldAll(t, "save "+dir, "error: mismatch: ", "rank 1 differs from rank 0")
	}
	for _, p := range all {
		p.Say(t, "save %s only=data,more", dir)
	}
	for rank, p := range all {
		want := []string{"error: no checkpoint: ", "rank 0"}
		if rank != 1 {
			want = []string{"error: unknown: ", "\"more\""}
		}
		told(t, fmt.Sprint("rank ", rank), p.Hear(t), want...)
	}
	for rank, p := range all { // a name that is given twice counts once
		p.Say(t, "save %s only=%s", dir, []string{"data", "data", "data,data"}[rank])
	}
	for _, p := range all {
		p.Expect(t, "ok")
	}
	all[0].Do(t, "ok", "words more 700")
	all[2].Do(t, "ok", "words more 700")
	all.do(t, "ok", "save %s", dir)
	isStill(t, dir, 4, 1)
	all.end(t)
}

// alter changes a file in place.
func alter(t *testing.T, path string, change func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointDamagedFiles: what can be seen without reading all pages is seen by Restore. Memory
// begins with zeros then. The older checkpoint beside what is damaged is as good as it was.
func TestCheckpointDamagedFiles(t *testing.T) {
	long(t)
	t.Parallel()
	undamaged := saveTwo(t, 2)
	// Programs that have restored nothing, and those that restore the older one each time.
	all, older := engage(t, 2, 2), engage(t, 2, 2)
	for i, test := range []struct {
		name, names string
		damage      func(t *testing.T, dir string)
	}{
		{"a part is cut in its index", "pages-000002-0001.dsm", func(t *testing.T, dir string) {
			alter(t, filepath.Join(dir, checkpoint.PartName(2, 1)), func(b []byte) []byte { return b[:len(b)-5] })
		}},
		{"a part is cut in its pages", "pages-000002-0001.dsm", func(t *testing.T, dir string) {
			alter(t, filepath.Join(dir, checkpoint.PartName(2, 1)), func(b []byte) []byte { return b[:4096*3+7] })
		}},
		{"a part is empty", "pages-000002-0002.dsm", func(t *testing.T, dir string) {
			alter(t, filepath.Join(dir, checkpoint.PartName(2, 2)), func([]byte) []byte { return nil })
		}},
		{"a part is gone", "pages-000002-0000.dsm", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, checkpoint.PartName(2, 0))); err != nil {
				t.Fatal(err)
			}
		}},
		{"a part of another checkpoint", "pages-000002-0001.dsm", func(t *testing.T, dir string) {
			part, err := os.ReadFile(filepath.Join(dir, checkpoint.PartName(1, 1)))
			if err != nil {
				t.Fatal(err)
			}
			alter(t, filepath.Join(dir, checkpoint.PartName(2, 1)), func([]byte) []byte { return part })
		}},
		{"a manifest is cut", "checkpoint-000002.json", func(t *testing.T, dir string) {
			alter(t, filepath.Join(dir, checkpoint.ManifestName(2)), func(b []byte) []byte { return b[:len(b)/2] })
		}},
		{"a manifest is altered", "checkpoint-000002.json", func(t *testing.T, dir string) {
			alter(t, filepath.Join(dir, checkpoint.ManifestName(2)), func(b []byte) []byte { return bytes.Replace(b, []byte("uint64"), []byte("uint63"), 1) })
		}},
		{"a manifest is of another version", "checkpoint-000002.json", func(t *testing.T, dir string) {
			alter(t, filepath.Join(dir, checkpoint.ManifestName(2)), func(b []byte) []byte {
				return bytes.Replace(b, []byte(`"version": 1`), []byte(`"version": 7`), 1)
			})
		}},
	} {
		if testing.Short() && i%3 != 1 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			dir := copied(t, undamaged)
			test.damage(t, dir)
			all.toldAll(t, "restore "+dir, "error: no checkpoint: ", test.names)
			all.do(t, "ok", "words data %d", words)
			all.do(t, "0", "get data %d", words-1)
			all.do(t, "ok", "free data")
			older.do(t, "restored ", "restore %s", filepath.Join(dir, checkpoint.ManifestName(1)))
			older.do(t, "ok", "words data %d", words)
			older.do(t, "ok", "same data 1 0 %d", words)
			older.do(t, "ok", "free data")
			job := runReader(t, "", "--restore", dir)
			status := job.Wait(t)
			told(t, "the user", job.Errors(), test.names)
			if status == 0 {
				t.Error("the job has succeeded")
			}
		})
	}
	all.end(t)
	older.end(t)
}

// reader reads all of "data", which must be as it was stamped with the seed of its argument.
var reader = testcluster.Define("reader", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	if _, is := c.Restored(); !is {
		return errors.New("nothing is restored")
	}
	k := &safe{desk: desk{ctx: s.Ctx, c: c, memory: map[string][]uint64{}}}
	if answer := k.obey([]string{"words", "data", fmt.Sprint(words)}); answer != "ok" {
		return errors.New(answer)
	}
	if answer := k.obey([]string{"same", "data", s.Args[0], "0", fmt.Sprint(words)}); answer != "ok" {
		return errors.New(answer)
	}
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	return c.Close()
})

// runReader runs a job of readers of what was stamped with a seed.
func runReader(t *testing.T, seed string, flags ...string) *testcluster.Process {
	t.Helper()
	return testcluster.Job{Nodes: 2, Flags: flags, Env: []string{variable(t)}, Program: reader, Args: []string{seed}}.Run(t)
}

// TestCheckpointAlteredPage: a page is not as it was written. Who touches it is not given anything
// else: the job fails, and says which page it was and why.
func TestCheckpointAlteredPage(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	dir := saveTwo(t, 1)
	runReader(t, "1", "--restore", dir).Succeed(t)
	part := filepath.Join(dir, checkpoint.PartName(1, 1))
	alter(t, part, func(b []byte) []byte { b[5*4096+100] ^= 0x40; return b })
	if err := readWhole(dir); !errors.Is(err, checkpoint.ErrDamaged) {
		t.Fatalf("the altered page is found as %v", err)
	}
	job := runReader(t, "1", "--restore", dir)
	status := job.Wait(t)
	t.Logf("status %d\n%s", status, job.Errors())
	told(t, "the user", job.Errors(), "page ", "checksum")
	if status == 0 || strings.Contains(job.Errors(), "word ") {
		t.Errorf("the job has ended with status %d", status)
	}
	nothingLeft(t, variable(t))
}

// TestCheckpointNowhere: a job that is to restore what there is not, or to save where it can't, is
// not started.
func TestCheckpointNowhere(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	all, dir := engage(t, 2, 2), t.TempDir()
	nowhere, file := filepath.Join(dir, "nowhere"), filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("something"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, why := range map[string]string{nowhere: "no such file", dir: "none", file: "file", filepath.Join(dir, checkpoint.ManifestName(7)): "no such file"} {
		all.toldAll(t, "restore "+path, "error: no checkpoint: ", path)
		job := runReader(t, "1", "--restore", path)
		if status := job.Wait(t); status == 0 {
			t.Errorf("the job that restores %s has succeeded", path)
		}
		told(t, "the user", job.Errors(), "--restore", path, why)
	}
	for _, path := range []string{file, filepath.Join(nowhere, "below"), "/proc/checkpoints"} {
		all.toldAll(t, "save "+path, "error: no checkpoint: ")
		job := runReader(t, "1", "--checkpoint", path)
		if status := job.Wait(t); status == 0 {
			t.Errorf("the job that saves to %s has succeeded", path)
		}
		told(t, "the user", job.Errors(), "--checkpoint", path)
	}
	all.do(t, "ok", "save %s", nowhere) // it is made
	verified(t, nowhere)
	all.end(t)
}

// TestCheckpointInUse: two jobs don't save into one directory at the same time.
func TestCheckpointInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := engage(t, 2, 2), engage(t, 2, 2)
	for i, all := range []crew{first, second} {
		all.do(t, "ok", "words data %d", words)
		all[0].Do(t, "ok", "stamp data %d 0 %d", 1+i, words)
	}
	first.do(t, "ok", "save %s", dir)
	for range 2 {
		for _, p := range second {
			p.Say(t, "save %s", dir)
		}
		told(t, "rank 0", second[0].Hear(t), "error: no checkpoint: ", "another job", dir)
		told(t, "rank 1", second[1].Hear(t), "error: no checkpoint: ", "rank 0")
	}
	job := runReader(t, "1", "--checkpoint", dir)
	if status := job.Wait(t); status == 0 {
		t.Error("the job has succeeded")
	}
	told(t, "the user", job.Errors(), "another job", dir)
	isStill(t, dir, 1, 1)
	first.end(t)
	second.do(t, "ok", "save %s", dir)
	if x := newest(t, dir); x.Base != 0 {
		t.Errorf("the checkpoint of another job has base %d", x.Base)
	}
	isStill(t, dir, 2, 2)
	second.end(t)
}

// TestCheckpointReadOnly: where nobody may write there is no checkpoint, and the one that there was
// stays.
func TestCheckpointReadOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		if status, out := testcluster.AsUser(t, "^TestCheckpointReadOnly$"); status != 0 || !strings.Contains(out, "--- PASS: TestCheckpointReadOnly") {
			t.Errorf("as an ordinary user it ended with status %d:\n%s", status, out)
		}
		return
	}
	dir := saveTwo(t, 1)
	all := engage(t, 2, 2)
	all.do(t, "ok", "words data %d", words)
	all[1].Do(t, "ok", "stamp data 2 0 %d", words)
	all.do(t, "ok", "save %s", dir)
	mode := func(mode os.FileMode) {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	mode(0o500)
	defer mode(0o700)
	all[0].Do(t, "ok", "stamp data 3 0 %d", words)
	for range 2 {
		all.toldAll(t, "save "+dir, "error: no checkpoint: ", "permission denied")
	}
	job := runReader(t, "1", "--checkpoint", dir)
	if status := job.Wait(t); status == 0 {
		t.Error("the job has succeeded")
	}
	told(t, "the user", job.Errors(), "--checkpoint", dir, "not writable")
	isStill(t, dir, 2, 2)
	mode(0o700)
	all.do(t, "ok", "save %s", dir)
	isStill(t, dir, 3, 3)
	all.end(t)
}

// TestCheckpointOfTheDead: a rank dies while a checkpoint is being taken. There is none then, and
// the others go on, as they do from barriers.
func TestCheckpointOfTheDead(t *testing.T) {
	long(t)
	t.Parallel()
	r := chance(t)
	former := saveTwo(t, 1)
	for _, moment := range []string{"between", "stopped", "before"} {
		t.Run(moment, func(t *testing.T) {
			dir := copied(t, former)
			all, c := engageAt(t, 3, 3, "--survive")
			rest := all[:2]
			all.do(t, "ok", "words data %d", words)
			all[0].Do(t, "ok", "stamp data 2 0 %d", words)
			switch moment {
			case "between":
				all.do(t, "ok", "begin %s", dir)
			case "stopped":
				all[2].Stop(t)
			}
			verb := "save " + dir
			if moment == "between" {
				verb = "finish"
			}
			for _, p := range rest {
				p.Say(t, "%s", verb)
			}
			if moment == "before" {
				all[2].Say(t, "%s", verb)
				// It dies anywhere in it.
				time.Sleep(time.Duration(r.IntN(12_000)) * time.Microsecond)
			}
			// The daemon first: a rank that its daemon has seen die could come again, and is waited
			// for.
			c.Daemons[2].Kill(t)
			all[2].Signal(syscall.SIGKILL)
			for _, p := range rest {
				said := p.Hear(t)
				t.Logf("a rank that is left is told %q", said)
				// One that gives up takes with it what the others read: so these may be told that.
				if moment != "before" || said != "ok" && !strings.HasPrefix(said, "error: no checkpoint: ") {
					told(t, "a rank that is left", said, "error: node lost: ")
				}
			}
			for _, p := range rest {
				p.Do(t, "ok", "scatter data 5 0 %d", words)
			}
			for range 2 {
				for _, p := range rest {
					p.Say(t, "save %s", dir)
				}
				for _, p := range rest {
					told(t, "a rank that is left, later", p.Hear(t), "error: node lost: ")
				}
			}
			all[2].Wait(t)
			rest.end(t)
			verified(t, dir)
			next := engage(t, 1, 1)
			next.do(t, "ok", "save %s", dir)
			verified(t, dir)
			noRemains(t, dir)
			next.end(t)
		})
	}
}

// TestCheckpointAfterLateWait: the context of Wait has ended before it begins. Then there may be no
// checkpoint, and the next one can be taken.
func TestCheckpointAfterLateWait(t *testing.T) {
	t.Parallel()
	dir := saveTwo(t, 1)
	all := engage(t, 2, 2)
	all.do(t, "ok", "words data %d", words)
	for range 2 {
		all.do(t, "ok", "begin %s", dir)
		all.toldAll(t, "finish late", "too late")
		all.do(t, "ok", "save %s", dir)
	}
	verified(t, dir)
	noRemains(t, dir)
	all.end(t)
}

// TestCheckpointOfKilled: the program of a rank is killed while a checkpoint is being taken, and
// its daemon lives on. The others may store, can give up, and take a checkpoint with who comes for
// it.
func TestCheckpointOfKilled(t *testing.T) {
	t.Parallel()
	dir := saveTwo(t, 1)
	all, c := engageAt(t, 2, 3)
	all.do(t, "ok", "words data %d", words)
	all[0].Do(t, "ok", "stamp data 2 0 %d", words)
	for round := range 2 {
		all.do(t, "ok", "begin %s", dir)
		victim := 1 + round%2
		for rank, p := range all {
			if rank != victim {
				p.Say(t, "finish 200")
			}
		}
		all[victim].Kill(t)
		for rank, p := range all {
			if rank != victim {
				told(t, fmt.Sprint("rank ", rank), p.Hear(t), "too late")
				p.Do(t, "ok", "scatter data %d 0 %d", round, words)
			}
		}
		all[victim] = c.Program(t, keeper, victim%2, victim)
		all[victim].Expect(t, fmt.Sprintf("rank %d of 3", victim))
		all[victim].Do(t, "ok", "words data %d", words)
		all[0].Do(t, "ok", "stamp data %d 0 %d", 3+round, words)
		verified(t, dir)
		all.do(t, "ok", "save %s", dir)
		isStill(t, dir, newest(t, dir).Sequence, 3+round)
	}
	all.end(t)
}
