package e2e

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/checkpoint"
)

// storm stores to one word of three pages in four, in an order of the rank's. Whatever rank does it
// stores the same, so that all may do it at the same time.
func storm(m []uint64, seed uint64, rank int) {
	const pageWords = 512
	for _, p := range rand.New(rand.NewPCG(seed, uint64(rank))).Perm(len(m) / pageWords) {
		page := uint64(p)
		if how := stamp(seed, page); how>>8%4 != 0 {
			at := page*pageWords + how>>16%pageWords
			atomic.StoreUint64(&m[at], stamp(seed, at))
		}
	}
}

// noiseRests is for how long noise rests after each round over its pages, so that the processors
// are left to others now and then.
const noiseRests = 2 * time.Millisecond

// noise is stores that nobody waits for: it counts in a word of its rank on each page.
type noise struct {
	words []uint64
	rank  int
	done  atomic.Uint64 // every page has this
	next  atomic.Uint64 // no page has more
	over  atomic.Bool
	wait  sync.WaitGroup
}

func (n *noise) make() {
	for !n.over.Load() {
		v := n.next.Add(1)
		for at := n.rank; at < len(n.words) && !n.over.Load(); at += 512 {
			atomic.StoreUint64(&n.words[at], v)
		}
		if !n.over.Load() {
			n.done.Store(v)
			time.Sleep(noiseRests)
		}
	}
}

// stormVerb does what is about checkpoints that are taken while programs store.
func (k *safe) stormVerb(line []string) (answer string, err error) {
	words := line[1:]
	switch line[0] {
	case "noise": // NAME
		k.noise = &noise{words: k.memory[words[0]], rank: k.c.Rank()}
		k.noise.wait.Go(k.noise.make)
	case "quiet":
		k.noise.over.Store(true)
		k.noise.wait.Wait()
	case "during": // DIR NAME SEED: answers between what the noise of this rank must be
		seed, err := strconv.ParseUint(words[2], 10, 64)
		if err != nil {
			return "", err
		}
		var least, most uint64
		if k.noise != nil {
			least = k.noise.done.Load()
		}
		saving, err := k.c.BeginCheckpoint(k.ctx, words[0], options(words[3:])...)
		if err != nil {
			return "", err
		}
		if k.noise != nil {
			most = k.noise.next.Load()
		}
		storm(k.memory[words[1]], seed, k.c.Rank())
		return fmt.Sprintf("%d %d", least, most), saving.Wait(k.ctx)
	case "between": // NAME RANK LEAST MOST
		var n [3]uint64
		for i := range n {
			if n[i], err = strconv.ParseUint(words[1+i], 10, 64); err != nil {
				return "", err
			}
		}
		m := k.memory[words[0]]
		for at := n[0]; at < uint64(len(m)); at += 512 {
			if v := m[at]; v < n[1] || v > n[2] {
				return fmt.Sprintf("word %d is %d, want %d to %d", at, v, n[1], n[2]), nil
			}
		}
	case "storm": // NAME SEED
		seed, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			return "", err
		}
		storm(k.memory[words[0]], seed, k.c.Rank())
	case "is": // NAME FILE
		b, err := os.ReadFile(words[1])
		if err != nil {
			return "", err
		}
		wrong, first := 0, ""
		for i, v := range k.memory[words[0]] {
			if want := binary.LittleEndian.Uint64(b[8*i:]); v != want {
				if wrong++; first == "" {
					first = fmt.Sprintf("word %d is %x, want %x", i, v, want)
				}
			}
		}
		if wrong > 0 {
			return fmt.Sprintf("%d words differ: %s", wrong, first), nil
		}
	default:
		return "", errNotMine
	}
	return "", nil
}

// model is what the memory of a crew should hold.
type model []uint64

// write writes it to a file.
func (m model) write(t *testing.T) string {
	t.Helper()
	b := make([]byte, 0, 8*len(m))
	for _, v := range m {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCheckpointWhileStoring: from the moment that BeginCheckpoint returns all ranks store
// everywhere, so that pages travel while they are saved. The checkpoint has what was stored before,
// and nothing else; so has the next one, which is incremental. Beside that goroutines store all the
// time, of which it is only known between which values they were.
func TestCheckpointWhileStoring(t *testing.T) {
	t.Parallel()
	const ranks = 4
	n := unlessShort(512, 128) * 512
	r, dir := chance(t), t.TempDir()
	m := make(model, n)
	all := engage(t, 3, ranks)
	all.do(t, "ok", "words data %d", n)
	all.do(t, "ok", "words noise %d", 64*512)
	for i := range m[:n/2] { // the other half is zeros
		m[i] = stamp(1, uint64(i))
	}
	for rank, p := range all {
		p.Do(t, "ok", "stamp data 1 %d %d", rank*n/2/ranks, (rank+1)*n/2/ranks)
	}
	all.do(t, "ok", "noise noise")
	for round := range 2 {
		before := m.write(t)
		seed := r.Uint64N(1 << 40)
		bounds := all.ask(t, "during %s data %d state=%d", dir, seed, round)
		storm(m, seed, 0)
		verified(t, dir)
		noRemains(t, dir)
		x := newest(t, dir)
		t.Logf("checkpoint %d: base %d, %d KiB of its own; noise %q", x.Sequence, x.Base, x.OwnBytes>>10, bounds)
		if want := uint64(round); x.Base != want {
			t.Errorf("checkpoint %d has base %d, want %d", x.Sequence, x.Base, want)
		}
		others := engage(t, 1+r.IntN(3), 2)
		others.do(t, fmt.Sprintf("restored %d", round), "restore %s", dir)
		others.do(t, "ok", "words data %d", n)
		others.do(t, "ok", "words noise %d", 64*512)
		others.do(t, "ok", "is data %s", before)
		for rank, b := range bounds {
			least, most, ok := strings.Cut(b, " ")
			if !ok {
				t.Fatalf("rank %d answered %q", rank, b)
			}
			others[r.IntN(2)].Do(t, "ok", "between noise %d %s %s", rank, least, most)
		}
		others.end(t)
		all.do(t, "ok", "is data %s", m.write(t)) // the storm is as it should be
		// Something else than a storm between one checkpoint and the next.
		seed = r.Uint64N(1 << 40)
		all[r.IntN(ranks)].Do(t, "ok", "storm data %d", seed)
		storm(m, seed, 0)
	}
	all.do(t, "ok", "quiet")
	all.end(t)
}

// goesOnWhereItDoesNotFit restores checkpoint 2, and takes two more: at once, when nobody has
// touched anything, and, when all has been found as in a file, after a storm.
func goesOnWhereItDoesNotFit(t *testing.T, all crew, dir string, n int, file string) {
	t.Helper()
	all.do(t, "restored ", "restore %s", dir)
	all.do(t, "ok", "words data %d", n)
	all.do(t, "ok", "save %s", dir)
	if x := newest(t, dir); x.Base != 2 || x.OwnBytes > 0 {
		t.Errorf("checkpoint %d of what nobody has touched has base %d and %d bytes of its own", x.Sequence, x.Base, x.OwnBytes)
	}
	all[1].Do(t, "ok", "is data %s", file)
	all[0].Do(t, "ok", "storm data 5")
	all.do(t, "ok", "save %s", dir)
	if x := newest(t, dir); x.Base != 3 {
		t.Errorf("checkpoint %d has base %d", x.Sequence, x.Base)
	}
	verified(t, dir)
	noRemains(t, dir)
	all.end(t)
}

// TestCheckpointOfMoreThanFits: a checkpoint of more than the nodes may have together, most of
// which lies in files, goes back into such nodes. No node has more than it may meanwhile.
func TestCheckpointOfMoreThanFits(t *testing.T) {
	long(t)
	// Not beside others: pages go to and fro all the time, for minutes on cores that others use.
	// Other temporary files may be in memory.
	dir, err := os.MkdirTemp("/var/tmp", "dsmd-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	spill, dir := filepath.Join(dir, "spill"), filepath.Join(dir, "checkpoints")
	if err := os.Mkdir(spill, 0o700); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--memory", "4MiB", "--spill", spill}
	const n, nodes = 2304 * 512, 2 // 9 MiB
	m := make(model, n)
	for i := range m {
		m[i] = stamp(1, uint64(i))
	}
	all := engage(t, nodes, nodes, flags...)
	all.do(t, "ok", "words data %d", n)
	for rank, p := range all {
		p.Say(t, "stamp data 1 %d %d", rank*n/nodes, (rank+1)*n/nodes)
	}
	for _, p := range all {
		p.Expect(t, "ok")
	}
	var models []string
	for seed := range 2 {
		models = append(models, m.write(t))
		all.toldAll(t, fmt.Sprintf("during %s data %d", dir, seed), " ")
		storm(m, uint64(seed), 0)
		if x := newest(t, dir); x.Base != uint64(seed) {
			t.Errorf("checkpoint %d has base %d", x.Sequence, x.Base)
		}
	}
	verified(t, dir)
	noRemains(t, dir)
	all[0].Do(t, "ok", "is data %s", m.write(t))
	all.end(t)
	all = engage(t, nodes, nodes, flags...)
	all.do(t, "restored ", "restore %s", filepath.Join(dir, checkpoint.ManifestName(1)))
	all.do(t, "ok", "words data %d", n)
	all[0].Do(t, "ok", "is data %s", models[0])
	all.end(t)
	goesOnWhereItDoesNotFit(t, engage(t, nodes, nodes, flags...), dir, n, models[1])
	if names, err := os.ReadDir(spill); len(names) > 0 || err != nil {
		t.Errorf("in the directory are %v, %v", names, err)
	}
}
