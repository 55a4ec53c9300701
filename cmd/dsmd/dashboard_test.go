package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/dashboard"
	"dsmd/internal/launch"
)

// TestDashboardAddresses: an address at which nothing can be served is an error that says what to
// do, before a job starts; a port alone is for this machine.
func TestDashboardAddresses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for addr, want := range map[string]string{
		l.Addr().String(): "choose another port",
		"ann":             "write HOST:PORT or :PORT",
		"192.0.2.7:0":     "an address of this machine",
		":http-or-so":     "give HOST:PORT",
		"99999":           "write HOST:PORT or :PORT",
	} {
		_, err := serveDashboard("--dashboard", addr, func() dashboard.State { return dashboard.State{} })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), addr) || !strings.HasPrefix(err.Error(), "--dashboard") {
			t.Errorf("at %q: %v, want %q", addr, err, want)
		}
	}
	for _, addr := range []string{":0", "127.0.0.1:0", "localhost:0"} {
		s, err := serveDashboard("--dashboard", addr, func() dashboard.State { return dashboard.State{} })
		if err != nil {
			t.Errorf("at %q: %v", addr, err)
			continue
		}
		if !strings.HasPrefix(s.URL(), "http://127.0.0.1:") {
			t.Errorf("%q is at %s", addr, s.URL())
		}
		s.Stop()
	}
}

// TestPortsInUse: whoever listens at a port that is taken says what to do.
func TestPortsInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	for _, args := range [][]string{
		{"serve", "--peers", taken, "--socket", "@dsmd-test-" + taken},
		{"serve", "--metrics", taken, "--socket", "@dsmd-test-" + taken},
		{"run", "-n", "1", "--metrics", taken, "--", "true"},
	} {
		status, _, stderr := finish(t, args...)
		if want := taken + ": bind: address already in use: choose another port"; status == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, %q, want %q", args, status, stderr, want)
		}
	}
}

// TestDashboardOfAFile: a file is shown until the command is ended, and one that is none is an
// error.
func TestDashboardOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "solve.json")
	m := dashboard.New(dashboard.Job{Title: "solve", Nodes: 1, Ranks: 1, Began: time.Now()})
	s := m.State(time.Now())
	if err := s.Write(file); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	state, err := lookAt(ctx, file, "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	ended := make(chan error, 1)
	go func() { ended <- showDashboard(ctx, w, ":0", state) }()
	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	url := regexp.MustCompile(`http://\S+`).FindString(string(line[:n]))
	answer, err := http.Get(url + "state.json")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var got dashboard.State
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil || got.Title != "solve" {
		t.Errorf("%+v, %v", got, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lookAt(ctx, file, "", io.Discard); err == nil || !strings.Contains(err.Error(), "--dashboard-file") {
		t.Errorf("of a file of something else: %v", err)
	}
}

// TestDashboardFileOfNoJob: a job that does not start leaves the place of the file as it was, and
// says so beside the reason.
func TestDashboardFileOfNoJob(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const notWritten = " is not written, because the job was not started"
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"no such program": {[]string{"-n", "1", "--", "./none"}, []string{notWritten, "./none: no such program"}},
		"no such host":    {[]string{"--hosts", "ann", "--ssh", "false", "--", "true"}, []string{notWritten, "ann"}},
		"no page":         {[]string{"-n", "1", "--dashboard", l.Addr().String(), "--", "true"}, []string{"choose another port"}},
	} {
		for _, before := range []string{"", "of an earlier job"} {
			file := filepath.Join(t.TempDir(), "solve.json")
			if before != "" {
				if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := dsmd(t, append([]string{"run", "--dashboard-file", file, "--profile", file + ".profile", "--trace", file + ".trace"}, test.args...)...).CombinedOutput()
			if err == nil {
				t.Errorf("%s: the job succeeds", name)
			}
			for _, want := range test.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%s: it does not say %q:\n%s", name, want, out)
				}
			}
			for _, kind := range []string{"profile", "trace"} {
				if _, err := os.Stat(file + "." + kind); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: an empty %s is left, or %v", name, kind, err)
				}
			}
			if text, err := os.ReadFile(file); string(text) != before || (before == "") != errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: where %q was is %q, %v", name, before, text, err)
			}
		}
	}
}

// TestDashboardFileOfAnInterruptedStart: a job that is ended before it was started has no state to
// show, and what an earlier one has left stays.
func TestDashboardFileOfAnInterruptedStart(t *testing.T) {
	dir := t.TempDir()
	file, mark, ssh := filepath.Join(dir, "solve.json"), filepath.Join(dir, "mark"), filepath.Join(dir, "ssh")
	if err := os.WriteFile(file, []byte("of an earlier job"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ssh, []byte("#!/bin/sh\n: > "+mark+"\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := dsmd(t, "run", "--dashboard-file", file, "--hosts", "ann", "--ssh", ssh, "--", "true")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(mark); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not reach for the host")
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 130 || !strings.Contains(out.String(), "is not written, because the job was not started") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if text, err := os.ReadFile(file); string(text) != "of an earlier job" {
		t.Errorf("now there is %q, %v", text, err)
	}
}

// TestDashboardAsksAgain: a daemon whose connections close is unreachable, and shown again when it
// answers. When nothing listens at its socket it is gone, and with the last one the page ends.
func TestDashboardAsksAgain(t *testing.T) {
	askWithin(t, limit)
	cluster := fmt.Sprintf("dashtest-%d", os.Getpid())
	socket := launch.SocketPrefix + cluster + "-0"
	defer func(before time.Duration) { answerTime = before }(answerTime)
	answerTime = limit / 20
	var away, silent atomic.Bool
	l := listenAs(t, socket, func(c net.Conn) {
		conn := attach.NewConn(c.(*net.UnixConn))
		defer conn.Discard()
		for {
			f, err := conn.ReadFrame()
			if err != nil || away.Load() {
				return
			}
			if f.Kind != attach.KindHello && silent.Load() {
				continue
			}
			if conn.Write(fakeAnswer(f, 0)) != nil {
				return
			}
		}
	})
	m := watch(t.Context(), &job{cluster: cluster, daemons: []daemonStatus{{Socket: socket, Nodes: 1, Ranks: 1}}})
	becomes := func(what string, is func(s dashboard.State) bool) {
		t.Helper()
		for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
			s := m.State(time.Now())
			if is(s) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the daemon is never %s: %v, running %v", what, s.Away, s.Running)
			}
		}
	}
	for _, fails := range []*atomic.Bool{&away, &silent, &away} {
		becomes("here", func(s dashboard.State) bool { return s.Running && len(s.Away) == 0 })
		fails.Store(true)
		becomes("unreachable", func(s dashboard.State) bool {
			return s.Running && len(s.Away) == 1 && s.Away[0].Is == dashboard.Unreachable
		})
		fails.Store(false)
	}
	becomes("here", func(s dashboard.State) bool { return s.Running && len(s.Away) == 0 })
	l.Close()
	away.Store(true)
	becomes("gone", func(s dashboard.State) bool { return !s.Running && len(s.Away) == 1 && s.Away[0].Is == dashboard.Gone })
}
