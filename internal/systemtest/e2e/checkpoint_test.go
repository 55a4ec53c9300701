package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/checkpoint"
	"dsmd/internal/systemtest/testcluster"
)

// keeper is a console that also takes and restores checkpoints.
var keeper = testcluster.Define("keeper", func(s *testcluster.Self) error {
	return converse(s, func(d desk) obedient { return &safe{desk: d} })
})

// safe is what a keeper works with.
type safe struct {
	desk
	saving *dsm.Saving
	noise  *noise
}

// kinds are errors of checkpoints, with the words by which a keeper tells which it has met.
var kinds = []struct {
	err  error
	word string
}{
	{dsm.ErrMismatch, "mismatch"}, {dsm.ErrCheckpoint, "no checkpoint"}, {dsm.ErrPageLost, "page lost"},
	{dsm.ErrInUse, "in use"}, {dsm.ErrUnknown, "unknown"}, {dsm.ErrNodeLost, "node lost"},
}

// obey does what a line says: "verb name words...".
func (k *safe) obey(line []string) string {
	var answer string
	var err error
	if caught := dsm.Guard(func() { answer, err = k.verb(line) }); caught != nil {
		err = caught
	}
	switch {
	case err == errNotMine:
		return k.desk.obey(line)
	case errors.Is(err, context.DeadlineExceeded):
		return "too late"
	case err != nil:
		for _, kind := range kinds {
			if errors.Is(err, kind.err) {
				return "error: " + kind.word + ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
			}
		}
		return "error: " + err.Error()
	case answer == "":
		return "ok"
	}
	return answer
}

func (k *safe) verb(line []string) (answer string, err error) {
	words := line[1:]
	switch line[0] {
	case "restore": // PATH
		state, err := k.c.Restore(k.ctx, words[0])
		return "restored " + string(state), err
	case "save": // DIR OPTION...
		return "", k.c.Checkpoint(k.ctx, words[0], options(words[1:])...)
	case "begin":
		k.saving, err = k.c.BeginCheckpoint(k.ctx, words[0], options(words[1:])...)
		return "", err
	case "finish": // within words[0] milliseconds, or when it is too late already
		within := "0"
		if len(words) > 0 {
			within = words[0]
		}
		if within == "late" {
			ctx, cancel := context.WithDeadline(k.ctx, time.Unix(0, 0))
			defer cancel()
			return "", k.saving.Wait(ctx)
		}
		ms, err := strconv.ParseUint(within, 10, 64)
		if err != nil {
			return "", err
		}
		ctx, cancel := k.within(ms)
		defer cancel()
		return "", k.saving.Wait(ctx)
	case "alloc32": // NAME COUNT
		n, err := strconv.Atoi(words[1])
		if err == nil {
			_, err = dsm.Alloc[uint32](k.ctx, k.c, words[0], n)
		}
		return "", err
	case "words": // NAME COUNT
		n, err := strconv.Atoi(words[1])
		if err == nil {
			k.memory[words[0]], err = dsm.Alloc[uint64](k.ctx, k.c, words[0], n)
		}
		return "", err
	case "stamp", "same", "scatter": // NAME SEED FIRST END
		var n [3]uint64
		for i := range n {
			if n[i], err = strconv.ParseUint(words[1+i], 10, 64); err != nil {
				return "", err
			}
		}
		m := k.memory[words[0]][n[1]:n[2]]
		switch line[0] {
		case "stamp":
			for i := range m {
				m[i] = stamp(n[0], n[1]+uint64(i))
			}
		case "same":
			for i, v := range m {
				if want := stamp(n[0], n[1]+uint64(i)); v != want {
					return fmt.Sprintf("word %d is %x, want %x", n[1]+uint64(i), v, want), nil
				}
			}
		case "scatter": // as many stores as there are words, in an order of the seed's
			for i := range uint64(len(m)) {
				at := stamp(n[0], i) % uint64(len(m))
				m[at] = ^m[at] | 1
			}
		}
		return "", nil
	}
	return k.stormVerb(line)
}

// stamp is what a word holds that was stamped with a seed: something other than 0.
func stamp(seed, i uint64) uint64 {
	x := (i + 1) * 0x9e3779b97f4a7c15 * (2*seed + 1)
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32 | 1
}

func options(words []string) (list []dsm.CheckpointOption) {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "whole":
			list = append(list, dsm.Whole())
		case "state":
			list = append(list, dsm.State([]byte(value)))
		case "only":
			list = append(list, dsm.Only(strings.Split(value, ",")...))
		default:
			panic("no such option: " + w)
		}
	}
	return list
}

// crew is the programs of a job, all keepers, by rank.
type crew []*testcluster.Process

// engage starts a cluster, and a job of so many ranks, dealt to its nodes in turns.
func engage(t *testing.T, nodes, ranks int, flags ...string) (all crew) {
	t.Helper()
	all, _ = engageAt(t, nodes, ranks, flags...)
	return all
}

// engageAt is engage, and returns the cluster, too.
func engageAt(t *testing.T, nodes, ranks int, flags ...string) (all crew, c *testcluster.Cluster) {
	t.Helper()
	c = serve(t, nodes, ranks, flags...)
	for rank := range ranks {
		all = append(all, c.Program(t, keeper, rank%nodes, rank))
	}
	for rank, p := range all {
		p.Expect(t, fmt.Sprintf("rank %d of %d", rank, ranks))
	}
	return all, c
}

// ask gives all a line at the same time, and returns their answers.
func (all crew) ask(t *testing.T, format string, args ...any) (answers []string) {
	t.Helper()
	for _, p := range all {
		p.Say(t, format, args...)
	}
	for _, p := range all {
		answers = append(answers, p.Hear(t))
	}
	return answers
}

// do gives all a line at the same time, and fails the test if an answer is not want.
func (all crew) do(t *testing.T, want, format string, args ...any) {
	t.Helper()
	for rank, got := range all.ask(t, format, args...) {
		if got != want {
			t.Fatalf("rank %d answered %q with %q, want %q", rank, fmt.Sprintf(format, args...), got, want)
		}
	}
}

// end lets all end, and expects them to succeed.
func (all crew) end(t *testing.T) {
	t.Helper()
	for _, p := range all {
		p.End()
	}
	for _, p := range all {
		p.Succeed(t)
	}
}

// verified fails the test if the newest checkpoint of a directory, or the one of a manifest, is not
// as it was written.
func verified(t *testing.T, path string) {
	t.Helper()
	if err := readWhole(path); err != nil {
		t.Fatal(err)
	}
}

// readWhole reads all that a checkpoint needs, which is named by its directory or its manifest.
func readWhole(path string) error {
	m, err := checkpoint.Load(path)
	if err != nil {
		return err
	}
	return m.Verify(nil)
}

// listed are the checkpoints of a directory, all of which can be used.
func listed(t *testing.T, dir string) []checkpoint.Summary {
	t.Helper()
	s, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if x.Problem != "" {
			t.Fatalf("%s: %s", x.Path, x.Problem)
		}
	}
	return list
}

// newest is the last checkpoint of a directory.
func newest(t *testing.T, dir string) checkpoint.Summary {
	t.Helper()
	list := listed(t, dir)
	if len(list) == 0 {
		t.Fatalf("%s has no checkpoint", dir)
	}
	return list[len(list)-1]
}

// noRemains fails the test if a directory has files that no checkpoint there needs.
func noRemains(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	needed := map[string]bool{filepath.Join(dir, "lock"): true}
	for _, x := range listed(t, dir) {
		m, err := checkpoint.Load(x.Path)
		if err != nil {
			t.Fatal(err)
		}
		needed[x.Path] = true
		for _, p := range m.Parts {
			needed[filepath.Join(dir, p.File)] = true
		}
	}
	for _, f := range files {
		if !needed[f] {
			t.Errorf("%s is left, which no checkpoint needs", f)
		}
	}
}
