package floor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"dsmd/internal/netio"

	"golang.org/x/sys/unix"
)

// Measure takes spec.Samples times, in microseconds, and returns them in the order in which they
// were taken. It starts the processes, waits for the one that takes the times, and leaves none
// behind. When ctx ends, so do they. Several calls may run at the same time, but disturb each
// other's times.
func Measure(ctx context.Context, spec Spec) ([]float64, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	var samples []float64
	err := onThread(func() (err error) {
		samples, err = measure(ctx, spec)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("floor %s: %w", spec.Path, err)
	}
	return samples, nil
}

// onThread runs f on a thread that does nothing else and outlives f's children: the kernel sends a
// parent-death signal when the thread that started the child ends, not when the process does
// (prctl(2)).
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- f()
	}()
	return <-done
}

func measure(ctx context.Context, spec Spec) ([]float64, error) {
	g := &group{spec: spec}
	defer g.end()
	timer, err := g.start()
	if err != nil {
		return nil, err
	}
	return timer.wait(ctx, g)
}

// A group is the processes of one measurement. It belongs to one goroutine.
type group struct {
	spec    Spec
	members []*process
}

// start starts all processes and returns the one that takes the times.
func (g *group) start() (*process, error) {
	switch g.spec.Path {
	case Fetch, FetchMany, Unprotect:
		return g.startFaults()
	case RoundTrip, Stream, Pipeline:
		a, b, err := tcpPair()
		if err != nil {
			return nil, err
		}
		return g.startClient(a, b)
	case UnixRoundTrip:
		a, b, err := unixPair()
		if err != nil {
			return nil, err
		}
		return g.startClient(a, b)
	default:
		return g.add(roleToucher)
	}
}

func (g *group) startFaults() (*process, error) {
	toServer, toDaemon, err := tcpPair()
	if err != nil {
		return nil, err
	}
	defer closeAll(toServer, toDaemon)
	programEnd, daemonEnd, err := unixPair()
	if err != nil {
		return nil, err
	}
	defer closeAll(programEnd, daemonEnd)
	if _, err := g.add(roleServer, toDaemon); err != nil {
		return nil, err
	}
	if _, err := g.add(roleDaemon, toServer, daemonEnd); err != nil {
		return nil, err
	}
	return g.add(roleProgram, programEnd)
}

func (g *group) startClient(clientEnd, serverEnd *os.File) (*process, error) {
	defer closeAll(clientEnd, serverEnd)
	if _, err := g.add(roleServer, serverEnd); err != nil {
		return nil, err
	}
	return g.add(roleClient, clientEnd)
}

func closeAll(files ...io.Closer) {
	for _, f := range files {
		f.Close()
	}
}

// A process is one of a group. ended is closed when it has ended; err and the buffers may be read
// then.
type process struct {
	role   role
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr bytes.Buffer
	ended  chan struct{}
	err    error
}

// add starts a process of the group.
func (g *group) add(r role, inherited ...*os.File) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this executable: %w", err)
	}
	specText, err := json.Marshal(g.spec)
	if err != nil {
		return nil, fmt.Errorf("encoding the specification: %w", err)
	}
	p := &process{role: r, ended: make(chan struct{})}
	p.cmd = exec.Command(self, processMark, string(r), string(specText))
	p.cmd.ExtraFiles = inherited
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	// The signals by which Go preempts a goroutine would interrupt system calls and faults.
	p.cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
	// A group of its own, so that a terminal's Ctrl-C reaches only the driver, which ends the rest.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the %s: %w", r, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	g.members = append(g.members, p)
	return p, nil
}

// failure describes why a process ended. Preconditions: p.ended is closed.
func (p *process) failure() error {
	said := strings.TrimSpace(p.stderr.String())
	if said == "" {
		said = "it said nothing"
	}
	if p.err == nil {
		return fmt.Errorf("the %s ended too early: %s", p.role, said)
	}
	return fmt.Errorf("the %s failed: %w: %s", p.role, p.err, said)
}

// wait returns the samples of p when it has ended. That another process ends first, or ctx, is an
// error.
func (p *process) wait(ctx context.Context, g *group) ([]float64, error) {
	select {
	case <-p.ended:
	case <-g.anyOtherEnded(p):
		// The others may end because p has; only p knows.
		select {
		case <-p.ended:
		default:
			if err := g.otherFailure(p); err != nil {
				return nil, err
			}
			select {
			case <-p.ended:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if p.err != nil {
		return nil, p.failure()
	}
	return parseReport(&p.stdout, g.spec.Samples)
}

// anyOtherEnded returns a channel that is closed when a process besides p has ended.
func (g *group) anyOtherEnded(p *process) <-chan struct{} {
	ended := make(chan struct{}, len(g.members))
	for _, m := range g.members {
		if m != p {
			go func() {
				<-m.ended
				ended <- struct{}{}
			}()
		}
	}
	return ended
}

// otherFailure describes the first process besides p that has ended in error, if there is one.
func (g *group) otherFailure(p *process) error {
	for _, m := range g.members {
		if m == p {
			continue
		}
		select {
		case <-m.ended:
			if m.err != nil {
				return m.failure()
			}
		default:
		}
	}
	return nil
}

// end kills the processes that have not ended and waits for all.
func (g *group) end() {
	for _, m := range g.members {
		// A process that has ended already cannot be killed, and that is all that can go wrong.
		_ = m.cmd.Process.Kill()
	}
	for _, m := range g.members {
		<-m.ended
	}
}

// tcpPair returns both ends of a loopback TCP connection without Nagle's delay, and without pacing,
// as the daemons' are.
func tcpPair() (*os.File, *os.File, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("listening on the loopback address: %w", err)
	}
	defer listener.Close()
	near, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to %v: %w", listener.Addr(), err)
	}
	defer near.Close()
	far, err := listener.Accept()
	if err != nil {
		return nil, nil, fmt.Errorf("accepting at %v: %w", listener.Addr(), err)
	}
	defer far.Close()
	nearFile, nearErr := near.(*net.TCPConn).File()
	farFile, farErr := far.(*net.TCPConn).File()
	if err := errors.Join(nearErr, farErr); err != nil {
		return nil, nil, fmt.Errorf("duplicating a connection's descriptor: %w", err)
	}
	for _, end := range []*os.File{nearFile, farFile} {
		_ = netio.Unpace(int(end.Fd())) // where that is not allowed it is not to the daemons either
	}
	return nearFile, farFile, nil
}

func unixPair() (*os.File, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far"), nil
}

// Load keeps every processor busy, with one process per processor at normal priority, until stop is
// called or ctx ends. stop waits for the processes; it must be called, and may be more than once.
func Load(ctx context.Context) (stop func(), err error) {
	release, started := make(chan struct{}), make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := onThread(func() error {
			g := &group{}
			defer g.end()
			for range runtime.NumCPU() {
				if _, err := g.add(roleSpinner); err != nil {
					return err
				}
			}
			started <- nil
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		<-done
		return nil, fmt.Errorf("starting the load: %w", err)
	}
	return sync.OnceFunc(func() {
		close(release)
		<-done
	}), nil
}
