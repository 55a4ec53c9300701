package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

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

// TestChooseCluster: which job a dashboard is of, or which there are.
func TestChooseCluster(t *testing.T) {
	job := func(socket, program string) []daemonStatus {
		d := daemonStatus{Socket: socket}
		if program != "" {
			d.Programs = []programStatus{{Program: program}}
		}
		return []daemonStatus{d}
	}
	a, b, serve := job(launch.SocketPrefix+"aa11-0", "solve"), job(launch.SocketPrefix+"ab22-0", "fill"), job("/run/dsmd.sock", "")
	for _, test := range []struct {
		here []([]daemonStatus)
		job  string
		want string // the socket, or what the error says
	}{
		{[][]daemonStatus{a}, "", a[0].Socket},
		{[][]daemonStatus{serve}, "", serve[0].Socket},
		{[][]daemonStatus{a, b, serve}, "aa", a[0].Socket},
		{[][]daemonStatus{a, b, serve}, "fill", b[0].Socket},
		{[][]daemonStatus{a, b, serve}, "./fill", b[0].Socket},
		{[][]daemonStatus{a, b, serve}, "/run/dsmd.sock", serve[0].Socket},
		{[][]daemonStatus{a, b, serve}, "a", "several jobs run here: name one; there are: aa11 solve, ab22 fill, /run/dsmd.sock"},
		{[][]daemonStatus{a, b}, "", "several jobs"},
		{[][]daemonStatus{a, b}, "fil.json", `"fil.json" is neither a file nor a job that runs here; there are: aa11 solve`},
		{nil, "fil.json", `"fil.json" is no file, and no job`},
		{nil, "", "no daemon of yours runs here"},
	} {
		chosen, err := chooseCluster(test.here, test.job)
		if err != nil && !strings.Contains(err.Error(), test.want) || err == nil && chosen[0].Socket != test.want {
			t.Errorf("%q of %d: %v, %v, want %s", test.job, len(test.here), chosen, err, test.want)
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
	state, err := lookAt(ctx, file, "")
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
	if _, err := lookAt(ctx, file, ""); err == nil || !strings.Contains(err.Error(), "--dashboard-file") {
		t.Errorf("of a file of something else: %v", err)
	}
}
