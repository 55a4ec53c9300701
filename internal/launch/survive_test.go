package launch

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestJobGoesOn loses a rank in different ways, of a job that goes on: the others are told, and
// what becomes of them is what becomes of the job.
func TestJobGoesOn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, mode, daemon string
		status             int
		says               []string
	}{
		{"a program is killed", "abort@1", "", 0, []string{
			"dsmd: rank 1 was killed by signal 9 (killed) at ", "s after the start: 2 of 3 ranks are left\n", "lost: rank 1\n",
			"dsmd: 2 of 3 ranks have succeeded, without rank 1: exit status 0\n"}},
		{"a program fails by itself", "exit-3@2", "", 3, []string{
			"dsmd: rank 2 exited with status 3 at ", ": 2 of 3 ranks are left\n", "lost: rank 2\n",
			"dsmd: 2 of 3 ranks have succeeded, without rank 2: exit status 3\n"}},
		{"a daemon ends", "attach", "dies-at-attach", 0, []string{
			"dsmd: the daemon of node 1 exited with status 3, and with it rank 1, at ", ": 2 of 3 ranks are left\n", "lost: node 1\n", "lost: rank 1\n",
			"dsmd: 2 of 3 ranks have succeeded, without rank 1: exit status 0\n"}},
		{"a daemon ends, and the other daemons because of it", "attach", "killed-at-attach", StatusDaemon, []string{
			"dsmd: the daemon of node 1 was killed by signal 9 (killed), and with it rank 1, at ", ": 0 of 3 ranks are left\n",
			"dsmd: 0 of 3 ranks have succeeded, without rank 0, rank 1, rank 2: exit status 70\n"}},
		{"all programs are killed", "abort", "", 128 + int(syscall.SIGKILL), []string{
			": 0 of 3 ranks are left\n", "dsmd: 0 of 3 ranks have succeeded, without rank 0, rank 1, rank 2: exit status 137\n"}},
	} {
		for _, place := range []struct {
			name  string
			hosts []string
		}{{"here", nil}, {"on hosts", []string{"host-a", "host-b", "host-c"}}} {
			t.Run(test.name+" "+place.name, func(t *testing.T) {
				j := job{Hosts: place.hosts, Program: play(test.mode), Daemon: test.daemon, Survive: true}
				if place.hosts == nil {
					j.Nodes = 3
				}
				s := supervise(t, j, "FAKE_STAYS=1")
				s.wantStatus(test.status)
				said := strings.NewReplacer(" on host-a", "", " on host-b", "", " on host-c", "").Replace(s.stderr.String())
				for _, want := range test.says {
					if !strings.Contains(said, want) {
						t.Errorf("stderr lacks %q:\n%s", want, said)
					}
				}
			})
		}
	}
}

// TestJobGoesOnWithoutAHost: the agent of a host dies, which looks from here as if the host did.
func TestJobGoesOnWithoutAHost(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a", "host-b:2", "host-c"}, Program: play("kill-agent@1"), Survive: true, Grace: time.Hour}, "FAKE_STAYS=1")
	s.guarded = true
	s.wantStatus(0)
	s.wantError("dsmd: launch: on host-b: the connection is lost")
	s.wantError(", and with it rank 1 on host-b, rank 2 on host-b, at ")
	s.wantError("lost: node 1\n")
	s.wantError("lost: rank 2\n")
	s.wantError("dsmd: 2 of 4 ranks have succeeded, without rank 1 on host-b, rank 2 on host-b: exit status 0\n")
}

// TestLostRankIsEnded: a program whose daemon is lost, and that does not care, is asked to end, and
// killed after the grace.
func TestLostRankIsEnded(t *testing.T) {
	s := supervise(t, job{Nodes: 3, Daemon: "dies-at-attach", Survive: true, Grace: 50 * time.Millisecond,
		Program: []string{"sh", "-c", `trap '' TERM; "$0" play-program attach || exec sleep 3600`, executable(t)}}, "FAKE_STAYS=1")
	s.wantStatus(0)
	s.wantError("dsmd: 2 of 3 ranks have succeeded, without rank 1: exit status 0\n")
}

// TestInterruptedJobGoesOnNoMore: what ends after the user has asked for the end is no loss.
func TestInterruptedJobGoesOnNoMore(t *testing.T) {
	s := supervise(t, job{Nodes: 2, Survive: true, Program: []string{"sh", "-c", "echo ready $$; exec sleep 3600"}})
	s.ready(2)
	s.signal(syscall.SIGINT)
	s.wantStatus(128 + int(syscall.SIGINT))
	s.wantError("dsmd: interrupt: rank ")
}

// TestNews: what a daemon is told is what it hears, and what makes no sense is nothing.
func TestNews(t *testing.T) {
	var heard []string
	News{
		Node: func(id int) { heard = append(heard, "node", string(rune('0'+id))) },
		Rank: func(rank int) { heard = append(heard, "rank", string(rune('0'+rank))) },
	}.Read(strings.NewReader("node 2\nrank 3\n\nrank\nrank -1\nrank x\ncat 4\nrank 5\n"))
	if got, want := strings.Join(heard, " "), "node 2 rank 3 rank 5"; got != want {
		t.Errorf("heard %q, want %q", got, want)
	}
}

// TestDaemonThatReadsNoNews is killed when there is no room for more, and nobody waits for it.
func TestDaemonThatReadsNoNews(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("sleep", "3600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{id: childID{daemon, 0}, cmd: cmd, pid: cmd.Process.Pid, news: w}
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
	const room = 1 << 14 // more than a pipe has, for lines like this
	for range room {
		p.tell(childID{program, 1})
	}
	if state, err := cmd.Process.Wait(); err != nil || state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("a daemon that reads nothing ends with %v, %v", state, err)
	}
	_ = w.Close()
	p.tell(childID{program, 1}) // to one that has ended: nothing happens
}
