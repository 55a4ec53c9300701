package node

import (
	"io"
	"os"
	"sync"
	"testing"

	"dsmd/internal/attach"
	"dsmd/internal/diskio"
	"dsmd/pagetable"

	"golang.org/x/sys/unix"
)

// filesThatHang are files that do not answer: ends of pipes, which io_uring waits for. Threads
// can't read them, and wait before they would. After answer, which is called at the end of the test
// at the latest, all of them have zeros. Not parallel.
func filesThatHang(t *testing.T, count int) (files []*os.File, answer func()) {
	t.Helper()
	zeros, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	let := make(chan struct{})
	hang := func(fd int) {
		var file unix.Stat_t
		if err := unix.Fstat(fd, &file); err == nil && file.Mode&unix.S_IFMT == unix.S_IFIFO {
			<-let
			unix.Dup3(int(zeros.Fd()), fd, unix.O_CLOEXEC)
		}
	}
	diskio.BeforeRead.Store(&hang)
	var others []*os.File
	for range count {
		from, to, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		files, others = append(files, from), append(others, to)
	}
	answer = sync.OnceFunc(func() {
		close(let)
		for _, f := range others {
			go io.Copy(f, zeros) // until nobody reads it
		}
	})
	t.Cleanup(func() {
		answer()
		for _, f := range files {
			f.Close()
		}
	})
	return files, answer
}

// TestHungFileOfOthers: other nodes want more of some files than is read for them at a time, and
// the files do not answer. Others are read for them all the same.
func TestHungFileOfOthers(t *testing.T) {
	const hung, pages, times = 3, 16, 3 * mostReading / 4096 / 16
	c, rogues := among(t)
	files, _ := filesThatHang(t, hung)
	p := c.members[0].join()
	what := attach.Contents{Bytes: pages * 4096, Readers: []uint16{0}}
	for i, file := range append(files, laid(t, pages*4096, same)) {
		first := p.bind(string(rune('a'+i)), pages)
		p.ok(p.beginsCall(first, pages, what, file))
		if i < hung {
			for range times / hung {
				rogues[i%2].sayAbout(storageFrame{kind: readPages, page: first, count: pages}, false)
			}
			p.sync()
			continue
		}
		rogues[0].sayAbout(storageFrame{kind: readPages, ticket: 7, page: first, count: pages}, false)
	}
	for _, f := range rogues[0].hearAbout(pages) {
		if f.ticket != 7 || f.failed != "" {
			t.Errorf("node 0 says %+v", f)
		}
	}
}

// TestHungFileBesideSpill: a program wants more of files that do not answer than its node reads at
// a time. What is in the spill file comes back all the same.
func TestHungFileBesideSpill(t *testing.T) {
	const room, pages, hung, ofEach = 8 * leastRoom, 10 * leastRoom, 3, 300
	c := startTight(t, setup{nodes: 1, pages: pages + hung*ofEach + 4*HomeStripe, spill: true, change: func(cfg *Config) {
		cfg.Memory.Bytes, cfg.Memory.Spill = room*4096, "a folder of the test's"
	}})
	files, answer := filesThatHang(t, hung)
	a := c.members[0].join()
	first := a.bind("x", pages)
	a.number(first, pages)
	var fetched []chan attach.Reply
	for i, file := range files {
		begins := a.bind(string(rune('a'+i)), ofEach)
		a.ok(a.beginsCall(begins, ofEach, attach.Contents{Bytes: ofEach * 4096}, file))
		for page := range pagetable.Page(ofEach / 2) { // which are no neighbours
			_, reply := a.prefetch(begins+2*page, 1, attach.Read)
			fetched = append(fetched, reply)
		}
	}
	a.wantNumbers(first, pages)
	if n := c.members[0].counter("spill_reads"); n == 0 {
		t.Error("nothing has come back from the spill file")
	}
	answer()
	for _, reply := range fetched {
		a.answer(reply)
	}
	c.quiet()
}
