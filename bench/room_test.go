package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dsmd/bench/kernel"
	"dsmd/internal/uffd/uffdtest"
)

var roomFull = flag.Bool("room.full", false, "have TestRoom's nodes have 256 MiB each, and as much more data; it takes minutes: pass DSMD_TEST_PATIENCE=20m and -timeout 0, too")

// fullRoom is what a node has in the long form, and shareOfIt what it has otherwise: the data is
// smaller in proportion.
const (
	fullRoom  = 256 << 20
	shareOfIt = 64
	roomNodes = 4
)

// TestRoom: four nodes with less memory than their data. A sweep by each of them over two and a
// half times what one may have; random access over 90 % of what all have; and programs whose data
// is more than twice what one has. The results are those of one process, and no node has more than
// it may, whenever one looks.
func TestRoom(t *testing.T) {
	once(t)
	uffdtest.Require(t)
	room := fullRoom / shareOfIt
	edge, logPoints := 1124, 18 // of sor, whose data grows with the square of its edge, and of fft
	if *roomFull {
		room, edge, logPoints = fullRoom, 9000, 24
	}
	for name, of := range map[string]struct{ room, size int }{
		"sweep":   {room, room / 2 * 5 / 8},
		"scatter": {room, room * roomNodes / 10 * 9 / 8},
		"sor":     {room, edge},
		"fft":     {room, logPoints},     // three arrays of 16 bytes for each
		"radix":   {room, room / 32 * 5}, // keys: four arrays of 4 bytes each
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				if runInRoom(t, name, of.size, of.room) {
					return
				}
			}
			t.Error("no run shows anything about the room")
		})
	}
}

// runInRoom runs a kernel, wants that no node has more than its room, and reports whether that
// shows anything: all nodes were seen, and one of them was nearly full. On a busy machine a run may
// be over before one has looked.
func runInRoom(t *testing.T, name string, size, room int) bool {
	t.Helper()
	w := watchRooms()
	_, err := run(t, "run", name, "-n", strconv.Itoa(roomNodes), "--size", strconv.Itoa(size), "--memory", fmt.Sprintf("%dMiB", room>>20),
		"--json", filepath.Join(t.TempDir(), "result"), "--timeout", "2h", "--dsmd", dsmdPath)
	w.stop()
	if err != nil {
		t.Fatal(err)
	}
	fullest := int64(0)
	for pid, most := range w.most {
		if fullest = max(fullest, most); most > int64(room) {
			t.Errorf("the node of process %d had %d bytes of pages, and room for %d", pid, most, room)
		}
	}
	t.Logf("%d looks: at most %v bytes in a node", w.looks, w.most)
	return len(w.most) == roomNodes && fullest >= int64(room)/10*8
}

// rooms are how many bytes of pages daemons have in memory, which this process has started, itself
// or by others. Its fields may be read when it has stopped.
type rooms struct {
	looks    int
	most     map[int]int64 // of each process
	files    map[int]string
	over     chan struct{}
	watching sync.WaitGroup
}

func watchRooms() *rooms {
	w := &rooms{most: map[int]int64{}, files: map[int]string{}, over: make(chan struct{})}
	w.watching.Go(func() {
		for {
			if len(w.files) < roomNodes {
				w.find()
			}
			w.look()
			select {
			case <-w.over:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	return w
}

func (w *rooms) stop() {
	close(w.over)
	w.watching.Wait()
}

func (w *rooms) look() {
	for pid, file := range w.files {
		var st syscall.Stat_t
		if syscall.Stat(file, &st) == nil {
			w.looks++
			w.most[pid] = max(w.most[pid], st.Blocks*512)
		}
	}
}

// find finds the files in which daemons have their pages.
func (w *rooms) find() {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, line := range lines {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(line)))
		if args, err := os.ReadFile(line); err != nil || !strings.Contains(string(args), "\x00serve\x00") || !isOurs(pid) {
			continue
		}
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, f := range files {
			if name, err := os.Readlink(f); err == nil && strings.Contains(name, "memfd:dsmd-pages") {
				w.files[pid] = f
			}
		}
	}
}

// isOurs is whether this process has started another one, or who has.
func isOurs(pid int) bool {
	for pid > 1 && pid != os.Getpid() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		// The name, in brackets, may have anything in it; state and parent follow.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		pid, _ = strconv.Atoi(fields[1])
	}
	return pid == os.Getpid()
}

// access is a kernel that only touches memory, in order or at random.
func access(name string, random bool) kernel.Kernel {
	return kernel.Kernel{
		Name: name, Summary: "touches memory",
		Sizes:   kernel.Sizes{Parameter: "words", Test: 4096, Default: 4096, Large: 4096, Min: 1, Max: 1 << 30},
		Problem: func(n int) kernel.Problem { return accessing{n, random} },
	}
}

type accessing struct {
	n      int
	random bool
}

func (accessing) Verify(want, got kernel.Result) error { return kernel.SameBits(want, got) }

func (p accessing) Prepare(t *kernel.Team) (kernel.Program, error) {
	return &accessRun{p, kernel.Share[uint64](t, "access/data", p.n), kernel.Share[uint64](t, "access/sums", t.Total), t.Barrier("access/barrier")}, nil
}

type accessRun struct {
	accessing
	data, sums []uint64
	barrier    kernel.Barrier
}

// pageWords are those of a page of the least size.
const pageWords = 512

// word is what is stored first.
func word(i int) uint64 { return uint64(i+1) * 0x9e3779b97f4a7c15 }

// Compute has each thread fill its part. In order, each then reads all twice. At random, each reads
// half of the pages and changes a word of each page of its part; then it reads all once. The sum is
// that of all words, each weighed with its place.
func (r *accessRun) Compute(t *kernel.Thread) {
	lo, hi := t.Mine(r.n)
	for i := lo; i < hi; i++ {
		r.data[i] = word(i)
	}
	t.Wait(r.barrier, "when all is written")
	if r.random {
		random := rand.New(rand.NewPCG(1, uint64(t.Index)))
		// Half of them are still more than there is room for.
		for _, page := range random.Perm(r.n / pageWords)[:r.n/pageWords/2] {
			t.GoOn()
			// The first word is as it was written, as long as all read.
			if i := page * pageWords; r.data[i] != word(i) {
				t.Check(fmt.Errorf("word %d is %#x, want %#x", i, r.data[i], word(i)), "reading at random")
			}
		}
		t.Wait(r.barrier, "when all have read")
		for _, page := range random.Perm(r.n / pageWords) {
			if i := page*pageWords + page%pageWords; lo <= i && i < hi {
				r.data[i]++
			}
		}
		t.Wait(r.barrier, "when all have changed something")
	}
	passes := 2
	if r.random {
		passes = 1 // what leaves first has been seen at random
	}
	for range passes {
		sum := uint64(0)
		for i, w := range r.data {
			if i%pageWords == 0 {
				t.GoOn()
			}
			sum += uint64(2*i+1) * w
		}
		r.sums[t.Index] += sum
	}
	t.Wait(r.barrier, "when all have read all")
	t.Done(1, 1)
}

// Result is the sum of one thread, and how many have another one.
func (r *accessRun) Result() kernel.Result {
	others := uint64(0)
	for _, s := range r.sums {
		if s != r.sums[0] {
			others++
		}
	}
	return kernel.Result{Figures: map[string]any{"sum": fmt.Sprintf("%#x", r.sums[0])}, Output: kernel.Uint64s{r.sums[0], others}}
}
