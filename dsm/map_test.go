package dsm

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"dsmd/internal/attach"
	"dsmd/internal/checkpoint"
)

// What becomes of files that are mapped, package e2e tests. Here is what a program asks for.

// mappingOf is a mapping with options, of a cluster of so many ranks.
func mappingOf(ranks int, opts ...MapOption) *mapping {
	c := &Cluster{welcome: attach.Welcome{PageBytes: 4096, Size: uint32(ranks), Nodes: uint32(ranks)}}
	f := &mapping{mapOptions: mapOptions{length: -1}, fd: -1, cluster: c}
	for _, opt := range opts {
		opt(&f.mapOptions)
	}
	return f
}

func layoutFor[T any](t *testing.T) layout {
	t.Helper()
	l, err := layoutOf[T]()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestMapOptions: options that can't be meant are refused before anybody is asked.
func TestMapOptions(t *testing.T) {
	words, nothing := layoutFor[uint64](t), layoutFor[struct{}](t)
	for name, is := range map[string]struct {
		opt  MapOption
		l    layout
		want string
	}{
		"none":                        {Private(), words, ""},
		"a part":                      {Part(8192, 5), words, ""},
		"the last rank":               {OnRank(2), words, ""},
		"stripes":                     {Striped(1 << 20), words, ""},
		"nothing":                     {WriteBack(), nothing, "has no bytes"},
		"a part within a page":        {Part(100, -1), words, "byte 100"},
		"a part before the beginning": {Part(-4096, -1), words, "byte -4096"},
		"a part of nothing":           {Part(0, 0), words, "0 elements"},
		"a part of less than nothing": {Part(0, -2), words, "-2 elements"},
		"a part of stripes":           {func(o *mapOptions) { Striped(4096)(o); Part(4096, 7)(o) }, words, "only number with Striped"},
		"a rank too many":             {OnRank(3), words, "there are 3 ranks"},
		"no rank":                     {OnRank(-1), words, "OnRank(-1)"},
		"no stripes":                  {Striped(0), words, "Striped(0)"},
		"stripes of less than a page": {Striped(4095), words, "Striped(4095)"},
		"stripes of less than none":   {Striped(-4096), words, "Striped(-4096)"},
	} {
		err := mappingOf(3, is.opt).check(3, is.l)
		if is.want == "" && err != nil || is.want != "" && (!errors.Is(err, ErrFile) || !strings.Contains(err.Error(), is.want)) {
			t.Errorf("%s: %v, want %q", name, err, is.want)
		}
	}
}

// TestMapMeasures: how much of files is mapped, and what does not fit.
func TestMapMeasures(t *testing.T) {
	const open = -1 // it could not be opened
	for name, is := range map[string]struct {
		opt   MapOption
		sizes []int64 // by rank
		bytes int64   // of each file, mapped
		n     int
		want  string
	}{
		"all of it":                    {Private(), []int64{80, 80, 80}, 80, 10, ""},
		"from a page on":               {Part(4096, -1), []int64{4104, 4104, 4104}, 8, 1, ""},
		"some of it":                   {Part(4096, 3), []int64{9000, 9000, 9000}, 24, 3, ""},
		"all that there is":            {Part(0, 10), []int64{80, 80, 80}, 80, 10, ""},
		"one rank has it":              {OnRank(1), []int64{open, 80, 7}, 80, 10, ""},
		"stripes":                      {Striped(4096), []int64{8192, 8192, 8192}, 8192, 3072, ""},
		"whole files":                  {Striped(8192), []int64{8192, 8192, 8192}, 8192, 3072, ""},
		"stripes from a page on":       {func(o *mapOptions) { Striped(8192)(o); Part(4096, -1)(o) }, []int64{12288, 12288, 12288}, 8192, 3072, ""},
		"more than there is":           {Part(0, 11), []int64{80, 80, 80}, 0, 0, "11 elements of 8 bytes"},
		"far more than there is":       {Part(0, 1<<62), []int64{80, 80, 80}, 0, 0, "are wanted"},
		"from the end on":              {Part(4096, -1), []int64{4096, 4096, 4096}, 0, 0, "none of them from byte 4096"},
		"from behind the end on":       {Part(8192, -1), []int64{4096, 4096, 4096}, 0, 0, "none of them from byte 8192"},
		"an element from behind it on": {Part(8192, 1), []int64{4096, 4096, 4096}, 0, 0, "wanted from byte 8192"},
		"an empty file":                {Private(), []int64{0, 0, 0}, 0, 0, "0 bytes"},
		"a part of an element":         {Private(), []int64{81, 81, 81}, 0, 0, "no whole number"},
		"another length":               {Private(), []int64{80, 80, 88}, 0, 0, "88 bytes at rank 2, and 80 at another"},
		"stripes of two lengths":       {Striped(4096), []int64{8192, 4096, 8192}, 0, 0, "4096 bytes at rank 1"},
		"stripes that don't fit":       {Striped(8192), []int64{12288, 12288, 12288}, 0, 0, "no multiple of the 8192"},
		"one could not open it":        {Private(), []int64{80, open, 80}, 0, 0, "rank 1 could not open it"},
	} {
		f := mappingOf(3, is.opt)
		f.nodes = f.which(func(rank int) int { return 10 + rank })
		n, err := f.measure(layoutFor[uint64](t), func(rank int) (int64, bool, bool) {
			has := f.nodes == nil || slices.Contains(f.nodes, 10+rank)
			return is.sizes[rank], has && is.sizes[rank] == open, has
		})
		switch {
		case is.want != "":
			if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), is.want) {
				t.Errorf("%s: %d elements, %v, want %q", name, n, err, is.want)
			}
		case err != nil || n != is.n || f.bytes != is.bytes:
			t.Errorf("%s: %d elements, %d bytes of each file, %v; want %d and %d", name, n, f.bytes, err, is.n, is.bytes)
		}
	}
}

// TestMapStripesOfManyNodes: as many nodes may have a file as a daemon can be told.
func TestMapStripesOfManyNodes(t *testing.T) {
	for nodes, want := range map[int]error{attach.MaxReaders: nil, attach.MaxReaders + 1: ErrFile} {
		f := mappingOf(nodes, Striped(4096))
		f.nodes = f.which(func(rank int) int { return rank })
		_, err := f.measure(layoutFor[uint64](t), func(int) (int64, bool, bool) { return 4096, false, true })
		if !errors.Is(err, want) {
			t.Errorf("a file at each of %d nodes: %v, want %v", nodes, err, want)
		}
		if err == nil {
			said := attach.Contents{}
			for rank := range nodes {
				said.Readers = append(said.Readers, uint16(rank))
			}
			call := attach.Call{Op: attach.OpContents, Ticket: 1, Object: 1, Count: 1, Payload: attach.AppendContents(nil, &said)}
			attach.AppendCall(nil, &call) // panics if it can't
		}
	}
}

// TestMapNodes: nodes have files in the order of their lowest ranks, each one.
func TestMapNodes(t *testing.T) {
	nodes := []int{2, 0, 2, 1, 0}
	node := func(rank int) int { return nodes[rank] }
	for _, is := range []struct {
		opt  MapOption
		want []int
	}{{Private(), nil}, {OnRank(3), []int{1}}, {Striped(4096), []int{2, 0, 1}}} {
		if got := mappingOf(len(nodes), is.opt).which(node); !slices.Equal(got, is.want) {
			t.Errorf("nodes %v have files, want %v", got, is.want)
		}
	}
}

// TestMapHash: ranks that mean something else bring another value.
func TestMapHash(t *testing.T) {
	words, l := layoutFor[uint64](t), layoutFor[int64](t)
	seen := map[uint64]string{}
	for name, f := range map[string]*mapping{
		"plain": mappingOf(2), "private": mappingOf(2, Private()), "back": mappingOf(2, WriteBack()), "rank 0": mappingOf(2, OnRank(0)),
		"rank 1": mappingOf(2, OnRank(1)), "striped": mappingOf(2, Striped(4096)), "wider": mappingOf(2, Striped(8192)),
		"part": mappingOf(2, Part(4096, -1)), "first": mappingOf(2, Part(0, 10)),
	} {
		f.path, f.bytes = "/a", 80
		if again := mappingOf(2); name == "plain" {
			if again.path, again.bytes = "/a", 80; again.hash(words, 10) != f.hash(words, 10) {
				t.Error("the same has two values")
			}
		}
		h := f.hash(words, 10)
		for other, with := range map[string]uint64{"another type": f.hash(l, 10), "another length": f.hash(words, 11)} {
			if with == h {
				t.Errorf("%s: %s has the same value", name, other)
			}
		}
		if before, is := seen[h]; is {
			t.Errorf("%s and %s have the same value", name, before)
		}
		seen[h] = name
	}
}

// mapDaemon is what a daemon was told that takes files.
type mapDaemon struct {
	mu      sync.Mutex // guards what follows, which the daemon's goroutines use, too
	said    []attach.Contents
	refusal string // with which it refuses; "": it does not
}

// expect forgets what was said, and has the daemon refuse what follows, with a text, or not.
func (d *mapDaemon) expect(refusal string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said, d.refusal = nil, refusal
}

// heard is what was said since.
func (d *mapDaemon) heard() []attach.Contents {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.said)
}

// answers has a daemon take files and note what pages begin with.
func (d *mapDaemon) answers() func(*fake) {
	return func(f *fake) {
		f.answer = func(call attach.Call) (r attach.Reply, mine bool) {
			r.Ticket = call.Ticket
			switch call.Op {
			case attach.OpFile:
				r.Rank = 7
				return r, true
			case attach.OpContents:
				what, err := attach.DecodeContents(call.Payload)
				if err != nil {
					f.t.Error(err)
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				if d.said = append(d.said, what); d.refusal != "" {
					r.Status, r.Payload = attach.StatusUnknown, []byte(d.refusal)
				}
				return r, true
			}
			return r, false
		}
	}
}

// TestMapSays: what a program tells its daemon. What the daemon refuses is an error that says why,
// and the name is free again.
func TestMapSays(t *testing.T) {
	var daemon mapDaemon
	f := newFake(t, 1, daemon.answers())
	c := f.join()
	for name, is := range map[string]struct {
		opts []MapOption
		want attach.Contents
	}{
		"plain":   {nil, attach.Contents{Files: 1, First: 7, Bytes: 3 * testPage}},
		"part":    {[]MapOption{Private(), Part(testPage, 3)}, attach.Contents{Files: 1, First: 7, Offset: testPage, Bytes: 24}},
		"back":    {[]MapOption{WriteBack(), OnRank(0)}, attach.Contents{Files: 1, First: 7, Bytes: 3 * testPage, Written: true, Readers: []uint16{0}}},
		"striped": {[]MapOption{Striped(3 * testPage)}, attach.Contents{Files: 1, First: 7, Bytes: 3 * testPage, Stripe: 3, Readers: []uint16{0}}},
	} {
		daemon.expect("")
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, make([]byte, 3*testPage), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Map[uint64](within(t), c, path, is.opts...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if said := daemon.heard(); len(said) != 1 || !reflect.DeepEqual(said[0], is.want) {
			t.Errorf("%s: the daemon is told %+v, want %+v", name, said, is.want)
		}
		again, err := Map[uint64](within(t), c, path, is.opts...)
		if err != nil || &again[0] != &s[0] || len(daemon.heard()) != 1 {
			t.Errorf("%s: a second Map is at %p, %v, and the first at %p; the daemon is told %d times", name, &again[0], err, &s[0], len(daemon.heard()))
		}
		if _, err := Map[uint64](within(t), c, path, append(is.opts, func(o *mapOptions) { o.mode = (o.mode + 1) % 3 })...); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: mapped with other options: %v", name, err)
		}
		if _, err := Alloc[uint64](within(t), c, path, len(s)); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: allocated under the same name: %v", name, err)
		}
		if slices.ContainsFunc(is.opts, func(o MapOption) bool { m := mappingOf(1, o); return m.mode == writeBack }) {
			continue // Free would write it
		}
		if err := errors.Join(Free(within(t), c, again), Free(within(t), c, s)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	daemon.expect("no such luck")
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, make([]byte, 80), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Map[uint64](within(t), c, other)
	if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("refused: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.names[c.scoped(other)] != nil {
		t.Error("the name is taken although it could not be mapped")
	}
	for _, call := range f.calls {
		if call.Op == attach.OpBind && call.Access != attach.Read {
			t.Errorf("memory for a file is bound with access %v", call.Access)
		}
	}
}

// TestFailedSyncKeepsLength: a file whose last page was written whole has its length back, also
// when Sync fails.
func TestFailedSyncKeepsLength(t *testing.T) {
	const bytes = testPage + 8
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	var daemon mapDaemon
	f := newFake(t, 1, daemon.answers(), func(f *fake) {
		maps := f.answer
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			switch call.Op {
			case attach.OpCheckpoint:
				return attach.Reply{Ticket: call.Ticket, Status: attach.StatusUnknown, Payload: []byte("no such luck")}, true
			case attach.OpSaved: // the last page was under way
				if err := os.Truncate(path, 2*testPage); err != nil {
					t.Error(err)
				}
				return attach.Reply{Ticket: call.Ticket}, true
			}
			return maps(call)
		}
	})
	c := f.join()
	if _, err := Map[uint64](within(t), c, path, WriteBack()); err != nil {
		t.Fatal(err)
	}
	wantError(t, Sync(within(t), c), ErrFile, "no such luck")
	if is, err := os.Stat(path); f.count(attach.OpSaved) != 1 || err != nil || is.Size() != bytes {
		t.Errorf("the file has %d bytes, %v, and had %d", is.Size(), err, bytes)
	}
}

// TestWriteBackOfCheckpoint: contents that come from a checkpoint could not be written to the file,
// nor given up, as Free does what Sync does. So it is not mapped.
func TestWriteBackOfCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, testPage), 0o600); err != nil {
		t.Fatal(err)
	}
	var daemon mapDaemon
	c := newFake(t, 1, daemon.answers()).join()
	is := must(layoutOf[uint64]())
	c.saves.from = &restored{path: "/saved", images: map[string]*checkpoint.Image{path: {Memory: checkpoint.Memory{Name: path, TypeHash: is.hash, Count: testPage / 8}}}}
	_, err := Map[uint64](within(t), c, path, WriteBack())
	wantError(t, err, ErrMismatch, "/saved", "Private")
}

// programBoard posts and reads where a page is lost.
func programBoard(c *Cluster) {
	b := memoryBoard{c, must(Alloc[byte](context.Background(), c, "board", 4*testPage))}
	posted := b.post(make([]byte, 4*testPage))
	_, read := b.read(0, 4*testPage)
	fmt.Println(errors.Is(posted, ErrPageLost), errors.Is(read, ErrPageLost))
}

// TestBoardIsLost: a page of the board that is lost is an error of Sync.
func TestBoardIsLost(t *testing.T) {
	requirePoison(t)
	f := newFake(t, 1, losePages(t))
	if status, out, stderr := f.start("board").end(); status != 0 || out != "true true\n" {
		t.Errorf("status %d, output %q\n%s", status, out, stderr)
	}
}

// TestSavedTwice: ranks find out which pages they save that another saves, too, in each round.
func TestSavedTwice(t *testing.T) {
	const size = 16 // bytes of bits
	file, err := newMemoryOrder([]*allocation{{bytes: 64 * testPage}}, testPage)
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	all := make([]byte, 2*size)
	c := &Cluster{welcome: attach.Welcome{Size: 2}}
	s := &Saving{c: c, file: file, said: memoryBoard{c, all}}
	for _, round := range []struct{ own, other, twice byte }{{0b0011, 0b0110, 0b0010}, {0b1111, 0b11111, 0b1010}} {
		own := make([]byte, size)
		own[0], all[size] = round.own, round.other
		if err := file.writeBits(own); err != nil {
			t.Fatal(err)
		}
		missing, err := s.collect()
		if want := uint64(64 - bits.OnesCount8(round.own|round.other)); err != nil || missing != want {
			t.Errorf("%d pages are missing, %v, want %d", missing, err, want)
		}
		if s.twice[0] != round.twice {
			t.Errorf("saved twice are %b, want %b", s.twice[0], round.twice)
		}
	}
}

// TestBoardInMemory: each rank has a part of its own.
func TestBoardInMemory(t *testing.T) {
	all := make([]byte, 24)
	for rank := range 3 {
		b := memoryBoard{&Cluster{welcome: attach.Welcome{Rank: uint32(rank), Size: 3}}, all}
		if err := b.post([]byte{1, byte(rank), 3, 4, 5, 6, 7, 8}); err != nil {
			t.Fatal(err)
		}
		b.clear()
	}
	b := memoryBoard{&Cluster{welcome: attach.Welcome{Size: 3}}, all}
	for rank := range 3 {
		if got, err := b.read(rank, 8); err != nil || !slices.Equal(got, []byte{1, byte(rank), 3, 4, 5, 6, 7, 8}) {
			t.Errorf("rank %d has posted %v, %v", rank, got, err)
		}
	}
}
