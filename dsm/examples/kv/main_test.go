package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// serveEnv makes the test executable the program.
const serveEnv = "KV_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// server is a program that serves the store.
type server struct {
	t   *testing.T
	cmd *exec.Cmd
	url string
}

// start starts a program of a job of its own at this rank's node.
func start(t *testing.T, job string) *server {
	t.Helper()
	self := kittest.Must[string](t)(os.Executable())
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serveEnv+"=1", "DSM_JOB="+job, "DSM_SIZE=1", "DSM_RANK=0")
	cmd.Stderr = os.Stderr
	// It ends with this process. The kernel asks for the thread that has started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	out := kittest.Must[io.ReadCloser](t)(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s says %q, %v", job, url, err)
	}
	return &server{t, cmd, strings.TrimSpace(url)}
}

// end ends the program by a signal, and returns how it has ended.
func (s *server) end(how syscall.Signal) error {
	if err := s.cmd.Process.Signal(how); err != nil {
		s.t.Fatal(err)
	}
	return s.cmd.Wait()
}

// ask makes a request, and returns status and body.
func (s *server) ask(method, key, value string, header ...string) (status int, body string) {
	s.t.Helper()
	r := kittest.Must[*http.Request](s.t)(http.NewRequestWithContext(s.t.Context(), method, s.url+"/"+key, strings.NewReader(value)))
	for _, name := range header {
		r.Header.Set(name, "*")
	}
	answer := kittest.Must[*http.Response](s.t)(http.DefaultClient.Do(r))
	defer answer.Body.Close()
	return answer.StatusCode, string(kittest.Must[[]byte](s.t)(io.ReadAll(answer.Body)))
}

// want is ask, and what should come.
func (s *server) want(method, key, value string, status int, body string) {
	s.t.Helper()
	if gotStatus, got := s.ask(method, key, value); gotStatus != status || got != body {
		s.t.Errorf("%s %s: %d %q, want %d %q", method, key, gotStatus, got, status, body)
	}
}

// TestJobs: programs of different jobs, one on each node and a second one on the first, serve the
// same store, and one that is killed takes nothing with it.
func TestJobs(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		own := start(t, fmt.Sprint("kv-", c.Rank()))
		mine := fmt.Sprint("rank-", c.Rank())
		if c.Rank() == 0 {
			doomed := start(t, "doomed")
			doomed.want(http.MethodPut, "doomed", "still here", http.StatusNoContent, "")
			doomed.want(http.MethodPut, mine, "nothing", http.StatusNoContent, "")
			if err := doomed.end(syscall.SIGKILL); err == nil {
				t.Error("who was killed has ended well")
			}
		}
		own.want(http.MethodPut, mine, mine+"'s", http.StatusNoContent, "")
		kittest.Barrier(t, ctx, c)
		own.want(http.MethodGet, "doomed", "", http.StatusOK, "still here")
		for rank := range c.Size() {
			key := fmt.Sprint("rank-", rank)
			own.want(http.MethodGet, key, "", http.StatusOK, key+"'s")
		}
		kittest.Barrier(t, ctx, c)
		own.want(http.MethodDelete, mine, "", http.StatusOK, "")
		kittest.Barrier(t, ctx, c)
		for rank := range c.Size() {
			own.want(http.MethodGet, fmt.Sprint("rank-", rank), "", http.StatusNotFound, "")
		}
		if err := own.end(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	})
}

// TestFirst: of all programs that store a value if there is none, one does.
func TestFirst(t *testing.T) {
	dsmtest.Run(t, 4, func(ctx context.Context, c *dsm.Cluster) {
		own := start(t, fmt.Sprint("kv-", c.Rank()))
		for round := range 10 {
			key := fmt.Sprint("key-", round)
			kittest.Barrier(t, ctx, c)
			status, _ := own.ask(http.MethodPut, key, fmt.Sprint(c.Rank()), "If-None-Match")
			first := -1
			if status == http.StatusCreated {
				first = c.Rank()
			} else if status != http.StatusPreconditionFailed {
				t.Errorf("status %d", status)
			}
			winners := kittest.Must[int](t)(dsm.Reduce(ctx, c, "winners", min(first+1, 1), dsm.Sum))
			winner := kittest.Must[int](t)(dsm.Reduce(ctx, c, "winner", first, dsm.Max))
			if winners != 1 {
				t.Errorf("%d programs have stored the value", winners)
			}
			own.want(http.MethodGet, key, "", http.StatusOK, fmt.Sprint(winner))
		}
		long := strings.Repeat("k", longest-1) // the path begins with a slash
		own.want(http.MethodPut, long, strings.Repeat("x", longest), http.StatusNoContent, "")
		own.want(http.MethodGet, long, "", http.StatusOK, strings.Repeat("x", longest))
		own.want(http.MethodPut, long, strings.Repeat("x", longest+1), http.StatusRequestEntityTooLarge, "")
		if status, body := own.ask(http.MethodPut, strings.Repeat("k", 4000), "v"); status != http.StatusInsufficientStorage {
			t.Errorf("a key of 4000 bytes: %d %s", status, body)
		}
		own.want(http.MethodPost, long, "", http.StatusMethodNotAllowed, "")
		if c.Rank() == 0 { // a request that never comes to its end does not keep the program
			body, never := io.Pipe()
			defer never.Close()
			r := kittest.Must[*http.Request](t)(http.NewRequestWithContext(ctx, http.MethodPut, own.url+"/open", body))
			go func() {
				if answer, err := http.DefaultClient.Do(r); err == nil {
					answer.Body.Close()
				}
			}()
			kittest.Must[int](t)(never.Write([]byte("some of it")))
		}
		kittest.Barrier(t, ctx, c)
		if err := own.end(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	})
}
