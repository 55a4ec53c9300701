package launch

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// linger is how long the rest of a process group may go on writing after its leader has ended, for things
// like a shell's `> >(tee log)`, before the group is killed.
const linger = time.Second

// aLongTimeAgo is a deadline that has passed.
var aLongTimeAgo = time.Unix(1, 0)

// role tells the children of a job apart.
type role int

const (
	program role = iota
	daemon
)

// child is a process that leads a process group.
type child struct {
	role  role
	index int // rank of a program, node of a daemon
	cmd   *exec.Cmd
	pid   int // also the id of its process group

	streams []*stream
	silent  chan struct{} // closed when all streams have ended

	// Owned by supervisor.loop.
	ended  bool // the leader has ended
	reaped bool // the group was killed, and the leader waited for
}

func (c *child) String() string {
	if c.role == daemon {
		return fmt.Sprintf("the daemon of node %d", c.index)
	}
	return fmt.Sprintf("rank %d", c.index)
}

// signal sends sig to every process of the child's group. Preconditions: !c.reaped, for else the group id
// could belong to a stranger.
func (c *child) signal(sig syscall.Signal) {
	// ESRCH and EPERM (the group is a set-user-id program's) leave nothing to be done.
	_ = unix.Kill(-c.pid, sig)
}

// awaitStop waits until all threads of a child that was sent SIGSTOP have stopped, or the child has ended.
func awaitStop(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// starter starts processes from one thread that lives until stop: the parent-death signal of a child is sent
// when the thread that forked it ends (prctl(2), PR_SET_PDEATHSIG).
type starter struct {
	work chan func()
	done sync.WaitGroup
}

func newStarter() *starter {
	s := &starter{work: make(chan func())}
	s.done.Go(func() {
		// Never unlocked: the thread ends with the goroutine, and not before.
		runtime.LockOSThread()
		for f := range s.work {
			f()
		}
	})
	return s
}

// start starts a process on the starter's thread.
func (s *starter) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	s.work <- func() { result <- cmd.Start() }
	return <-result
}

// stop ends the thread, and with it every child that is still there.
func (s *starter) stop() {
	close(s.work)
	s.done.Wait()
}

// spawn starts a child with its outputs going to the given sinks (nil: not connected) with a prefix.
func (s *supervisor) spawn(c *child, prefix string, stdout, stderr *sink) (err error) {
	var ends []*os.File // the children's ends of the pipes
	defer func() {
		for _, f := range ends {
			f.Close()
		}
		if err != nil {
			for _, st := range c.streams {
				st.from.Close()
			}
		}
	}()
	connect := func(to *sink) (*os.File, error) {
		st, w, err := newStream(prefix, to)
		if err != nil {
			return nil, fmt.Errorf("launch: making a pipe for %v: %w", c, err)
		}
		c.streams, ends = append(c.streams, st), append(ends, w)
		return w, nil
	}
	// Assigning a nil *os.File to these interfaces would not be nil, hence the conditions.
	if stdout != nil {
		w, err := connect(stdout)
		if err != nil {
			return err
		}
		c.cmd.Stdout = w
	}
	if stderr != nil {
		w, err := connect(stderr)
		if err != nil {
			return err
		}
		c.cmd.Stderr = w
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.starter.start(c.cmd); err != nil {
		return fmt.Errorf("launch: starting %v: %w", c, err)
	}
	c.pid = c.cmd.Process.Pid
	c.silent = make(chan struct{})
	s.guard.add(c.pid)
	s.children = append(s.children, c)
	return nil
}

// watch reports the child's end, sees to the end of its group, and reports that too.
func (c *child) watch(s *supervisor) {
	go c.forward(s)
	_, e, err := peekExit(unix.P_PID, c.pid, 0)
	if err != nil {
		// Nobody else waits for this process, so it must be there.
		panic(fmt.Sprintf("launch: waiting for %v, process %d: %v", c, c.pid, err))
	}
	s.post(event{kind: childEnded, child: c, exit: e})
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-c.silent:
	case <-timer.C:
	case <-s.hurry:
	}
	c.signal(syscall.SIGKILL)
	_ = c.cmd.Wait() // how it ended is known already
	s.post(event{kind: childReaped, child: c})
}

// forward passes the child's output on, and returns when it has ended.
func (c *child) forward(s *supervisor) {
	var streams sync.WaitGroup
	for _, st := range c.streams {
		streams.Go(func() {
			st.pump(func(err error) { s.post(event{kind: outputLost, err: err}) })
		})
	}
	streams.Wait()
	close(c.silent)
}
