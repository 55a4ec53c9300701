package checkpoint

import (
	"errors"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// life is a job that takes checkpoints, and what a crash at each point may leave.
type life struct {
	r        *recorder
	contents map[uint64]state // of each checkpoint
	begun    map[uint64]int   // how many operations there were when it began
	ended    map[uint64]int   // and when Commit returned
}

// live takes four checkpoints, of which two are incremental, leaves a part of an attempt that
// failed, and sweeps twice.
func live(t *testing.T) *life {
	t.Helper()
	l := &life{&recorder{}, map[uint64]state{}, map[uint64]int{}, map[uint64]int{}}
	s := locked(t, t.TempDir(), l.r)
	var base *Manifest
	take := func(ranks ...changes) {
		t.Helper()
		before := len(l.r.log)
		m, err := take(s, base, ranks...)
		if err != nil && !errors.Is(err, errPlanned) {
			t.Fatal(err)
		}
		var was state
		if base != nil {
			was = l.contents[base.Sequence]
		}
		l.contents[m.Sequence] = was.after(ranks...)
		l.begun[m.Sequence], l.ended[m.Sequence] = before, len(l.r.log)
		if err != nil {
			l.ended[m.Sequence] = math.MaxInt
		}
		base = m
	}
	sweep := func(keep int) {
		t.Helper()
		if err := s.Sweep(keep); err != nil {
			t.Fatal(err)
		}
	}
	take(first...)
	take(second...)
	take(third...)
	if _, err := writePart(s, 4, 0, first[0]); err != nil {
		t.Fatal(err)
	}
	sweep(2)
	base = nil
	take(fourth...)
	sweep(1)
	take(first...)
	// It is not known whether this one is durable, until Sweep has seen to it.
	base = nil
	renamed := false
	l.r.fail = func(o *op) error {
		if renamed {
			return errPlanned
		}
		renamed = o.kind == opRename
		return nil
	}
	take(fourth...)
	l.r.fail = nil
	sweep(1)
	return l
}

// errPlanned is the error of the one operation of live that fails.
var errPlanned = errors.New("a failure that was planned")

// TestCrashes: whatever a crash leaves, the newest checkpoint is the last one that was committed,
// or the one that was being written, and every checkpoint that is there is whole. The job then goes
// on.
func TestCrashes(t *testing.T) {
	l := live(t)
	const seed = 12
	random := rand.New(rand.NewPCG(seed, seed))
	tries := []float64{0, 1, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95}
	if testing.Short() {
		tries = []float64{0, 1, 0.5, 0.9}
	}
	outcomes := map[bool]int{}
	t.Logf("a crash after each of %d operations, %d times", len(l.r.log), len(tries))
	for after := range len(l.r.log) + 1 {
		for _, chance := range tries {
			l.crashAt(t, after, luck{chance, random}, outcomes)
			if t.Failed() {
				t.Fatalf("after %d operations, of which the last was %+v, with chance %v", after, l.r.log[max(after-1, 0)], chance)
			}
		}
	}
	if outcomes[true] < 10 || outcomes[false] < 10 {
		t.Errorf("the checkpoint that was being written was there %d times, and %d times not: the test sees too little", outcomes[true], outcomes[false])
	}
}

// crashAt looks at one directory that a crash may leave. outcomes counts whether the checkpoint
// that was being written is there.
func (l *life) crashAt(t *testing.T, after int, k luck, outcomes map[bool]int) {
	t.Helper()
	dir := l.r.crash(t, after, k)
	defer os.RemoveAll(dir)
	committed, begun := uint64(0), uint64(0)
	for n := range l.contents {
		if l.ended[n] <= after {
			committed = max(committed, n)
		}
		if l.begun[n] <= after {
			begun = max(begun, n)
		}
	}
	m, err := Load(dir)
	switch {
	case errors.Is(err, ErrNone) && committed == 0:
	case err != nil:
		t.Error(err)
		return
	case m.Sequence != committed && m.Sequence != begun:
		t.Errorf("the newest is %d, want %d or %d", m.Sequence, committed, begun)
	}
	if begun != committed {
		outcomes[m != nil && m.Sequence == begun]++
	}
	c, err := scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.manifests {
		m, err := Load(filepath.Join(dir, ManifestName(n)))
		if err != nil {
			t.Error(err)
			continue
		}
		check(t, m, l.contents[n])
	}
	if k.chance == 0.5 {
		goOn(t, dir, m)
	}
}

// goOn has a job take a checkpoint in a directory and sweep it.
func goOn(t *testing.T, dir string, base *Manifest) {
	t.Helper()
	s := &Store{dir: dir, disk: &recorder{}}
	unlock, err := s.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unlock(); err != nil {
			t.Error(err)
		}
	}()
	want := state{}
	if base != nil {
		if want, err = read(base); err != nil {
			t.Error(err)
			return
		}
	}
	m, err := take(s, base, third...)
	if err == nil {
		err = s.Sweep(1)
	}
	if err != nil {
		t.Error(err)
		return
	}
	if base != nil && m.Sequence <= base.Sequence {
		t.Errorf("sequence %d follows %d", m.Sequence, base.Sequence)
	}
	check(t, m, want.after(third...))
	need := []string{lockName, ManifestName(m.Sequence)}
	for _, p := range m.Parts {
		need = append(need, p.File)
	}
	slices.Sort(need)
	if got := names(t, dir); !slices.Equal(got, need) {
		t.Errorf("there is %q, want %q", got, need)
	}
}

// TestFailures fails each operation in turn, once. Somebody is told, the newest checkpoint is the
// old one or the new one, whole, and the next attempt succeeds.
func TestFailures(t *testing.T) {
	reasons := []error{unix.ENOSPC, unix.EIO, unix.EROFS}
	tried := map[kind]bool{}
	for n := 0; ; n++ {
		dir := t.TempDir()
		r := &recorder{}
		s := locked(t, dir, r)
		old, err := take(s, nil, first...)
		if err != nil {
			t.Fatal(err)
		}
		was := state{}.after(first...)
		count := 0
		reason := reasons[n%len(reasons)]
		r.fail = func(o *op) error {
			if count++; count-1 == n {
				tried[o.kind] = true
				return reason
			}
			return nil
		}
		m, err := take(s, old, second...)
		committed := err == nil
		if err == nil {
			err = s.Sweep(1)
		}
		if count <= n {
			if err != nil {
				t.Errorf("nothing failed: %v", err)
			}
			break
		}
		if !errors.Is(err, reason) {
			t.Errorf("operation %d fails with %v, and somebody is told: %v", n, reason, err)
		}
		got, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case got.Sequence == old.Sequence && !committed:
			check(t, got, was)
		case m != nil && got.Sequence == m.Sequence:
			check(t, got, was.after(second...))
		default:
			t.Errorf("the newest is %d", got.Sequence)
		}
		r.fail = nil
		goOn2(t, s, got)
	}
	if len(tried) != int(opSyncDir)+1 {
		t.Errorf("kinds of operations that were tried: %v", slices.Collect(maps.Keys(tried)))
	}
}

// goOn2 has the same job take the next checkpoint.
func goOn2(t *testing.T, s *Store, base *Manifest) {
	t.Helper()
	want, err := read(base)
	if err != nil {
		t.Fatal(err)
	}
	m, err := take(s, base, third...)
	if err == nil {
		err = s.Sweep(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	check(t, m, want.after(third...))
	if got := len(names(t, s.Dir())); got != len(m.Parts)+2 {
		t.Errorf("there is %q, and %d parts are needed", names(t, s.Dir()), len(m.Parts))
	}
}

// TestShortWrites: a write that is cut short is an error, whoever makes it.
func TestShortWrites(t *testing.T) {
	r := &recorder{}
	s := locked(t, t.TempDir(), r)
	old, err := take(s, nil, first...)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.CreatePart(2, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.short = true
	if _, err := p.Finish(pageBytes, 0, slices.Values([]Entry{{Slot: Zeros}})); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a short write of an index: %v", err)
	}
	if err := s.Commit(&Manifest{Sequence: 2, PageBytes: pageBytes, Ranks: 1, Memories: memories, Base: 1, Parts: old.Parts}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a short write of a manifest: %v", err)
	}
	r.short = false
	m, err := Load(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	check(t, m, state{}.after(first...))
	goOn2(t, s, m)
}

// TestFullDisk writes to a disk that is really full, if this machine has such a device.
func TestFullDisk(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	if err := writeAll(realFile{f}, []byte("x"), 0); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}
