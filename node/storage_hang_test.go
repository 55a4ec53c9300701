package node

import (
	"errors"
	"io"
	"net"
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

// TestEndWithHungFile: a node is told to end while a file does not answer that it reads for another
// node, or for itself. The others are told at once, and no program can connect any more.
func TestEndWithHungFile(t *testing.T) {
	for name, asks := range map[string]func(p *prog, peer *rogue, hung, good pagetable.Page){
		"for another node": func(p *prog, peer *rogue, hung, good pagetable.Page) {
			for _, page := range []pagetable.Page{hung, good} {
				peer.sayAbout(storageFrame{kind: readPages, page: page, count: 1}, false)
			}
			peer.hearAbout(1)
		},
		"for itself": func(p *prog, peer *rogue, hung, good pagetable.Page) {
			p.access(hung, false, func([]byte) {})
			p.wantPage(good, pageOf(0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, rogues := among(t)
			files, answer := filesThatHang(t, 1)
			m, p := c.members[0], c.members[0].join()
			var first []pagetable.Page // of each file
			for i, file := range append(files, laid(t, 4096, same)) {
				first = append(first, p.bind(string(rune('a'+i)), 1))
				p.ok(p.beginsCall(first[i], 1, attach.Contents{Bytes: 4096, Readers: []uint16{0}}, file))
			}
			asks(p, rogues[0], first[0], first[1])
			m.cancel()
			for _, r := range rogues {
				eventually(t, "the others are told", func() bool {
					if _, err := r.net.Poll(r, 1); err != nil {
						t.Fatal(err)
					}
					return r.down != nil
				})
			}
			eventually(t, "programs can't connect", func() bool {
				conn, err := net.Dial("unix", m.socket)
				if err == nil {
					conn.Close()
				}
				return errors.Is(err, unix.ECONNREFUSED)
			})
			answer()
			m.ended()
		})
	}
}
