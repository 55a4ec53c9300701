package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/systemtest/netns"
	"dsmd/internal/systemtest/testcluster"
)

// office is three machines with sshd and dsmd, and nothing that runs.
type office struct {
	net *netns.Network
	// what runs on each when nothing does, perhaps with something that was about to end
	idle map[*netns.Machine][]string
}

// bareShell is a command for a machine that makes root's shell start there as on one that has just
// been installed. What it is told to do first on this machine it would do for each command of ssh.
const bareShell = "rm -f /root/.bashrc"

func openOffice(t *testing.T) *office {
	t.Helper()
	dsmd := testcluster.Dsmd(t) // built before the machines start, which then have it
	o := &office{net: netns.Start(t, "ann", "bob", "eve"), idle: map[*netns.Machine][]string{}}
	o.net.ServeSSH(t)
	for _, m := range o.net.Machines {
		m.Run(t, "cp "+dsmd+" /usr/local/bin/dsmd; "+bareShell)
	}
	for _, m := range o.net.Machines {
		testcluster.Eventually(t, m.Name+" is idle", func() bool {
			o.idle[m] = running(t, m)
			return !slices.ContainsFunc(o.idle[m], func(l string) bool { return strings.Contains(l, "dsmd") })
		})
	}
	return o
}

// running lists what runs on a machine, but for sessions of ssh that are about to end.
func running(t *testing.T, m *netns.Machine) []string {
	t.Helper()
	lines := strings.Split(m.Run(t, "ps -eo args="), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" || strings.Contains(l, "ps -eo") || strings.HasPrefix(l, "sshd: ") })
	return lines
}

// beyond is what runs now and did not before.
func beyond(before, now []string) (more []string) {
	left := slices.Clone(before)
	for _, l := range now {
		if i := slices.Index(left, l); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			more = append(more, l)
		}
	}
	return more
}

// run starts a job of members from the first machine.
func (o *office) run(t *testing.T, then string, flags ...string) *testcluster.Process {
	t.Helper()
	return o.runProgram(t, member, then, flags...)
}

// runProgram starts a job of another program.
func (o *office) runProgram(t *testing.T, program *testcluster.Program, then string, flags ...string) *testcluster.Process {
	t.Helper()
	path, env := program.Elsewhere(t)
	args := append([]string{"run", "--dir", "/tmp"}, flags...)
	for _, v := range env {
		args = append(args, "--env", v)
	}
	line := o.net.Machines[0].Line("dsmd", append(args, "--", path, then)...)
	return testcluster.Start(t, testcluster.Command{Name: "the launcher", Path: "/usr/bin/env", Args: line})
}

// wantIdle fails the test if something of a job is left anywhere.
func (o *office) wantIdle(t *testing.T) {
	t.Helper()
	for _, m := range o.net.Machines {
		var more []string
		defer func() {
			if t.Failed() {
				t.Logf("on %s there still runs\n%s", m.Name, strings.Join(more, "\n"))
			}
		}()
		testcluster.Eventually(t, "nothing is left on "+m.Name, func() bool { more = beyond(o.idle[m], running(t, m)); return len(more) == 0 })
	}
}

// TestRunOnHosts runs jobs on three machines by ssh, with encrypted connections between them.
func TestRunOnHosts(t *testing.T) {
	t.Parallel()
	once(t)
	o := openOffice(t)
	const hosts = "ann,bob:2,eve"
	t.Run("success", func(t *testing.T) {
		job := o.run(t, "end", "--hosts", hosts)
		met(t, job, 4)
		job.Succeed(t)
		o.wantIdle(t)
	})
	t.Run("failure", func(t *testing.T) {
		job := o.run(t, "fail", "--hosts", hosts)
		met(t, job, 4)
		if status := job.Wait(t); status != 23 || !strings.Contains(job.Errors(), "dsmd: rank 3 on eve exited with status 23") {
			t.Errorf("status %d, errors %q", status, job.Errors())
		}
		o.wantIdle(t)
	})
	t.Run("interrupt", func(t *testing.T) {
		job := o.run(t, "wait", "--hosts", hosts)
		met(t, job, 4)
		o.signal(t, syscall.SIGINT)
		if status := job.Wait(t); status != 128+int(syscall.SIGINT) {
			t.Errorf("status %d", status)
		}
		o.wantIdle(t)
	})
	t.Run("launcher killed", func(t *testing.T) {
		job := o.run(t, "wait", "--hosts", hosts)
		met(t, job, 4)
		o.signal(t, syscall.SIGKILL)
		job.Wait(t)
		o.wantIdle(t)
	})
	t.Run("host lost", func(t *testing.T) {
		job := o.run(t, "wait", "--hosts", hosts)
		met(t, job, 4)
		o.net.Machines[1].Run(t, "pkill -KILL -f 'dsmd run-agent$'")
		if status := job.Wait(t); status != 70 || !strings.Contains(job.Errors(), "launch: on bob: the connection is lost") {
			t.Errorf("status %d, errors %q", status, job.Errors())
		}
		o.wantIdle(t)
	})
	t.Run("host lost, and the others go on", func(t *testing.T) {
		job := o.runProgram(t, survivor, "2", "--hosts", hosts, "--survive")
		met(t, job, 4)
		o.net.Machines[1].Run(t, "pkill -KILL -f 'dsmd run-agent$'")
		job.Succeed(t)
		for _, want := range []string{"launch: on bob: the connection is lost", ", and with it rank 1 on bob, rank 2 on bob, at ", "2 of 4 ranks have succeeded"} {
			if !strings.Contains(job.Errors(), want) {
				t.Errorf("the job does not say %q:\n%s", want, job.Errors())
			}
		}
		o.wantIdle(t)
	})
}

// signal sends a signal to the launcher, which is the only "dsmd run" on the first machine.
func (o *office) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	o.net.Machines[0].Run(t, fmt.Sprintf("pkill -%d -f '^dsmd run --dir'", int(sig)))
}

// TestRunOnHostsRefused: what goes wrong with real ssh, dsmd and hosts is said with the host and
// the remedy.
func TestRunOnHostsRefused(t *testing.T) {
	long(t)
	t.Parallel()
	once(t)
	o := openOffice(t)
	ann, bob := o.net.Machines[0], o.net.Machines[1]
	hosts, timeout := "bob,eve", testcluster.Patience // on a busy machine sshd takes its time
	refused := func(status int, says ...string) {
		t.Helper()
		job := o.run(t, "end", "--hosts", hosts, "--connect-timeout", timeout.String())
		if got := job.Wait(t); got != status {
			t.Errorf("status %d, want %d", got, status)
		}
		for _, want := range says {
			if !strings.Contains(job.Errors(), want) {
				t.Errorf("errors lack %q:\n%s", want, job.Errors())
			}
		}
	}
	bob.Run(t, "mv /usr/local/bin/dsmd /opt/dsmd")
	refused(71, "on bob: there is no dsmd", "--remote-dsmd")
	bob.WriteFile(t, "/usr/local/bin/dsmd", "#!/bin/sh\necho 'dsmd-agent v0.1 (revision 1)'\n", 0o755)
	refused(71, "on bob: its dsmd is another version: it is v0.1 (revision 1) there and ")
	bob.Run(t, "mv /opt/dsmd /usr/local/bin/dsmd; pkill -x sshd; while pgrep -x sshd; do sleep 0.01; done")
	refused(71, "on bob: no sshd listens there")
	o.net.Disconnect(t, bob)
	hosts, timeout = "bob", 2*time.Second
	refused(71, "on bob: it ")
	hosts, timeout = "bob,eve", testcluster.Patience
	o.net.Connect(t, bob)
	bob.Run(t, "/usr/sbin/sshd")
	o.net.AwaitSSH(t, bob)
	ann.Run(t, "sed -i /^eve/d ~/.ssh/known_hosts")
	refused(71, "on eve: its host key is not known")
	o.wantIdleExcept(t, bob)
}

// wantIdleExcept is wantIdle but for a machine on which the test has stopped things.
func (o *office) wantIdleExcept(t *testing.T, m *netns.Machine) {
	t.Helper()
	delete(o.idle, m)
	rest := slices.DeleteFunc(slices.Clone(o.net.Machines), func(other *netns.Machine) bool { return other == m })
	(&office{net: &netns.Network{Machines: rest}, idle: o.idle}).wantIdle(t)
}
