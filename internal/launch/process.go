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

// linger is how long the rest of a process group may go on writing after its leader has ended, for
// things like a shell's `> >(tee log)`, before the group is killed.
const linger = time.Second

// aLongTimeAgo is a deadline that has passed.
var aLongTimeAgo = time.Unix(1, 0)

// process is a child of this process that leads a process group.
type process struct {
	id      childID
	cmd     *exec.Cmd
	pid     int // also the id of its process group
	streams []*stream
	silent  chan struct{} // closed when all streams have ended
	news    *os.File      // where a daemon is told who is lost; nil: it is not
	says    *statements   // what a program says of itself

	mu sync.Mutex
	// reaped: the group was killed, and the leader waited for; its id may be a stranger's now.
	// Guarded by mu.
	reaped bool
}

// signal sends sig to every process of the group, if that still exists.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		// ESRCH and EPERM (the group is a set-user-id program's) leave nothing to be done.
		_ = unix.Kill(-p.pid, sig)
	}
}

// reap kills the group and waits for the leader. Preconditions: the leader has ended.
func (p *process) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.Kill(-p.pid, unix.SIGKILL)
	_ = p.cmd.Wait() // how it ended is known already
	p.reaped = true
	_ = p.news.Close() // a nil file says that it is invalid
}

// exists reports whether the process id is still the process's own.
func (p *process) exists() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.reaped
}

// awaitStop waits until all threads of a process that was sent SIGSTOP have stopped, or it has
// ended, but no longer than until the deadline: in uninterruptible sleep, or at a debugger's
// breakpoint, it may never stop.
func (p *process) awaitStop(deadline time.Time) {
	for {
		pid, _, err := peekExit(unix.P_PID, p.pid, unix.WSTOPPED|unix.WNOHANG)
		if pid != 0 || err != nil || time.Now().After(deadline) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// endsWithin reports whether a child ends in time, and leaves it a zombie: until it is waited for
// its number, and that of its group, are no stranger's. Preconditions: nobody waits for it
// meanwhile.
func endsWithin(pid int, patience time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		_, _, _ = peekExit(unix.P_PID, pid, 0) // the only error is that there is no such child
		close(ended)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// forward passes the output on, and returns when it has ended.
func (p *process) forward(lost func(error)) {
	var streams sync.WaitGroup
	for _, st := range p.streams {
		streams.Go(func() { st.pump(lost) })
	}
	streams.Wait()
	close(p.silent)
}

// starter starts processes from one thread that lives until stop: the parent-death signal of a
// child is sent when the thread that forked it ends (prctl(2), PR_SET_PDEATHSIG).
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

// start starts a process, as the leader of a group, on the starter's thread.
func (s *starter) start(cmd *exec.Cmd) error { return s.startOn(cmd, nil) }

// startOn starts a process that may run only on some processors; nil: on all of this process's.
func (s *starter) startOn(cmd *exec.Cmd, on *unix.CPUSet) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	result := make(chan error, 1)
	s.work <- func() {
		if on != nil { // for the rest of this thread's life: what it starts next says where as well
			if err := unix.SchedSetaffinity(0, on); err != nil {
				result <- os.NewSyscallError("sched_setaffinity", err)
				return
			}
		}
		result <- cmd.Start()
	}
	return <-result
}

// stop ends the thread, and with it every child that is still there.
func (s *starter) stop() {
	close(s.work)
	s.done.Wait()
}

// connect makes pipes for the outputs of a process that is not started yet, which lead to the given
// outputs. The result are the process's ends, to be closed once it has them.
func (p *process) connect(prefix string, stdout, stderr output) (ends []*os.File, err error) {
	for _, to := range []output{stdout, stderr} {
		st, w, err := newStream(prefix, to)
		if err != nil {
			closeAll(ends)
			return nil, fmt.Errorf("launch: making a pipe for %v: %w", p.id, explainLimit(err))
		}
		st.whole = p.id.Role == daemon // a daemon logs, and asks nobody
		p.streams, ends = append(p.streams, st), append(ends, w)
	}
	p.cmd.Stdout, p.cmd.Stderr = ends[0], ends[1]
	return ends, nil
}

// abandon gives back what connect and daemonCommand took. Preconditions: the process could not be
// started.
func (p *process) abandon() {
	for _, st := range p.streams {
		st.from.Close()
	}
	_ = p.news.Close() // a nil file says that it is invalid
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
