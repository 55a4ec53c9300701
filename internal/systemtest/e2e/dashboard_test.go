package e2e

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// watched is a program whose ranks write a page that they share, in turn, until rank 0 has no more
// input.
var watched = testcluster.Define("watched", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	counts, err := dsm.Alloc[uint32](s.Ctx, c, "counts", 4096)
	if err != nil {
		return err
	}
	m, end := dsm.NewMutex(c, "accounts"), make(chan error, 1)
	if c.Rank() == 0 {
		go func() {
			_, err := s.Next()
			end <- err
		}()
	}
	for ended := false; !ended; {
		if err := m.Lock(s.Ctx); err != nil {
			return err
		}
		counts[2048]++
		select {
		case err := <-end:
			if err != io.EOF {
				return err
			}
			counts[0] = 1
		default:
		}
		ended = counts[0] == 1
		if err := m.Unlock(); err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // or the lock stays where it is
	}
	return c.Close()
})

// seen is of a dashboard's state what these tests are about.
type seen struct {
	Running      bool
	Nodes, Ranks int
	Costs        []struct{ Kind, Name, At string }
	Memory       []struct {
		Name, Type string
		ElemBytes  int `json:"elem_bytes"`
		Cells      []struct {
			At    int
			Ranks [][2]int
		}
	}
	ByNode struct{ Sent, Taken [][]int } `json:"by_node"`
}

// cell has who has had faults at a page of memory, as a bit for each rank.
func (s *seen) cell(name string, at int) (ranks int) {
	for _, m := range s.Memory {
		for _, c := range m.Cells {
			if m.Name == name && c.At == at {
				for _, r := range c.Ranks {
					ranks |= 1 << r[0]
				}
			}
		}
	}
	return ranks
}

// costs is whether something is among what costs most.
func (s *seen) costs(kind, name string) bool {
	for _, c := range s.Costs {
		if c.Kind == kind && c.Name == name {
			return true
		}
	}
	return false
}

// look is the state of a page.
func look(t *testing.T, url string) (s seen) {
	t.Helper()
	client := http.Client{Timeout: testcluster.Patience}
	r, err := client.Get(url + "state.json")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// urlIn is the address in a line of the launcher.
func urlIn(t *testing.T, line string) string {
	t.Helper()
	url := regexp.MustCompile(`http://\S+/`).FindString(line)
	if url == "" {
		t.Fatalf("no address in %q", line)
	}
	return url
}

// TestDashboard: while a job runs, its page shows which pages travel between whom, and which locks
// are waited for; the end is kept in a file.
func TestDashboard(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	file := filepath.Join(t.TempDir(), "state.json")
	job := testcluster.Job{Nodes: 2, Program: watched, Flags: []string{"--dashboard", ":0", "--dashboard-file", file}}.Run(t)
	url := urlIn(t, job.AwaitLog(t, "the dashboard is at "))
	testcluster.Eventually(t, "a page that both ranks write, and a lock", func() bool {
		s := look(t, url)
		return s.Running && s.Nodes == 2 && s.Ranks == 2 && s.cell("counts", 2) == 3 && s.costs("memory", "counts") && s.costs("lock", "accounts") &&
			s.ByNode.Sent[0][1] > 0 && s.ByNode.Taken[1][0] > 0
	})
	if s := look(t, url); s.Memory[0].Type != "uint32" || s.Memory[0].ElemBytes != 4 {
		t.Errorf("the memory is %+v", s.Memory)
	}
	job.End()
	if status := job.Wait(t); status != 0 {
		t.Errorf("the job has ended with %d", status)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s seen
	if err := json.Unmarshal(text, &s); err != nil || s.Running || s.cell("counts", 2) != 3 {
		t.Errorf("the file has %+v, %v", s, err)
	}

	shows := testcluster.Start(t, testcluster.Command{Name: "dashboard", Path: testcluster.Dsmd(t), Args: []string{"dashboard", file}})
	if s := look(t, urlIn(t, shows.Hear(t))); s.Running || s.cell("counts", 2) != 3 {
		t.Errorf("dsmd dashboard shows %+v", s)
	}
	shows.SignalAlone(syscall.SIGINT)
	if status := shows.Wait(t); status != 0 {
		t.Errorf("dsmd dashboard has ended with %d", status)
	}
}

// TestDashboardFails: where no page can be, no job runs; and the page does not change how one ends.
func TestDashboardFails(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, flags := range [][]string{{"--dashboard", l.Addr().String()}, {"--dashboard-file", filepath.Join(t.TempDir(), "none", "state.json")}} {
		job := testcluster.Job{Nodes: 1, Program: failing, Flags: flags}.Run(t)
		if status := job.Wait(t); status != 64 || !strings.Contains(job.Errors(), "dsmd: "+flags[0]) || strings.Contains(job.Errors(), "failing") {
			t.Errorf("with %v the status is %d:\n%s", flags, status, job.Errors())
		}
	}
	job := testcluster.Job{Nodes: 1, Program: failing, Flags: []string{"--dashboard", ":0"}}.Run(t)
	if status := job.Wait(t); status != 1 || !strings.Contains(job.Errors(), "failing: ") {
		t.Errorf("the status is %d, and not the program's:\n%s", status, job.Errors())
	}
}

// failing is a program that fails.
var failing = testcluster.Define("failing", func(*testcluster.Self) error { return io.ErrUnexpectedEOF })

// TestDashboardOfDaemons: who has not asked for a page when the job began sees its faults all the
// same, and the end of its daemon.
func TestDashboardOfDaemons(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	c := testcluster.Serve(t, 2, 2)
	var programs []*testcluster.Process
	for rank := range 2 {
		programs = append(programs, c.Program(t, watched, rank, rank))
	}
	shows := testcluster.Start(t, testcluster.Command{Name: "dashboard", Path: testcluster.Dsmd(t), Args: []string{"dashboard", "--socket", c.Socket(1)}})
	url := urlIn(t, shows.Hear(t))
	testcluster.Eventually(t, "a page that rank 1 writes", func() bool {
		s := look(t, url)
		return s.Running && s.Nodes == 2 && s.cell("counts", 2) == 2 && s.ByNode.Sent[1][0] > 0
	})
	programs[0].End()
	for _, p := range programs {
		if status := p.Wait(t); status != 0 {
			t.Errorf("a program has ended with %d", status)
		}
	}
	c.Daemons[1].Kill(t)
	testcluster.Eventually(t, "the end", func() bool { return !look(t, url).Running })
	shows.SignalAlone(syscall.SIGTERM)
	if status := shows.Wait(t); status != 0 {
		t.Errorf("dsmd dashboard has ended with %d", status)
	}
}
