package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/checkpoint"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

var checkpointSeed = flag.Uint64("checkpoint.seed", 0, "what happens by chance in the tests of checkpoints; 0: a fresh one, which is printed")

// chance is what happens by chance in a test.
func chance(t *testing.T) *rand.Rand {
	seed := *checkpointSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-checkpoint.seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

const (
	gridSide    = 256
	gridHalves  = 80 // half iterations
	gridRestful = 2 * time.Millisecond
)

// gridStart is what a cell holds at first.
func gridStart(row, col int) float64 { return math.Sin(float64(7*row*row + 13*col)) }

// relax does a half iteration on some rows: it changes the cells of one colour, and reads those of
// the other.
func relax(grid []float64, first, end, half int) {
	const omega = 1.6
	for row := max(first, 1); row < min(end, gridSide-1); row++ {
		for col := 1 + (row+half)%2; col < gridSide-1; col += 2 {
			at := row*gridSide + col
			around := grid[at-gridSide] + grid[at+gridSide] + grid[at-1] + grid[at+1]
			grid[at] += omega * (around/4 - grid[at])
		}
	}
}

func fillRows(grid []float64, first, end int) {
	for row := first; row < end; row++ {
		for col := range gridSide {
			grid[row*gridSide+col] = gridStart(row, col)
		}
	}
}

func gridBytes(grid []float64) []byte {
	b := make([]byte, 0, 8*len(grid))
	for _, x := range grid {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	return b
}

// solver relaxes a grid, goes on from the checkpoint that its job was started with, and writes the
// result to the file that its argument names. Rank 0 says how far it is.
var solver = testcluster.Define("solver", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	next := 0
	state, restored := c.Restored()
	if restored {
		if next, err = strconv.Atoi(string(state)); err != nil {
			return err
		}
	}
	say := func(what string) {
		if c.Rank() == 0 {
			s.Say("%s %d", what, next)
		}
	}
	say("from")
	grid, err := dsm.Alloc[float64](s.Ctx, c, "grid", gridSide*gridSide)
	if err != nil {
		return err
	}
	c.SaveAtBarriers(func() []byte { return []byte(strconv.Itoa(next)) })
	first, end := c.Rank()*gridSide/c.Size(), (c.Rank()+1)*gridSide/c.Size()
	if !restored {
		fillRows(grid, first, end)
	}
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	for next < gridHalves {
		relax(grid, first, end, next)
		time.Sleep(gridRestful) // so that it is killed here, too, and not only in checkpoints
		next++
		if err := c.Barrier(s.Ctx); err != nil {
			return err
		}
		say("at")
	}
	if c.Rank() == 0 {
		if err := os.WriteFile(s.Args[0], gridBytes(grid), 0o600); err != nil {
			return err
		}
	}
	if err := c.Barrier(s.Ctx); err != nil { // else the grid goes
		return err
	}
	return c.Close()
})

// life is one job of the solver, from its start until it is killed or ends.
type life struct {
	job  *testcluster.Process
	mark string
	from int
	at   int
}

// step takes what the job says next. It returns false if the job has ended.
func (l *life) step(t *testing.T) bool {
	t.Helper()
	testcluster.Eventually(t, "the job goes on, or ends", func() bool { return l.job.Pending() || !l.job.Running() })
	if !l.job.Pending() {
		return false
	}
	words := strings.Fields(l.job.Hear(t))
	if len(words) < 2 {
		t.Fatalf("the job printed %q", words)
	}
	n, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		t.Fatal(err)
	}
	if words[len(words)-2] == "from" {
		l.from = n
	}
	l.at = n
	return true
}

// kill kills all processes of the job, which writes to a directory, in any order.
func (l *life) kill(t *testing.T, r *rand.Rand, dir string) {
	t.Helper()
	all := testcluster.Having(l.mark)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, process := range all {
		id, _, _ := strings.Cut(process, " ")
		pid, err := strconv.Atoi(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
	l.job.Wait(t)
	nothingLeft(t, l.mark)
	awaitUnlocked(t, dir)
}

// awaitUnlocked waits until nobody writes to a directory of checkpoints. A process that is killed
// has its files, and so the lock, for a moment longer than the environment by which nothingLeft
// finds it.
func awaitUnlocked(t *testing.T, dir string) {
	t.Helper()
	testcluster.Eventually(t, "nobody holds the lock of the checkpoints", func() bool {
		f, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			return errors.Is(err, fs.ErrNotExist) // nobody has ever had it
		}
		defer f.Close()
		if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil {
			return false
		}
		// Not only closed: what another test starts at this moment may have inherited the file.
		return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) == nil
	})
}

// savedHalf is the half iteration from which the newest checkpoint goes on, all of which must be
// as it was written; -1: there is none.
func savedHalf(t *testing.T, dir string) int {
	t.Helper()
	m, err := checkpoint.Load(dir)
	if errors.Is(err, checkpoint.ErrNone) || errors.Is(err, fs.ErrNotExist) { // or no directory yet
		return -1
	}
	if err == nil {
		err = readWhole(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(string(m.Program))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCheckpointResumes: a job is killed again and again, and goes on each time from its last
// checkpoint, on any number of nodes. Its result is bit for bit the one that it would have had.
func TestCheckpointResumes(t *testing.T) {
	long(t)
	t.Parallel()
	uffdtest.Require(t)
	r := chance(t)
	const kills = 5
	want := make([]float64, gridSide*gridSide)
	fillRows(want, 0, gridSide)
	for half := range gridHalves {
		relax(want, 0, gridSide, half)
	}
	dir := filepath.Join(t.TempDir(), "checkpoints")
	result := filepath.Join(t.TempDir(), "result")
	killed, working, saved, most := 0, 0, -1, 0
	for lives := 1; ; lives++ {
		nodes := 2 + r.IntN(3)
		l := life{mark: fmt.Sprintf("%s-%d", variable(t), lives), from: -1, at: -1}
		flags := []string{"--checkpoint", dir, "--every", "1ms"}
		if saved >= 0 {
			flags = append(flags, "--restore", dir)
		}
		l.job = testcluster.Job{Nodes: nodes, Flags: flags, Env: []string{l.mark}, Program: solver, Args: []string{result}}.Run(t)
		// Each life gets so far that work is left for the others.
		steps := 1 + r.IntN(2+2*(gridHalves-max(saved, 0))/(kills+1-killed))
		if killed == kills {
			steps = math.MaxInt
		} else if killed-working < kills/2 && r.IntN(8) == 0 {
			steps = 0 // it is killed as it starts
		}
		alive := true
		for range steps {
			if alive = l.step(t); !alive {
				break
			}
		}
		if l.from >= 0 && l.from != max(saved, 0) {
			t.Fatalf("life %d goes on from half iteration %d, the checkpoint is of %d", lives, l.from, saved)
		}
		if !alive {
			if status := l.job.Wait(t); status != 0 {
				t.Fatalf("life %d ended with status %d", lives, status)
			}
			got, err := os.ReadFile(result)
			if err != nil || !bytes.Equal(got, gridBytes(want)) {
				t.Fatalf("the result of life %d, from half iteration %d on, is another: %v", lives, l.from, err)
			}
		} else {
			longest := 10 * time.Millisecond
			if steps == 0 {
				longest = 150 * time.Millisecond
			}
			time.Sleep(time.Duration(r.Int64N(int64(longest))))
			l.kill(t, r, dir)
			if killed++; l.from >= 0 {
				working++
			}
		}
		before := saved
		saved = savedHalf(t, dir)
		t.Logf("life %d, %d nodes: from %d to %d; there is a checkpoint of %d", lives, nodes, l.from, l.at, saved)
		if saved < before {
			t.Fatalf("the checkpoint of half iteration %d has become one of %d", before, saved)
		}
		if most = max(most, l.at-l.from); steps == math.MaxInt {
			break
		}
	}
	if working <= kills/2 || most >= gridHalves {
		t.Errorf("of %d kills only %d fell within the run, and the longest life made %d half iterations of %d", killed, working, most, gridHalves)
	}
	verified(t, dir)
	noRemains(t, dir)
}
