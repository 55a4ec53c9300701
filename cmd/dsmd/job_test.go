package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dsmd/internal/launch"
	"dsmd/internal/patience"
	"dsmd/internal/settings"
	"dsmd/internal/top"
)

// TestChooseJob: which job a command is about, or which there are.
func TestChooseJob(t *testing.T) {
	daemon := func(socket string, programs ...programStatus) daemonStatus {
		d := daemonStatus{Socket: socket}
		d.Programs = programs
		return d
	}
	a := daemon(launch.SocketPrefix+"aa11-0", programStatus{Program: "solve", Size: 2})
	more := daemon(launch.SocketPrefix+"aa11-1", programStatus{Program: "solve", Size: 2, Rank: 1})
	b := daemon(launch.SocketPrefix+"ab22-0", programStatus{Program: "fill", Size: 1, Age: 7})
	longer := daemon(launch.SocketPrefix+"aa112-0", programStatus{Program: "aa11", Job: "ab", Size: 1})
	idle := daemon("/run/dsmd.sock")
	stays := daemon("/run/dsmd.sock", programStatus{Program: "fill", Job: "night", Size: 1}, programStatus{Program: "fft", Job: "day", Size: 1})
	for _, test := range []struct {
		here []daemonStatus
		text string
		want string // the job, or what the error says
	}{
		{[]daemonStatus{a, more}, "", "aa11"},
		{[]daemonStatus{idle}, "", "/run/dsmd.sock"},
		{[]daemonStatus{a, idle}, "", "aa11"},
		{[]daemonStatus{a, b, idle}, "aa", "aa11"},
		{[]daemonStatus{a, longer}, "aa11", "aa11"},
		{[]daemonStatus{b, longer}, "aa11", "aa112/ab"},
		{[]daemonStatus{b, longer}, "ab", "aa112/ab"},
		{[]daemonStatus{a, longer}, "aa", "\"aa\" may be any of these jobs"},
		{[]daemonStatus{a, b, stays}, "./solve", "aa11"},
		{[]daemonStatus{a, b, stays}, "solve", "aa11"},
		{[]daemonStatus{a, b, stays}, "night", "/run/dsmd.sock/night"},
		{[]daemonStatus{a, b, stays}, "/run/dsmd.sock/day", "/run/dsmd.sock/day"},
		{[]daemonStatus{a, b, idle}, "/run/dsmd.sock", "/run/dsmd.sock"},
		{[]daemonStatus{a, b, idle}, "a", "\"a\" may be any of these jobs: write more of it, or the number of one\n  aa11: 1 of 2 ranks here, solve, for 0s\n  ab22: 1 of 1 ranks here, fill, for 7s"},
		{[]daemonStatus{a, b, stays}, "fill", "ab22: 1 of 1 ranks here, fill, for 7s\n  /run/dsmd.sock/night: 1 of 1"},
		{[]daemonStatus{a, more, b, idle}, "", "several jobs run on this machine: name one of these\n  aa11: 2 of 2 ranks here, solve, for 0s\n  ab22: "},
		{[]daemonStatus{a, idle}, "c", "no job \"c\" runs on this machine: it has ended, or runs elsewhere: ask there; or if its daemon serves at another socket, name that by --socket; those of yours that were found here:\n  aa11: 1 of 2 ranks here, solve, for 0s\n  /run/dsmd.sock: no program here"},
		{nil, "c\x1b", `no job "c?" runs on this machine, nor any other of yours: it has ended, or runs elsewhere: ask there; or if its daemon serves at another socket, name that by --socket`},
		{nil, "", "no daemon of yours serves at the sockets of jobs (\"dsmd run\") or the default one, " + settings.DefaultSocket() + "; if one serves at another socket, name that by --socket"},
	} {
		chosen, err := chooseJob(jobsOf(test.here), test.text)
		isError := strings.Contains(test.want, " ")
		if isError != (err != nil) || err != nil && !strings.Contains(err.Error(), test.want) || err == nil && chosen.String() != test.want {
			t.Errorf("%q of %d: %v, %v, want %s", test.text, len(test.here), chosen, err, test.want)
		}
	}
	if j, err := chooseJob(clustersOf([]daemonStatus{b, stays}), "day"); err != nil || j.String() != "/run/dsmd.sock" || len(j.programs) != 2 {
		t.Errorf("of a cluster: %v, %v", j, err)
	}
}

// TestJobIsTheSameEverywhere: what names a job for one command names it for the others, also where
// a file has the name of the program.
func TestJobIsTheSameEverywhere(t *testing.T) {
	askWithin(t, patience.Or(20*time.Second))
	number := fmt.Sprintf("%07dtest", os.Getpid()) // which no other run of this test has now
	fakeDaemon(t, launch.SocketPrefix+number+"-0", answers)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("solve", []byte("\x7fELF"), 0o700); err != nil {
		t.Fatal(err)
	}
	socket := launch.SocketPrefix + number + "-0"
	for _, text := range []string{number, number[:8], "night", number + "/night", "solve", "./solve", filepath.Join(t.TempDir(), "solve")} {
		ctx, cancel := context.WithCancel(t.Context())
		state, err := lookAt(ctx, text, "", io.Discard)
		if err != nil {
			t.Fatalf("dsmd dashboard %s: %v", text, err)
		}
		if s := state(); s.Title != "solve ("+number+")" {
			t.Errorf("dsmd dashboard %s shows %q", text, s.Title)
		}
		// it may not yet have looked at askTimeout
		for cancel(); state().Running; time.Sleep(time.Millisecond) {
		}
		a := asker{socket: socket, answers: map[string]*top.Sample{}, asking: map[string]time.Time{}}
		if j, err := findJob(a.ask(askTimeout), text); err != nil || *j != (top.Job{Cluster: number, Name: "night"}) {
			t.Errorf("dsmd top %s: %v, %v", text, j, err)
		}
		list, err := findDaemons(socket)
		if err != nil {
			t.Fatal(err)
		}
		if j, err := chooseJob(jobsOf(list), text); err != nil || j.String() != number+"/night" {
			t.Errorf("dsmd stacks %s: %v, %v", text, j, err)
		}
	}
	if _, err := lookAt(t.Context(), "elsewhere", "", io.Discard); err == nil || !strings.Contains(err.Error(), `there is no file "elsewhere", and no job "elsewhere" runs on this machine`) {
		t.Errorf("of neither a file nor a job: %v", err)
	}
}
