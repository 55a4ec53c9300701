package launch

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/certs"
)

// Meeting is how processes that a batch system has started on the machines of a job find each
// other: one of them is the launcher, and writes a file into a directory that all share; the others
// read it, connect, and become agents. The file is for its owner alone, and has all that is needed
// to prove that one belongs: an authority and a certificate that were made for this job. Everything
// after it is encrypted. A file that somebody else may have written is not believed: its writer
// would run programs as the user who reads it.
type Meeting struct {
	Dir  string // shared by all machines, for this user alone; made if need be
	Name string // of the job among the user's: letters, digits, '-' and '.'
	// Tasks is the number of processes, each of which gets a node and a program.
	Tasks int
	// Timeout bounds the wait for the others. 0 stands for DefaultMeetingTimeout.
	Timeout time.Duration

	held *host // set by the launcher, in Run
}

// DefaultMeetingTimeout is longer than batch systems take to start all processes of a job.
const DefaultMeetingTimeout = 5 * time.Minute

const (
	// lookAgain is the time between two looks for the meeting's file, little against what network
	// file systems take to show it, and between two attempts to take a connection.
	lookAgain = 50 * time.Millisecond
	// dialTime bounds the attempt to reach the launcher at one of its addresses.
	dialTime = 5 * time.Second
	// maxTaskLine bounds the first line of a connection, in bytes.
	maxTaskLine = 512
)

// File is where the launcher says how it is found.
func (m *Meeting) File() string { return filepath.Join(m.Dir, m.Name) }

func (m *Meeting) timeout() time.Duration {
	if m.Timeout == 0 {
		return DefaultMeetingTimeout
	}
	return m.Timeout
}

// Attend is the life of one of the processes: it finds the launcher and serves it as an agent. task
// is this process's place among them, from 0; name is that of its machine.
func (m *Meeting) Attend(task int, name string, cfg AgentConfig) error {
	ctx, cancel := context.WithTimeout(context.Background(), m.timeout())
	defer cancel()
	conn, err := m.find(ctx)
	if err != nil {
		return fmt.Errorf("launch: task %d on %s: %w", task, name, err)
	}
	defer conn.Close()
	if host, _, err := net.SplitHostPort(conn.LocalAddr().String()); err == nil {
		cfg.Address = host
	}
	if _, err := fmt.Fprintf(conn, "%d %s\n", task, name); err != nil {
		return fmt.Errorf("launch: task %d on %s: greeting the launcher: %w", task, name, err)
	}
	from := bufio.NewReader(conn)
	why, err := from.ReadString('\n')
	if err != nil {
		return fmt.Errorf("launch: task %d on %s: the launcher has gone: %w", task, name, err)
	}
	if why = strings.TrimSpace(why); why != "" {
		return fmt.Errorf("launch: task %d on %s: %w: %s", task, name, ErrNoJob, why)
	}
	return Agent(from, conn, cfg)
}

// find waits for the launcher's file, and connects.
func (m *Meeting) find(ctx context.Context) (net.Conn, error) {
	var last error
	for {
		inv, err := m.readInvitation()
		if err == nil {
			conn, err := inv.dial(ctx)
			if err == nil {
				return conn, nil
			}
			last = err // of an earlier job of the same name, perhaps: it will be replaced
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no launcher within %v: is %s shared by all machines (--meet)? %w", m.timeout(), m.Dir, errors.Join(last, err))
		case <-time.After(lookAgain):
		}
	}
}

func (inv *invitation) dial(ctx context.Context) (net.Conn, error) {
	config, err := inv.config()
	if err != nil {
		return nil, err
	}
	// The launcher is known by its certificate, not by name. VerifyConnection checks that the
	// authority has signed it.
	config.InsecureSkipVerify = true
	var failures []error
	for _, addr := range inv.Addresses {
		dialing, cancel := context.WithTimeout(ctx, dialTime)
		conn, err := (&tls.Dialer{NetDialer: &net.Dialer{KeepAliveConfig: keepAlive, Control: boundSilence}, Config: config}).DialContext(dialing, "tcp", addr)
		cancel()
		if err == nil {
			return conn, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

// config loads the keys. They are files for a moment, because that is how keys are checked, but
// none that would stay if this process ended then.
func (inv *invitation) config() (*tls.Config, error) {
	var paths [3]string
	for i, s := range []secretFile{{"ca", inv.Authority}, {"cert", inv.Cert}, {"key", inv.Key}} {
		f, err := inMemory(s)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		paths[i] = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	return certs.Load(paths[0], paths[1], paths[2])
}

// silence is how long the other end of a meeting's connection may answer nothing. Then its machine
// is lost: one that loses power or its network says no farewell. It is what ssh is told, too.
const silence = aliveProbes * aliveSeconds * time.Second

// keepAlive asks an end that has nothing to say whether it is still there.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: aliveSeconds * time.Second, Interval: aliveSeconds * time.Second, Count: aliveProbes}

// boundSilence bounds the wait for an acknowledgement of what was sent (tcp(7), TCP_USER_TIMEOUT).
// The connections that a listener takes have its bound.
func boundSilence(_, _ string, socket syscall.RawConn) (err error) {
	failed := socket.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	return errors.Join(failed, os.NewSyscallError("setsockopt", err))
}

// host is the launcher's side of a meeting.
type host struct {
	meeting  *Meeting
	listener net.Listener
	links    []*lateLink // by task
	once     sync.Once
	over     chan struct{} // closed by close

	mu  sync.Mutex
	why string // there will be no job; "": it has not come to that. Guarded by mu.
}

// hold begins a meeting.
func (m *Meeting) hold() (*host, error) {
	keys, err := jobKeys(m.Name, 1)
	if err != nil {
		return nil, fmt.Errorf("launch: making the certificates of the meeting: %w", err)
	}
	inv := invitation{Authority: keys[0][0].Content, Cert: keys[0][1].Content, Key: keys[0][2].Content}
	config, err := inv.config()
	if err != nil {
		return nil, fmt.Errorf("launch: the certificates of the meeting: %w", err)
	}
	listening := net.ListenConfig{KeepAliveConfig: keepAlive, Control: boundSilence}
	listening.SetMultipathTCP(false) // which cannot be told the bound
	l, err := listening.Listen(context.Background(), "tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("launch: listening for the other tasks: %w", err)
	}
	h := &host{meeting: m, listener: tls.NewListener(l, config), over: make(chan struct{})}
	if inv.Addresses, err = ownAddresses(l.Addr().(*net.TCPAddr).Port); err == nil {
		err = m.invite(&inv)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	for range m.Tasks {
		h.links = append(h.links, &lateLink{come: make(chan struct{}), ended: make(chan struct{}), patience: m.timeout(), missing: func() string { return h.missing() }})
	}
	go h.receive()
	return h, nil
}

// ownAddresses are the addresses by which other machines may reach this one; on a machine that
// nobody reaches, its own.
func ownAddresses(port int) (list []string, err error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("launch: this machine's addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			list = append(list, net.JoinHostPort(ip.IP.String(), strconv.Itoa(port)))
		}
	}
	if list == nil {
		list = []string{net.JoinHostPort(loopback, strconv.Itoa(port))}
	}
	return list, nil
}

// receive takes the connections of the tasks.
func (h *host) receive() {
	for {
		conn, err := h.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return // close was called
		}
		if err != nil {
			time.Sleep(lookAgain) // no descriptor is free, perhaps, until strangers are sent away
			continue
		}
		go h.welcome(conn)
	}
}

// welcome finds out which task has come, and answers with a line: an empty one, or why there is no
// job. One that says nothing of use is sent away: whoever comes has no more than found the port, so
// far.
func (h *host) welcome(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(dialTime))
	from := bufio.NewReaderSize(conn, maxTaskLine)
	line, err := from.ReadSlice('\n')
	number, name, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	task, numberErr := strconv.Atoi(number)
	if err != nil || numberErr != nil || task < 0 || task >= len(h.links) || h.answer(conn) != nil {
		conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{}) // before arrive gives it away
	if !h.links[task].arrive(conn, from, name) {
		conn.Close()
	}
	if h.missing() == "" {
		h.close()
	}
}

// missing names the tasks that have not come.
func (h *host) missing() string {
	var tasks []string
	for i, l := range h.links {
		if !l.hasCome() {
			tasks = append(tasks, strconv.Itoa(i))
		}
	}
	return strings.Join(tasks, ", ")
}

// close ends the meeting: nobody else can come. It may be called twice.
func (h *host) close() {
	h.once.Do(func() {
		h.listener.Close()
		// another job of the name may have replaced it, which it does not survive either way
		_ = os.Remove(h.meeting.File())
		close(h.over)
	})
}

// lateLink is a connection that comes later.
type lateLink struct {
	patience time.Duration
	missing  func() string
	come     chan struct{} // closed when conn is there
	ended    chan struct{} // closed by cut

	mu   sync.Mutex
	conn net.Conn  // guarded by mu until come is closed
	from io.Reader // what conn says, with what was read ahead
	name string    // of the machine
	here bool      // arrive was called; guarded by mu
	off  bool      // cut was called; guarded by mu
	late bool      // conn did not come in time; guarded by mu
}

// arrive says that the connection is there. It returns false if there was one already, or nobody
// wants it any more.
func (l *lateLink) arrive(conn net.Conn, from io.Reader, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	wasHere := l.here
	if l.here = true; wasHere || l.off {
		return false
	}
	l.conn, l.from, l.name = conn, from, name
	close(l.come)
	return true
}

func (l *lateLink) hasCome() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.here
}

// errLate: a task has not come in time.
var errLate = errors.New("launch: the task has not come")

// arrived waits for the connection. The reader and the writer both do: when one finds it late, and
// cuts the link for that, the other says the same.
func (l *lateLink) arrived() error {
	timer := time.NewTimer(l.patience)
	defer timer.Stop()
	late := false
	select {
	case <-l.come:
		return nil
	case <-l.ended:
	case <-timer.C:
		late = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = l.late || late
	if l.late {
		return errLate
	}
	return net.ErrClosed
}

func (l *lateLink) Read(b []byte) (int, error) {
	if err := l.arrived(); err != nil {
		return 0, err
	}
	return l.from.Read(b)
}

func (l *lateLink) Write(b []byte) (int, error) {
	if err := l.arrived(); err != nil {
		return 0, err
	}
	return l.conn.Write(b)
}

func (l *lateLink) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.off {
		return
	}
	l.off = true
	close(l.ended)
	if l.conn != nil {
		l.conn.Close()
	}
}

func (l *lateLink) wait() {}

func (l *lateLink) machine() string { return l.name }

func (l *lateLink) explain(err error, greeted bool) (string, int) {
	switch {
	case errors.Is(err, errLate):
		return fmt.Sprintf("not all tasks have come within %v: missing are %s; was each started with dsmd run, and is the directory of --meet shared by all machines?",
			l.patience, l.missing()), StatusSystem
	case greeted:
		return "the connection is lost: its dsmd was killed, or the machine or its network has failed", StatusDaemon
	default:
		return "the connection is lost", StatusSystem
	}
}

// runMeeting is Run for the launcher of a meeting. If the job is not started the meeting stays open
// for TurnAway, but not after a signal, which batch systems send to all tasks.
func runMeeting(cfg Config, p *plan, s *supervisor) (status int, err error) {
	h, err := cfg.Meeting.hold()
	if err != nil {
		return StatusSystem, err
	}
	cfg.Meeting.held = h
	status, err = cfg.meet(h, p, s)
	if err == nil || s.interrupted != 0 {
		h.close()
	}
	return status, err
}

// meet runs the job of a meeting. The launcher's own task is an agent like the others, a process
// beside it.
func (cfg *Config) meet(h *host, p *plan, s *supervisor) (int, error) {
	starter := newStarter()
	defer starter.stop()
	for task, l := range h.links {
		m := s.remote(p.places[task].name)
		m.connect(l, cfg.Remote.Version)
		m.opensIn(cfg.Meeting.timeout() + loginTime)
		s.machines = append(s.machines, m)
	}
	own := command(cfg.Commands.Attend)
	own.Stderr = writerFunc(func(b []byte) (int, error) { return len(b), s.stderr.write("", b) })
	own.WaitDelay = flushTime
	if err := starter.start(own); err != nil {
		for _, l := range h.links {
			l.cut()
		}
		return StatusSystem, fmt.Errorf("launch: starting the agent beside the launcher: %w", explainLimit(err))
	}
	status, err := s.loop()
	if err != nil {
		h.refuse(err)
	}
	awaitEnd(own)
	return status, err
}

// awaitEnd waits for a process that is about to end, and kills it if it is not.
func awaitEnd(cmd *exec.Cmd) {
	timer := time.AfterFunc(orphanTime, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
}
