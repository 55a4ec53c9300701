package crew

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// grace is how long `dsmd run` may take to end its processes after it was asked to.
	grace = 3 * time.Second
	// lastWords is how long a failure waits for `dsmd run` to end by itself, so that its output can
	// be told.
	lastWords = time.Second
	// outputDelay is how long the output may come after `dsmd run` has ended. After that an orphan
	// holds it open, which is an error.
	outputDelay = 10 * time.Second
	// maxPath is the longest path of a Unix socket (unix(7), sun_path, with its final zero).
	maxPath = 107
)

// ErrFailed is returned when a worker or `dsmd run` has failed. The error says which, and what it
// said.
var ErrFailed = errors.New("the measurement failed")

// Options say what to run.
type Options struct {
	// Dsmd is the path of the dsmd executable.
	Dsmd string
	// Nodes is the number of nodes, at least 1.
	Nodes int
	// Trap and Transport are passed on to `dsmd run`; empty for its defaults.
	Trap, Transport string
	// Flags are further arguments of `dsmd run`.
	Flags []string
	// Env is added to the environment of `dsmd run` and of all that it starts.
	Env []string
	// Worker is the worker's command line. The path for Connect is appended to it.
	Worker []string
	// Dir is an existing directory for the socket.
	Dir string
	// Echo receives the output of `dsmd run` and all ranks, if not nil.
	Echo io.Writer
	// OnProgress, if not nil, is told what rank 0 does. It is called by one goroutine and must not
	// block.
	OnProgress func(phase string, done, total int)
}

// A Crew is a running `dsmd run` with its workers. Its methods belong to one goroutine, except
// Doing.
type Crew struct {
	options  Options
	cmd      *exec.Cmd
	output   *tail
	listener net.Listener
	events   chan event
	closing  chan struct{} // closed by Close; ends the goroutines that would write to events
	readers  sync.WaitGroup
	ended    chan struct{} // closed when `dsmd run` has ended; exit may be read then
	exit     error
	close    sync.Once

	mu    sync.Mutex
	lines []net.Conn // by rank; nil before the rank has connected; guarded by mu
	doing []activity // by rank; guarded by mu
}

type activity struct {
	phase       string
	done, total int
	since       time.Time
}

// event is a reply, or the reason why a rank will send no more.
type event struct {
	rank  int
	reply json.RawMessage
	err   error
	// said is whether the rank gave the reason itself. If not, its line ended, which may be
	// another's doing.
	said bool
}

// Start starts `dsmd run` with its workers. Close must be called.
func Start(options Options) (*Crew, error) {
	path := filepath.Join(options.Dir, "control")
	if len(path) > maxPath {
		return nil, fmt.Errorf("the path of the control socket, %s, is longer than the %d bytes that Unix sockets allow: set TMPDIR to a shorter directory", path, maxPath)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening for the workers: %w", err)
	}
	c := &Crew{
		options:  options,
		output:   &tail{echo: options.Echo},
		listener: listener,
		events:   make(chan event),
		closing:  make(chan struct{}),
		ended:    make(chan struct{}),
		lines:    make([]net.Conn, options.Nodes),
		doing:    make([]activity, options.Nodes),
	}
	for rank := range c.doing {
		c.doing[rank] = activity{phase: "being started", since: time.Now()}
	}
	if err := c.launch(path); err != nil {
		listener.Close()
		return nil, err
	}
	c.readers.Go(c.accept)
	return c, nil
}

func (c *Crew) launch(socket string) error {
	args := []string{"run", "-n", strconv.Itoa(c.options.Nodes)}
	if c.options.Trap != "" {
		args = append(args, "--trap", c.options.Trap)
	}
	if c.options.Transport != "" {
		args = append(args, "--transport", c.options.Transport)
	}
	args = append(args, c.options.Flags...)
	args = append(append(append(args, "--"), c.options.Worker...), socket)
	c.cmd = exec.Command(c.options.Dsmd, args...)
	c.cmd.Env = append(os.Environ(), c.options.Env...)
	c.cmd.Stdout, c.cmd.Stderr = c.output, c.output
	// A process group of its own, so that a terminal's Ctrl-C reaches the driver only, and there is
	// one order of ending. If the driver is killed, the kernel asks dsmd to end.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	// Output that an orphan holds open must not keep us after dsmd has ended.
	c.cmd.WaitDelay = outputDelay
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is sent when the thread that started the child ends: this one
		// must live as long as the child (prctl(2), PR_SET_PDEATHSIG).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.exit = c.cmd.Wait()
			close(c.ended)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", c.options.Dsmd, err)
	}
	return nil
}

func (c *Crew) accept() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return // Close has closed the listener.
		}
		c.readers.Go(func() { c.read(conn) })
	}
}

// read passes on what one worker sends.
func (c *Crew) read(conn net.Conn) {
	in := json.NewDecoder(conn)
	var hello message
	if err := in.Decode(&hello); err != nil || !c.register(hello.Rank, conn) {
		conn.Close()
		return
	}
	for {
		var m message
		if err := in.Decode(&m); err != nil {
			c.post(event{rank: hello.Rank, err: fmt.Errorf("rank %d ended while %s", hello.Rank, c.activity(hello.Rank))})
			return
		}
		if m.Error != "" {
			c.post(event{rank: hello.Rank, said: true, err: fmt.Errorf("rank %d failed while %s: %s", hello.Rank, c.activity(hello.Rank), m.Error)})
			return
		}
		c.note(hello.Rank, m)
		if m.Reply != nil {
			c.post(event{rank: hello.Rank, reply: m.Reply})
		}
	}
}

// register makes conn the line to rank, unless there is no such rank or it has a line already.
func (c *Crew) register(rank int, conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rank < 0 || rank >= len(c.lines) || c.lines[rank] != nil {
		return false
	}
	select {
	case <-c.closing:
		return false // Close will not see the connection any more.
	default:
	}
	c.lines[rank] = conn
	return true
}

func (c *Crew) post(e event) {
	select {
	case c.events <- e:
	case <-c.closing:
	}
}

func (c *Crew) note(rank int, m message) {
	c.mu.Lock()
	a := &c.doing[rank]
	if m.Phase != "" {
		*a = activity{phase: m.Phase, since: time.Now()}
	}
	if m.Total != 0 {
		a.done, a.total = m.Done, m.Total
	}
	now := *a
	c.mu.Unlock()
	if rank == 0 && c.options.OnProgress != nil && (m.Phase != "" || m.Total != 0) {
		c.options.OnProgress(now.phase, now.done, now.total)
	}
}

func (c *Crew) activity(rank int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.doing[rank]
	if a.total == 0 {
		return a.phase
	}
	return fmt.Sprintf("%s (step %d of %d)", a.phase, a.done, a.total)
}

// Doing says what every rank was doing when it was last heard of, for the error of a measurement
// that hangs.
func (c *Crew) Doing() string {
	parts := make([]string, len(c.doing))
	for rank := range parts {
		c.mu.Lock()
		since := c.doing[rank].since
		c.mu.Unlock()
		parts[rank] = fmt.Sprintf("rank %d has been %s for %v", rank, c.activity(rank), time.Since(since).Round(time.Second/10))
	}
	return strings.Join(parts, "; ")
}

// Tell sends a request to all workers. All must have replied before.
func (c *Crew) Tell(request any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encoding a request: %w", err)
	}
	for rank := range c.options.Nodes {
		c.mu.Lock()
		conn := c.lines[rank]
		c.mu.Unlock()
		if conn == nil {
			return fmt.Errorf("rank %d has not connected", rank)
		}
		if _, err := conn.Write(body); err != nil {
			return c.failure(fmt.Errorf("sending a request to rank %d: %w", rank, err))
		}
	}
	return nil
}

// Collect waits for one reply of each rank and returns them by rank. It returns an ErrFailed when a
// rank or `dsmd run` fails instead, and ctx's cause, with what each rank was doing, when ctx is
// done.
func (c *Crew) Collect(ctx context.Context) ([]json.RawMessage, error) {
	replies := make([]json.RawMessage, c.options.Nodes)
	ended := c.ended
	var late <-chan time.Time
	for missing := len(replies); missing > 0; {
		select {
		case e := <-c.events:
			if e.err != nil {
				return nil, c.failure(c.cause(e))
			}
			if replies[e.rank] != nil {
				return nil, c.failure(fmt.Errorf("rank %d replied twice", e.rank))
			}
			replies[e.rank] = e.reply
			missing--
		case <-ended:
			// What the workers said before may still be on its way to us, and says more.
			ended, late = nil, time.After(lastWords)
		case <-late:
			return nil, c.failure(errors.New("dsmd run ended before the workers had replied"))
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %s", context.Cause(ctx), c.Doing())
		}
	}
	return replies, nil
}

// cause returns the error of the event that explains the end of the crew best. When a rank fails,
// `dsmd run` ends the others, and we may hear of theirs first: a rank that says why it failed
// outranks one that merely ended.
func (c *Crew) cause(first event) error {
	late := time.After(lastWords)
	for e, ended := first, 0; ; {
		if e.said {
			return e.err
		}
		if e.err != nil {
			ended++
		}
		if ended == c.options.Nodes {
			return first.err
		}
		select {
		case e = <-c.events:
		case <-late:
			return first.err
		}
	}
}

// failure adds to err how `dsmd run` ended and what it and the ranks said last.
func (c *Crew) failure(err error) error {
	select {
	case <-c.ended:
	case <-time.After(lastWords):
		// Processes that don't end by themselves have nothing more to say.
	}
	select {
	case <-c.ended:
		if c.exit != nil {
			err = fmt.Errorf("%w (dsmd run: %w)", err, c.exit)
		}
	default:
	}
	if said := c.output.String(); said != "" {
		err = fmt.Errorf("%w; the last output was:\n%s", err, said)
	}
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

// Finish tells the workers that there are no more requests, and waits until `dsmd run` has ended.
// That it ends in error is an ErrFailed.
func (c *Crew) Finish(ctx context.Context) error {
	c.mu.Lock()
	for _, conn := range c.lines {
		if unixConn, ok := conn.(*net.UnixConn); ok {
			// A worker that has ended already needs no telling.
			_ = unixConn.CloseWrite()
		}
	}
	c.mu.Unlock()
	for {
		select {
		case e := <-c.events:
			// That its line ends is what a worker's success looks like, too: the exit status
			// decides.
			if e.reply != nil {
				return c.failure(fmt.Errorf("rank %d replied to no request", e.rank))
			}
		case <-c.ended:
			if c.exit != nil {
				return c.failure(errors.New("a process failed while ending"))
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), c.Doing())
		}
	}
}

// Close ends all processes, if they still run, and waits for them. It may be called more than once.
func (c *Crew) Close() {
	c.close.Do(func() {
		c.mu.Lock()
		close(c.closing)
		lines := c.lines
		c.mu.Unlock()
		c.listener.Close()
		c.endProcesses()
		for _, conn := range lines {
			if conn != nil {
				conn.Close()
			}
		}
		c.readers.Wait()
	})
}

// endProcesses asks `dsmd run` to end everything, and kills it and its group if it does not in
// time; its children end with it (they ask the kernel for that).
func (c *Crew) endProcesses() {
	// Signals to a process that has ended fail, and nothing else can go wrong with them. The group
	// can't be a stranger's: until ended is closed its leader has not been waited for.
	select {
	case <-c.ended:
		return
	default:
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-c.ended:
	case <-time.After(grace):
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		<-c.ended
	}
}
