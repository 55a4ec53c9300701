package launch

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Remote says how the hosts of a job are reached.
type Remote struct {
	// SSH is the command that runs a command on a host, as ssh(1) does and with its options; a
	// shell reads it. "" stands for "ssh".
	SSH string
	// Dsmd is dsmd on the hosts: a path, or a name for the remote PATH. "" stands for "dsmd".
	Dsmd string
	// Version is this side's version, which the hosts' has to be too.
	Version string
	// Network is the network of the nodes' data, as a prefix like 10.0.0.0/24; "" stands for the
	// addresses by which ssh reaches the hosts.
	Network string
	// Insecure allows data to travel in plain text between machines.
	Insecure bool
	// ConnectTimeout bounds the setting up of each connection. 0 stands for DefaultConnectTimeout.
	ConnectTimeout time.Duration
}

// DefaultConnectTimeout is how long ssh tries to reach a host.
const DefaultConnectTimeout = 10 * time.Second

// loginTime is how long a machine that was reached may take until its agent is ready. It may have
// to ask a directory service who the user is, or be busy.
const loginTime = time.Minute

// A host that is silent for aliveSeconds times aliveProbes is lost, in the eyes of ssh. A busy
// machine still answers. (When the launcher's machine falls silent, the host's sshd notices it as
// its administrator wants: ClientAliveInterval in sshd_config(5).)
const aliveSeconds, aliveProbes = 10, 3

// maxSaid is how many of the last lines of ssh are kept for finding out why it failed.
const maxSaid = 20

// sshArgs are what follows the ssh command, but for the host and what to run there. Nothing asks
// for a password: nobody could answer.
func (r *Remote) sshArgs() []string {
	return []string{"-T", "-x", "-o", "BatchMode=yes",
		"-o", fmt.Sprintf("ConnectTimeout=%d", max(1, int(r.ConnectTimeout.Seconds()))),
		"-o", fmt.Sprintf("ServerAliveInterval=%d", aliveSeconds), "-o", fmt.Sprintf("ServerAliveCountMax=%d", aliveProbes)}
}

// quoted is a word that a shell of the Bourne family, of C's and fish read as it is.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// sshLink is a connection through an ssh process.
type sshLink struct {
	io.Reader
	io.Writer
	host    string
	remote  *Remote
	cmd     *exec.Cmd
	pipes   []io.Closer
	cutting sync.Once
	ended   chan struct{} // closed when ssh has ended and all that it said was read

	mu     sync.Mutex
	said   []string // the last lines of ssh's standard error; guarded by mu
	cutOff bool     // cut was called before ssh ended; guarded by mu
}

// dialSSH connects a machine by ssh. A failure is reported like one that comes later.
func (m *remote) dialSSH(cfg Remote, starter *starter) {
	cfg.SSH, cfg.Dsmd, cfg.ConnectTimeout = cmp.Or(cfg.SSH, "ssh"), cmp.Or(cfg.Dsmd, "dsmd"), cmp.Or(cfg.ConnectTimeout, DefaultConnectTimeout)
	l, err := startSSH(cfg, m.name, m.stderr, starter)
	if err != nil {
		m.connect(&deadLink{err}, cfg.Version)
		return
	}
	m.connect(l, cfg.Version)
	m.opensIn(cfg.ConnectTimeout + loginTime)
}

// deadLink is a connection that could not even be begun.
type deadLink struct{ err error }

func (l *deadLink) Read([]byte) (int, error)          { return 0, l.err }
func (l *deadLink) Write([]byte) (int, error)         { return 0, l.err }
func (l *deadLink) cut()                              {}
func (l *deadLink) wait()                             {}
func (l *deadLink) machine() string                   { return "" }
func (l *deadLink) explain(error, bool) (string, int) { return l.err.Error(), StatusSystem }

func startSSH(cfg Remote, host string, stderr output, starter *starter) (*sshLink, error) {
	// The agent takes the place of the remote shell, so that nothing stands between it and the end
	// of its input.
	args := append(cfg.sshArgs(), "--", host, "exec "+quoted(cfg.Dsmd)+" run-agent")
	cmd := exec.Command("/bin/sh", append([]string{"-c", "exec " + cfg.SSH + ` "$@"`, "dsmd"}, args...)...)
	l := &sshLink{host: host, remote: &cfg, cmd: cmd, ended: make(chan struct{})}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe to ssh: %w", explainLimit(err))
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe from ssh: %w", explainLimit(err))
	}
	lines, prefix := &stream{}, "["+host+"] "
	cmd.Stderr = writerFunc(func(b []byte) (int, error) {
		if whole := lines.add(b); len(whole) > 0 {
			l.listen(string(whole))
			_ = stderr.write(prefix, whole)
		}
		return len(b), nil
	})
	cmd.WaitDelay = flushTime // a master connection of ssh may hold its standard error open
	if err := starter.start(cmd); err != nil {
		return nil, fmt.Errorf("starting ssh: %w", explainLimit(err))
	}
	l.Reader, l.Writer, l.pipes = stdout, stdin, []io.Closer{stdin}
	return l, nil
}

// writerFunc is a function as an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// listen keeps the last lines that ssh says.
func (l *sshLink) listen(lines string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(lines) {
		l.said = append(l.said, strings.TrimSpace(line))
	}
	l.said = l.said[max(0, len(l.said)-maxSaid):]
}

// cut closes the agent's input, by which it ends, and then ends ssh.
func (l *sshLink) cut() {
	l.cutting.Do(func() {
		for _, p := range l.pipes {
			p.Close()
		}
		go func() {
			defer close(l.ended)
			// ssh ends with the agent, or is of no more use: a host that is gone says nothing.
			if !endsWithin(l.cmd.Process.Pid, flushTime) {
				l.mu.Lock()
				l.cutOff = true
				l.mu.Unlock()
				_ = unix.Kill(-l.cmd.Process.Pid, unix.SIGKILL)
			}
			_ = l.cmd.Wait()
		}()
	})
}

func (l *sshLink) wait() { <-l.ended }

func (l *sshLink) machine() string { return "" }

// sshFailed is ssh's exit status when it could not connect, lost the connection, or the remote
// command was killed by a signal.
const sshFailed = 255

func (l *sshLink) explain(_ error, greeted bool) (string, int) {
	l.cut()
	l.wait()
	l.mu.Lock()
	said, cutOff := strings.Join(l.said, "\n"), l.cutOff
	l.mu.Unlock()
	status := -1
	if state := l.cmd.ProcessState; state != nil {
		status = state.ExitCode()
	}
	switch {
	case status == sshFailed && greeted:
		return "the connection is lost: its dsmd was killed, or the machine, its network or its sshd has failed", StatusDaemon
	case status == sshFailed:
		return l.unreachable(said), StatusSystem
	case cutOff:
		return "no answer", StatusSystem
	case greeted:
		return fmt.Sprintf("its agent has ended (%v)", l.cmd.ProcessState), StatusDaemon
	default:
		return l.noAgent(status), StatusSystem
	}
}

// unreachable makes advice of what ssh says when it fails. Its words are those of OpenSSH; others
// are passed on without advice.
func (l *sshLink) unreachable(said string) string {
	by := l.remote.SSH
	for _, known := range []struct{ words, advice string }{
		{"Host key verification failed", "its host key is not known, or has changed: run \"" + by + " " + l.host + "\" once and compare it, or add it to known_hosts"},
		{"Permission denied", "it does not let this user in without a password: add your public key to its ~/.ssh/authorized_keys (ssh-copy-id " + l.host + ")"},
		{"Could not resolve hostname", "there is no host of this name: check the spelling, or add it to DNS or /etc/hosts"},
		{"Connection refused", "no sshd listens there: start it, or name its port (--ssh \"ssh -p PORT\")"},
		{"timed out", "it does not answer: check that it is up, and that a firewall lets ssh through"},
		{"No route to host", "it cannot be reached: check that it is up, and its network"},
		{"not found", "the ssh command does not exist: install openssh-client, or name another with --ssh"},
	} {
		if strings.Contains(said, known.words) {
			return known.advice
		}
	}
	return fmt.Sprintf("ssh failed: does \"%s %s true\" work?", by, l.host)
}

// noAgent explains why a host that was reached did not run the agent.
func (l *sshLink) noAgent(status int) string {
	dsmd := l.remote.Dsmd
	switch status {
	case StatusNotFound:
		return fmt.Sprintf("there is no %s: install it there, or say where it is with --remote-dsmd PATH (a shell that is not a login shell may have a shorter PATH)", dsmd)
	case StatusNotExecutable:
		return fmt.Sprintf("%s cannot be executed (chmod +x, or another processor?)", dsmd)
	case StatusUsage:
		return fmt.Sprintf("%s does not know run-agent: it is an older version than this one; install the same on both", dsmd)
	default:
		return fmt.Sprintf("%s ended with status %d before it said anything", dsmd, status)
	}
}

// SSHAddress is AgentConfig.Address for an agent that was started by ssh: the third field of
// SSH_CONNECTION (ssh(1)), "" if there is none.
func SSHAddress() string {
	fields := strings.Fields(os.Getenv("SSH_CONNECTION"))
	if len(fields) != 4 {
		return ""
	}
	return fields[2]
}
