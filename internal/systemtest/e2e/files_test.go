package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
)

// librarian is a keeper that also maps files.
var librarian = testcluster.Define("librarian", func(s *testcluster.Self) error {
	return converse(s, func(d desk) obedient { return &library{safe{desk: d}} })
})

// library is what a librarian works with.
type library struct{ safe }

// here is a path that means another file in each program: in the directory that it is in.
const here = "/proc/self/cwd/pages"

func (k *library) obey(line []string) string {
	var err error
	words := line[1:]
	switch line[0] {
	case "cd":
		err = os.Chdir(words[0])
	case "map": // NAME PATH OPTION...
		k.memory[words[0]], err = dsm.Map[uint64](k.ctx, k.c, words[1], mapOptions(words[2:])...)
		if err == nil {
			return fmt.Sprintf("%d words", len(k.memory[words[0]]))
		}
	case "together": // PATH DIR NAME: maps, beside checkpoints of NAME and Sync
		err = k.together(words[0], words[1], dsm.Only(words[2]))
	case "sync":
		err = dsm.Sync(k.ctx, k.c)
	case "clear": // NAME FIRST END
		var from, end int
		if _, err = fmt.Sscan(words[1]+" "+words[2], &from, &end); err == nil {
			clear(k.memory[words[0]][from:end])
		}
	case "fetch": // NAME
		err = dsm.Prefetch(k.ctx, k.c, k.memory[words[0]], dsm.Write)
	case "break": // NAME WORD: a store that faults
		i, bad := strconv.Atoi(words[1])
		if bad != nil {
			return bad.Error()
		}
		return faults(&k.memory[words[0]][i])
	default:
		return k.safe.obey(line)
	}
	if err != nil {
		return "error: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return "ok"
}

func (k *library) together(path, dir string, only dsm.CheckpointOption) error {
	todo := []func() error{
		func() error {
			m, err := dsm.Map[uint64](k.ctx, k.c, path)
			if err == nil {
				err = dsm.Free(k.ctx, k.c, m)
			}
			return err
		},
		func() error { // one after the other, as a rank does only one of them at a time
			err := k.c.Checkpoint(k.ctx, dir, only)
			if err == nil {
				err = dsm.Sync(k.ctx, k.c)
			}
			return err
		},
	}
	failed := make([]error, len(todo))
	var all sync.WaitGroup
	for i, do := range todo {
		all.Go(func() {
			for n := 0; n < 8 && failed[i] == nil; n++ {
				failed[i] = do()
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// faults tells whether a store ends as that of a program does which has no right to it.
func faults(word *uint64) (answer string) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			answer = "it faults"
		}
	}()
	*word = 1
	return "it does not fault"
}

func mapOptions(words []string) (list []dsm.MapOption) {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		n, err := strconv.Atoi(value)
		if err != nil && value != "" {
			panic(err)
		}
		switch name {
		case "private":
			list = append(list, dsm.Private())
		case "back":
			list = append(list, dsm.WriteBack())
		case "on":
			list = append(list, dsm.OnRank(n))
		case "striped":
			list = append(list, dsm.Striped(int64(n)))
		case "from":
			list = append(list, dsm.Part(int64(n), -1))
		default:
			panic("no such option: " + w)
		}
	}
	return list
}

// librarians starts a cluster and a job of as many ranks, all librarians, each in a directory of
// its own.
func librarians(t *testing.T, nodes int, flags ...string) (all crew, c *testcluster.Cluster, dirs []string) {
	t.Helper()
	c = serve(t, nodes, nodes, flags...)
	for rank := range nodes {
		all = append(all, c.Program(t, librarian, rank, rank))
	}
	for rank, p := range all {
		p.Expect(t, fmt.Sprintf("rank %d of %d", rank, nodes))
		dirs = append(dirs, t.TempDir())
		p.Say(t, "cd %s", dirs[rank])
		p.Expect(t, "ok")
	}
	return all, c, dirs
}

// stamped are words as "stamp" leaves them.
func stamped(seed, words uint64) []byte {
	b := make([]byte, 0, 8*words)
	for i := range words {
		b = binary.NativeEndian.AppendUint64(b, stamp(seed, i))
	}
	return b
}

// lay writes a file.
func lay(t *testing.T, path string, contents []byte) string {
	t.Helper()
	if err := os.WriteFile(path, contents, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantFile fails the test if a file has other contents.
func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%s has %d bytes, want %d", path, len(got), len(want))
	}
	if !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		t.Fatalf("%s is another from byte %d on (page %d): %x, want %x", path, at, at/os.Getpagesize(), got[at:][:8], want[at:][:8])
	}
}

// sum is a counter of the nodes of a crew together.
func (all crew) sum(t *testing.T, name string) (n uint64) {
	t.Helper()
	for _, p := range all {
		n += counter(t, p, name)
	}
	return n
}

// TestMap: a file is shared memory at all ranks, with both traps. What lies behind its end is not
// there, and it can't be stored to.
func TestMap(t *testing.T) {
	t.Parallel()
	withEachWay(t, func(t *testing.T, flags []string) {
		all, _, dirs := librarians(t, 3, flags...)
		const words = 100*512 + 3
		path := lay(t, filepath.Join(dirs[0], "file"), stamped(5, words))
		all.do(t, fmt.Sprintf("%d words", words), "map m %s", path)
		all.do(t, "ok", "same m 5 0 %d", words)
		all.do(t, "it faults", "break m 7")
		all[1].Do(t, fmt.Sprintf(`error: dsm: Prefetch: it is mapped for reading only: map "%s" with Private or WriteBack`, path), "fetch m")
		all.do(t, "ok", "same m 5 0 %d", words)
		if n := all.sum(t, "pages_from_files"); n < 101 || n > 3*101 {
			t.Errorf("%d pages of 101 came from the file", n)
		}
		all.do(t, fmt.Sprintf("%d words", words), "map again %s", path)
		all.do(t, "ok", "free again")
		all.do(t, "ok", "same m 5 0 %d", words)
		all.do(t, "ok", "free m")
		path = lay(t, path, stamped(6, words))
		all.do(t, fmt.Sprintf("%d words", words-512), "map m %s from=4096", path)
		all[2].Do(t, fmt.Sprint(stamp(6, 512)), "get m 0")
		all.end(t)
	})
}

// TestMapBesideCheckpoint: a goroutine of each rank maps files while another takes checkpoints and
// writes back, and each meets only those that do the same.
func TestMapBesideCheckpoint(t *testing.T) {
	t.Parallel()
	all, _, dirs := librarians(t, 3)
	const words = 512
	path, back := lay(t, filepath.Join(dirs[0], "file"), stamped(5, words)), lay(t, filepath.Join(dirs[0], "back"), stamped(6, words))
	all.do(t, fmt.Sprintf("%d words", words), "map b %s back", back)
	all.do(t, "ok", "alloc32 a %d", words)
	all.do(t, "ok", "together %s %s a", path, t.TempDir())
	all.end(t)
}

// TestMapOnRank: only one node has the file, and the others get its pages from there, in order or
// not. Stores of a private mapping stay in memory.
func TestMapOnRank(t *testing.T) {
	t.Parallel()
	all, _, dirs := librarians(t, 3)
	const words = 700*512 + 9
	contents := stamped(5, words)
	path := lay(t, filepath.Join(dirs[1], "pages"), contents)
	all.do(t, fmt.Sprintf("%d words", words), "map m %s on=1", here)
	all[2].Do(t, fmt.Sprint(stamp(5, 512*600+1)), "get m %d", 512*600+1)
	all[0].Do(t, "ok", "same m 5 0 %d", words) // before the pages are in other memory
	all.do(t, "ok", "same m 5 0 %d", words)
	if n := counter(t, all[1], "pages_read_for_others"); n < 100 {
		t.Errorf("the node that has the file has read %d pages for others", n)
	}
	all.do(t, "ok", "free m")
	all.do(t, fmt.Sprintf("%d words", words), "map m %s on=1 private", here)
	all[0].Do(t, "ok", "stamp m 8 0 %d", 512*300+100)
	all.do(t, "ok", "same m 8 0 %d", 512*300+100)
	all.do(t, "ok", "same m 5 %d %d", 512*300+100, words)
	all.do(t, "ok", "free m")
	wantFile(t, path, contents)
	all.end(t)
}

// TestMapWritesBack: Sync writes what has changed, and nothing else, to the file that all share, to
// the one that a node has, and to those of all nodes. Free does the rest.
func TestMapWritesBack(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ where, flags string }{{"shared", ""}, {"on=2", ""}, {"striped=8192", ""}, {"striped=8192", "--reactors 3 --stripe 1"}} {
		where := test.where
		t.Run(where+test.flags, func(t *testing.T) {
			if test.flags != "" {
				requireSeveral(t)
			}
			all, _, dirs := librarians(t, 3, strings.Fields(test.flags)...)
			words := uint64(60*512 + 9) // of each file
			if where == "striped=8192" {
				words = 60 * 512
			}
			path, option := here, where
			switch where {
			case "shared":
				path, option = lay(t, filepath.Join(dirs[0], "file"), stamped(5, words)), ""
			case "on=2":
				lay(t, filepath.Join(dirs[2], "pages"), stamped(5, words))
			default:
				for i, dir := range dirs {
					lay(t, filepath.Join(dir, "pages"), stripes(stamped(5, 3*words), i))
				}
			}
			wantFiles := func(want []byte) {
				t.Helper()
				switch where {
				case "shared":
					wantFile(t, path, want)
				case "on=2":
					wantFile(t, filepath.Join(dirs[2], "pages"), want)
				default:
					for i, dir := range dirs {
						wantFile(t, filepath.Join(dir, "pages"), stripes(want, i))
					}
				}
			}
			n := words
			if where == "striped=8192" {
				n = 3 * words
			}
			want := stamped(5, n)
			all.do(t, fmt.Sprintf("%d words", n), "map m %s back %s", path, option)
			all.do(t, "ok", "same m 5 0 %d", n)
			all.do(t, "ok", "sync")
			wantFiles(want)
			for round := range uint64(3) {
				for rank, p := range all { // pages of each, and one that all change
					from, end := n*uint64(rank)/4, n*uint64(rank+1)/4-100*round
					p.Do(t, "ok", "stamp m %d %d %d", 10+round, from, end)
					copy(want[8*from:8*end], stamped(10+round, end)[8*from:])
				}
				all.do(t, "ok", "sync")
				wantFiles(want)
			}
			all[1].Do(t, "ok", "put m %d 99", n-1)
			binary.NativeEndian.PutUint64(want[8*(n-1):], 99)
			all.do(t, "ok", "free m")
			wantFiles(want)
			all.do(t, fmt.Sprintf("%d words", n), "map m %s back %s", path, option)
			all[0].Do(t, "99", "get m %d", n-1)
			all.end(t)
		})
	}
}

// stripes are the bytes of one of three files, of which 8192 come in turn.
func stripes(all []byte, file int) (part []byte) {
	for at := file * 8192; at < len(all); at += 3 * 8192 {
		part = append(part, all[at:][:8192]...)
	}
	return part
}

// TestMapOfMoreThanFits: a file that is larger than all nodes together have memory for is read
// again and again. Pages that nobody has changed are dropped, though no node has a spill file.
func TestMapOfMoreThanFits(t *testing.T) {
	t.Parallel()
	for _, option := range drawn([]string{"", "private on=1", "on=0", "private"}, 2) {
		t.Run(option, func(t *testing.T) {
			all, c, dirs := librarians(t, 2, "--memory", "4MiB")
			stop := watch(t, c, 2, 4<<20)
			words := uint64(10 << 20 / 8)
			path := here
			lay(t, filepath.Join(dirs[0], "pages"), stamped(5, words))
			lay(t, filepath.Join(dirs[1], "pages"), stamped(5, words))
			if !strings.Contains(option, "on=") {
				path = filepath.Join(dirs[0], "pages")
			}
			all.do(t, fmt.Sprintf("%d words", words), "map m %s %s", path, option)
			if strings.Contains(option, "private") { // some must stay
				all[1].Do(t, "ok", "stamp m 9 0 %d", 1<<20/8)
				all[0].Do(t, "ok", "same m 9 0 %d", 1<<20/8)
				all.do(t, "ok", "save %s only=%s", t.TempDir(), path)
			}
			for range 2 {
				all.do(t, "ok", "same m 5 %d %d", 1<<20/8, words)
			}
			if strings.Contains(option, "private") {
				all.do(t, "ok", "same m 9 0 %d", 1<<20/8)
			}
			stop()
			if all.sum(t, "pages_unloaded") == 0 {
				t.Error("no page was dropped that is in the file")
			}
			all.end(t)
		})
	}
}

// TestBadFiles: what can't be mapped is refused at all ranks, with a reason, and nothing hangs or
// is left. A file that can't be written is an error of Sync.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	all, _, dirs := librarians(t, 2)
	path := lay(t, filepath.Join(dirs[0], "pages"), stamped(5, 1024))
	odd := lay(t, filepath.Join(dirs[0], "odd"), make([]byte, 4099))
	empty := lay(t, filepath.Join(dirs[0], "empty"), nil)
	for line, want := range map[string][2]string{
		"map m " + here:                        {"the file can't be used: rank 1 could not open it", "open " + here + ": no such file or directory"},
		"map m " + filepath.Join(dirs[0], "?"): {"no such file or directory", "no such file or directory"},
		"map m " + odd:                         {"4099 bytes are no whole number of elements of 8 bytes", "4099 bytes"},
		"map m " + empty:                       {"0 bytes", "0 bytes"},
		"map m " + dirs[0]:                     {"is no regular file", "is no regular file"},
		"map m " + path + " on=2":              {"OnRank(2), and there are 2 ranks", "OnRank(2)"},
		"map m " + path + " from=100":          {"no multiple of the page size", "no multiple"},
		"map m " + path + " from=8192":         {"none of them from byte 8192 on", "none of them"},
		"map m " + path + " striped=12288":     {"no multiple of the 12288 of Striped", "no multiple"},
		"map m " + path + " striped=100":       {"no multiple of the page size", "no multiple"},
	} {
		for rank, got := range all.ask(t, "%s", line) {
			if !strings.HasPrefix(got, "error: dsm: Map ") || !strings.Contains(got, want[rank]) {
				t.Errorf("rank %d answers %q with %q, want %q", rank, line, got, want[rank])
			}
		}
	}
	longer := lay(t, filepath.Join(dirs[1], "pages"), stamped(5, 2048))
	for rank, got := range all.ask(t, "map m %s", here) {
		if !strings.Contains(got, "8192 bytes at rank") && !strings.Contains(got, "16384 bytes at rank") {
			t.Errorf("files of two lengths: rank %d answers %q", rank, got)
		}
	}
	if err := os.Remove(longer); err != nil {
		t.Fatal(err)
	}
	all[0].Say(t, "map m %s private", path)
	all[1].Say(t, "map m %s back", path)
	for rank, p := range all {
		if got := p.Hear(t); !strings.Contains(got, "ranks disagree") {
			t.Errorf("ranks with two options: rank %d answers %q", rank, got)
		}
	}
	all.do(t, "ok", "sync") // of nothing
	all.do(t, "1024 words", "map m %s back", path)
	all.do(t, "ok", "same m 5 0 1024")
	all.end(t)
}

// TestMapNodeLost: when the node that has a file is lost, the others say what they lack.
func TestMapNodeLost(t *testing.T) {
	t.Parallel()
	all, c, dirs := librarians(t, 3, "--survive")
	const words = 64 * 512
	lay(t, filepath.Join(dirs[2], "pages"), stamped(5, words))
	all.do(t, fmt.Sprintf("%d words", words), "map m %s on=2", here)
	all[0].Do(t, fmt.Sprint(stamp(5, 0)), "get m 0")
	c.Daemons[2].Kill(t)
	all[0].Say(t, "get m %d", 63*512)
	c.Daemons[0].AwaitLog(t, "which has the file, is lost")
}
