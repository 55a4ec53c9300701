package launch

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SocketPrefix begins the name of every abstract Unix socket that a job's daemons listen on. What follows is
// the job's token, a hyphen and the node's id.
const SocketPrefix = "@dsmd-"

// Names of environment variables that a program finds.
const (
	EnvSocket = "DSM_SOCKET" // where its daemon listens; a leading @ stands for an abstract name
	EnvRank   = "DSM_RANK"   // 0 to DSM_SIZE-1
	EnvSize   = "DSM_SIZE"   // number of programs in the job
)

// Exit statuses that are not a program's own, as shells and sysexits.h have them.
const (
	StatusUsage         = 64 // the command line makes no sense (EX_USAGE)
	StatusDaemon        = 70 // a daemon failed (EX_SOFTWARE)
	StatusSystem        = 71 // the job could not be started (EX_OSERR)
	StatusNotExecutable = 126
	StatusNotFound      = 127
)

// DefaultGrace is how long programs have to end after they were asked to.
const DefaultGrace = 5 * time.Second

// DefaultRemind is how long after a program's success the user is told that others still run.
const DefaultRemind = 10 * time.Second

// Config describes a job. Nodes, Program, Daemon and Guard are required.
type Config struct {
	// Nodes is the number of daemons and of programs, at least 1.
	Nodes int
	// Program is the command line of the programs. Program[0] is looked for as a shell would.
	Program []string
	// Daemon is the command line of a daemon, to which Run appends, for node i of the job:
	// --id i, --peers (the TCP address of each node), --ranks, --cluster, --listen-fd (a listening TCP socket),
	// --socket-fd (a listening Unix socket) and, if Metrics is set, --metrics-fd (a listening TCP socket).
	Daemon []string
	// Guard is the command line of a process that calls Guard.
	Guard []string
	// Metrics are the TCP addresses for the daemons' metrics: none, one for each node, or one for node 0, and then
	// node i gets the port i above it. Port 0 stands for any free one.
	Metrics []string
	// Stdin goes to rank 0, nil stands for nothing. The other ranks' standard input is /dev/null.
	Stdin *os.File
	// Stdout and Stderr receive the programs' output, line by line behind "[rank] ". Stderr also receives the
	// daemons' output behind "[dsmd node] " and the supervisor's own lines behind "dsmd: ".
	Stdout, Stderr io.Writer
	// BareDaemonLog leaves the prefix of the daemons' lines away: for logs in JSON, which name the node in a field.
	BareDaemonLog bool
	// Grace is the time between asking a program to end and killing it. 0 stands for DefaultGrace.
	Grace time.Duration
	// Remind is the time from the first program's success until cfg.Stderr says, once, that others still run: a rank that has
	// ended comes to no barrier, and those who wait for it there wait for ever. 0 stands for DefaultRemind.
	Remind time.Duration
}

// Run runs a job to its end and returns its exit status: 0 if all programs succeeded, else that of the first
// failure, which it has then reported to cfg.Stderr. The error is not nil if the job could not be started; the
// status is then that of a shell in the same situation (127 for a program that does not exist).
//
// While it runs, Run answers signals: it passes SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 on to the
// programs. Each of the first four begins the end of the job: what is still there after cfg.Grace, or at the second such
// signal, is killed.
//
// Run is for a process that does nothing else: it becomes the subreaper of its descendants, and at the end kills and
// reaps every child of the process.
func Run(cfg Config) (status int, err error) {
	if err := cfg.check(); err != nil {
		return StatusUsage, err
	}
	path, err := exec.LookPath(cfg.Program[0])
	if err != nil {
		return lookFailure(cfg.Program[0], err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return StatusSystem, fmt.Errorf("launch: becoming the subreaper of the job: %w", err)
	}
	s := newSupervisor(cfg)
	defer s.close()
	job, err := newEndpoints(cfg)
	if err != nil {
		return StatusSystem, err
	}
	if s.guard, err = s.startGuard(job.token); err != nil {
		job.close()
		return StatusSystem, err
	}
	if err := s.startAll(path, job); err != nil {
		s.startErr = err
	}
	job.close() // the daemons have them now, and when a daemon dies its peers must notice
	return s.loop()
}

func (cfg *Config) check() error {
	switch {
	case cfg.Nodes < 1:
		return fmt.Errorf("launch: %d nodes: a job has at least 1", cfg.Nodes)
	case len(cfg.Program) == 0:
		return errors.New("launch: no program to run")
	case len(cfg.Metrics) > 1 && len(cfg.Metrics) != cfg.Nodes:
		return fmt.Errorf("launch: %d metrics addresses for %d nodes: give one for each node, or one whose port is counted up",
			len(cfg.Metrics), cfg.Nodes)
	}
	return nil
}

func lookFailure(name string, err error) (int, error) {
	switch {
	case errors.Is(err, exec.ErrDot):
		return StatusNotFound, fmt.Errorf("launch: %s is in the current directory, which is not searched: write ./%s", name, name)
	case errors.Is(err, os.ErrPermission):
		return StatusNotExecutable, fmt.Errorf("launch: %s cannot be executed: %w (chmod +x?)", name, cause(err))
	default:
		return StatusNotFound, fmt.Errorf("launch: %s: no such program: %w", name, cause(err))
	}
}

// cause takes from an error of exec.LookPath what repeats the program's name.
func cause(err error) error {
	var look *exec.Error
	if errors.As(err, &look) {
		err = look.Err
	}
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return err
}

// endpoints are a job's listening sockets, by node.
type endpoints struct {
	token   string // random; names the cluster and the sockets
	data    []*os.File
	sockets []*os.File
	metrics []*os.File // empty if there are none
	peers   []string   // address of data[i]
}

func newEndpoints(cfg Config) (_ *endpoints, err error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	e := &endpoints{token: hex.EncodeToString(random[:])}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	for i := range cfg.Nodes {
		f, addr, err := listenTCP("127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("launch: a port for node %d: %w", i, err)
		}
		e.data, e.peers = append(e.data, f), append(e.peers, addr)
		if f, err = listenUnix(e.socket(i)); err != nil {
			return nil, fmt.Errorf("launch: a socket for the program of node %d: %w", i, err)
		}
		e.sockets = append(e.sockets, f)
		if len(cfg.Metrics) == 0 {
			continue
		}
		addr, err = metricsAddress(cfg.Metrics, i)
		if err != nil {
			return nil, err
		}
		if f, _, err = listenTCP(addr); err != nil {
			return nil, fmt.Errorf("launch: the metrics of node %d: %w", i, err)
		}
		e.metrics = append(e.metrics, f)
	}
	return e, nil
}

// socket is the name of node i's socket.
func (e *endpoints) socket(i int) string { return SocketPrefix + e.token + "-" + strconv.Itoa(i) }

func (e *endpoints) close() {
	for _, fs := range [][]*os.File{e.data, e.sockets, e.metrics} {
		for _, f := range fs {
			f.Close()
		}
	}
}

// metricsAddress is the address for node i (see Config.Metrics).
func metricsAddress(addrs []string, i int) (string, error) {
	if len(addrs) > 1 {
		return LoopbackUnlessSaid(addrs[i])
	}
	addr, err := LoopbackUnlessSaid(addrs[0])
	if err != nil {
		return "", err
	}
	host, portText, _ := net.SplitHostPort(addr)
	port, err := net.LookupPort("tcp", portText)
	if err != nil {
		return "", fmt.Errorf("launch: metrics address %q: %w", addrs[0], err)
	}
	if port == 0 {
		return addr, nil
	}
	return net.JoinHostPort(host, strconv.Itoa(port+i)), nil
}

// LoopbackUnlessSaid completes an address that leaves out the host with the loopback address: metrics and profiles are
// for this machine unless somebody says otherwise, with a name, an address or 0.0.0.0.
func LoopbackUnlessSaid(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("launch: address %q: %w: write HOST:PORT or :PORT", addr, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

func listenTCP(addr string) (*os.File, string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, "", err
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	return f, l.Addr().String(), err
}

func listenUnix(name string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.File()
}

// startAll starts the daemons, then the programs. Each start takes the time of a fork and an exec; the
// processes come up concurrently.
func (s *supervisor) startAll(path string, job *endpoints) error {
	for i := range s.cfg.Nodes {
		prefix := fmt.Sprintf("[dsmd %*d] ", s.rankWidth(), i)
		if s.cfg.BareDaemonLog {
			prefix = ""
		}
		c := &child{role: daemon, index: i, cmd: daemonCommand(s.cfg, job, i)}
		// A daemon has nothing to say on its standard output; if it does, it must not look like a program's.
		if err := s.spawn(c, prefix, s.stderr, s.stderr); err != nil {
			return err
		}
	}
	stdin, err := s.openStdin()
	if err != nil {
		return err
	}
	defer stdin.close()
	for i := range s.cfg.Nodes {
		cmd := &exec.Cmd{Path: path, Args: s.cfg.Program}
		cmd.Env = append(os.Environ(), EnvSocket+"="+job.socket(i),
			EnvRank+"="+strconv.Itoa(i), EnvSize+"="+strconv.Itoa(s.cfg.Nodes))
		if i == 0 && stdin.file != nil {
			cmd.Stdin = stdin.file
		}
		c := &child{role: program, index: i, cmd: cmd}
		if err := s.spawn(c, fmt.Sprintf("[%*d] ", s.rankWidth(), i), s.stdout, s.stderr); err != nil {
			return err
		}
	}
	return nil
}

// rankWidth is the number of digits of the highest rank.
func (s *supervisor) rankWidth() int { return len(strconv.Itoa(s.cfg.Nodes - 1)) }

func daemonCommand(cfg Config, job *endpoints, i int) *exec.Cmd {
	cmd := command(cfg.Daemon)
	pass := func(flag string, f *os.File) {
		// The first three descriptors are the standard ones.
		cmd.Args = append(cmd.Args, flag, strconv.Itoa(3+len(cmd.ExtraFiles)))
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.Args = append(cmd.Args,
		"--id", strconv.Itoa(i), "--peers", strings.Join(job.peers, ","),
		"--ranks", strconv.Itoa(cfg.Nodes), "--cluster", job.token)
	pass("--listen-fd", job.data[i])
	pass("--socket-fd", job.sockets[i])
	if len(job.metrics) > 0 {
		pass("--metrics-fd", job.metrics[i])
	}
	return cmd
}

// command is a command line without a search for the program: the daemon and the guard are this very executable,
// wherever it is, also when its file has been deleted since (as `go run` does).
func command(line []string) *exec.Cmd {
	return &exec.Cmd{Path: line[0], Args: append([]string(nil), line...)}
}
