package launch

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"dsmd/internal/runstats"
)

// SocketPrefix begins the name of every abstract Unix socket that a job's daemons listen on. What
// follows is the job's token, a hyphen and the node's id.
const SocketPrefix = "@dsmd-"

// Names of environment variables that a program finds.
const (
	EnvSocket = "DSM_SOCKET" // where its daemon listens; a leading @ stands for an abstract name
	EnvRank   = "DSM_RANK"   // 0 to DSM_SIZE-1
	EnvSize   = "DSM_SIZE"   // number of programs in the job
	// EnvTerminal is 1 in rank 0 if what it writes to standard error is shown on a terminal.
	EnvTerminal = "DSM_TERMINAL"
	// These are for Config.Env.
	EnvCheckpoint      = "DSM_CHECKPOINT"       // absolute path of a directory
	EnvCheckpointEvery = "DSM_CHECKPOINT_EVERY" // as time.ParseDuration reads it
	EnvRestore         = "DSM_RESTORE"          // absolute path of a manifest
	EnvLost            = "DSM_LOST"             // error or checkpoint
)

// ofOneJob are the variables that say what a job asks of its programs, where it asks for it. So
// they are not inherited: not from a job whose program has started this one, nor from a user's
// shell.
var ofOneJob = []string{
	EnvTerminal, EnvCheckpoint, EnvCheckpointEvery, EnvRestore, EnvLost,
	runstats.EnvStats, runstats.EnvProfile, runstats.EnvTrace, runstats.EnvWords,
}

// Sets reports whether a variable is one that programs get from Run, always or where a job asks for
// it, and so nobody else can give them.
func Sets(variable string) bool {
	return slices.Contains(ofOneJob, variable) || slices.Contains([]string{EnvSocket, EnvRank, EnvSize, runstats.Env}, variable)
}

// inherited is the part of this process's environment that is for programs.
func inherited() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(ofOneJob, name)
	})
}

// Exit statuses that are not a program's own, as shells and sysexits.h have them.
const (
	StatusEarlyExit     = 1  // a rank has ended for which others wait, with Config.FailOnEarlyExit
	StatusUsage         = 64 // the command line makes no sense (EX_USAGE)
	StatusDaemon        = 70 // a daemon failed, or its machine was lost (EX_SOFTWARE)
	StatusSystem        = 71 // the job could not be started (EX_OSERR)
	StatusOutput        = 74 // the job's output could not be written (EX_IOERR)
	StatusNotExecutable = 126
	StatusNotFound      = 127
)

// DefaultGrace is what Config.Grace is if the user does not say.
const DefaultGrace = 5 * time.Second

// DefaultRemind is how long after a program's success the user is told that others still run.
const DefaultRemind = 10 * time.Second

// Commands are the command lines by which a machine starts processes of dsmd itself. The first two
// are required.
type Commands struct {
	// Daemon is the command line of a daemon, to which are appended the flags for a node of the
	// job: Config.DaemonFlags, --id, --peers (the TCP address of each node), --ranks, --cluster,
	// --listen-fd (a listening TCP socket), --socket-fd (a listening Unix socket), if
	// Config.Metrics is set --metrics-fd (a listening TCP socket), with Config.Survive --news-fd (a
	// pipe that is for News.Read), and --tls-ca, --tls-cert and --tls-key when the nodes'
	// connections are encrypted, else --secret-file.
	Daemon []string
	// Guard is the command line of a process that calls Guard.
	Guard []string
	// Attend is the command line of a process that calls Meeting.Attend as task 0; for the launcher
	// of a Meeting.
	Attend []string
}

// Config describes a job. Program, Commands and one of Nodes and Hosts are required.
type Config struct {
	Commands Commands
	// Nodes is the number of daemons, at least 1, of a job on this machine, and Slots that of the
	// programs at each of them; 0 stands for 1.
	Nodes, Slots int
	// Hosts are the machines of a job that runs elsewhere: a daemon on each, and as many programs
	// as it has slots. They are reached by Remote. Then Nodes is 0.
	Hosts  []Host
	Remote Remote
	// Meeting, if not nil, has the machines come by themselves instead. Hosts then only name them,
	// one for each task.
	Meeting *Meeting
	// Program is the command line of the programs. Program[0] is looked for as a shell would, on
	// the machine where it is to run.
	Program []string
	// DaemonFlags are further flags for all daemons.
	DaemonFlags []string
	// Survive lets the job go on without ranks that are lost: their program has died, or their
	// daemon has, or their machine cannot be reached. The daemons are told who is lost (see News).
	// They must be of the kind that goes on without others, and ends when too few are left. A
	// program that ends with StatusDaemon has lost its daemon. Otherwise the first loss ends the
	// job.
	Survive bool
	// Dir is the working directory of the programs; "" stands for that of this process.
	Dir string
	// Env are environment variables for the programs, NAME=VALUE. On this machine they are added to
	// this process's own, but for those that say what another job asks of its programs.
	Env []string
	// Metrics are the TCP addresses for the daemons' metrics: none, one for each node, or one for
	// node 0, and then node i gets the port i above it. Port 0 stands for any free one.
	Metrics []string
	// Stdin goes to rank 0, nil stands for nothing. The other ranks' standard input is /dev/null.
	Stdin *os.File
	// Stdout and Stderr receive the programs' output, each line behind "[rank] ". Stderr also
	// receives the daemons' output behind "[dsmd node] ", that of connections to hosts behind
	// "[host] ", and the supervisor's own lines behind "dsmd: ". On a terminal the beginning of a
	// line is there soon after it was printed; another's line then stands below it. In a file lines
	// stay whole, in a pipe those that are printed within a second, also where both are one file.
	Stdout, Stderr io.Writer
	// Format is the format of that; Timestamps puts the time before each line.
	Format     Format
	Timestamps bool
	Insight
	// BareDaemonLog leaves the prefix of the daemons' lines away: for logs in JSON, which name the
	// node in a field.
	BareDaemonLog bool
	// Bind is whether the nodes of one machine have processors of their own.
	Bind Binding
	// Grace is the time between asking a program to end and killing it. With 0 it is killed at
	// once.
	Grace time.Duration
	EarlyExit
}

// Insight is what a job is to say of itself, beside the programs' output.
type Insight struct {
	// Stats has a report of where the programs' time went printed at the end; Profile names a file
	// for a profile of where in them that was.
	Stats   bool
	Profile string
	// Trace names a file for a trace of all waits, compressed if the name ends in .gz.
	Trace string
	// Sharing has a report of why pages travelled between nodes printed at the end.
	Sharing bool
	// Pieces, if not nil, is given what the ranks log while they run: see runstats.Piece. Pieces of
	// one rank come in order, and one call at a time. It must not block.
	Pieces func(runstats.Piece)
}

// EarlyExit is what becomes of a rank that ends before others.
type EarlyExit struct {
	// Remind is the time from the first program's success until Config.Stderr says, once, that
	// others still run: a rank that has ended comes to no barrier, and those who wait for it there
	// wait for ever. 0 stands for DefaultRemind.
	Remind time.Duration
	// FailOnEarlyExit ends the job, with StatusEarlyExit, when a rank has left the cluster,
	// whatever its status, and others have waited for it for some time at a barrier or in a
	// reduction.
	FailOnEarlyExit bool
}

// Run runs a job to its end and returns its exit status: 0 if all programs succeeded, else that of
// the first failure, which it has then reported to cfg.Stderr. With cfg.Survive it is also 0 if
// some programs have succeeded and all others were lost: killed, or with their daemon or machine;
// the end of a program with a status of its own is a failure, and makes the status that of the
// first failure or loss. The error is not nil if the job was not started: because it could not be,
// and then the status is that of a shell in the same situation (127 for a program that does not
// exist), or because a signal came before. Then the launcher of a Meeting calls TurnAway.
//
// While it runs, Run answers signals: it passes SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and
// SIGUSR2 on to the programs. Each of the first four begins the end of the job: what is still there
// after cfg.Grace, or at the second such signal, is killed.
//
// Run is for a process that does nothing else: it becomes the subreaper of its descendants, and at
// the end kills and reaps every child of the process.
func Run(cfg Config) (status int, err error) {
	plan, err := cfg.plan()
	if err != nil {
		return StatusUsage, err
	}
	profile, err := cfg.claimProfile()
	if err != nil {
		return StatusUsage, err
	}
	trace, err := cfg.openTrace()
	if err != nil {
		profile.GiveBack()
		return StatusUsage, err
	}
	s, err := newSupervisor(cfg, plan)
	if err != nil {
		profile.GiveBack()
		trace.end()
		return StatusUsage, err
	}
	s.reports.profile = profile
	s.reports.traceTo(trace)
	defer s.close()
	if len(cfg.Hosts) == 0 {
		here := newLocal(cfg.Commands, loopback, s.post, s.stdout, s.stderr)
		here.said = func(who childID, x runstats.Statement, _ []byte) { s.reports.hear(who, x) }
		here.stop = s.askedToEnd
		defer here.close()
		s.machines = []machine{here}
		return s.loop()
	}
	if cfg.Meeting != nil {
		return runMeeting(cfg, plan, s)
	}
	connections := newStarter()
	defer connections.stop()
	for _, host := range cfg.Hosts {
		m := s.remote(host.Name)
		m.dialSSH(cfg.Remote, connections)
		s.machines = append(s.machines, m)
	}
	return s.loop()
}

// loopback is where the nodes of a job on one machine listen.
const loopback = "127.0.0.1"

// plan is what runs where: a decision that is made before any machine is reached.
type plan struct {
	token   string
	metrics []string // by node, or nil
	places  []place  // by machine
	ranks   int
}

// place is what runs on one machine.
type place struct {
	name  string // of the machine; "" for this one
	nodes []int
	ranks []int // programs
	homes []int // of ranks: the node to whose daemon each attaches
}

func (cfg *Config) plan() (*plan, error) {
	nodes := cfg.Nodes + len(cfg.Hosts)
	switch {
	case cfg.Nodes != 0 && len(cfg.Hosts) != 0:
		return nil, errors.New("launch: a job runs on this machine or on hosts: give a number of nodes or the hosts")
	case nodes < 1:
		return nil, fmt.Errorf("launch: %d nodes: a job has at least 1", nodes)
	case cfg.Slots > maxSlots:
		return nil, fmt.Errorf("launch: %d programs at each node; 1 to %d are possible", cfg.Slots, maxSlots)
	case len(cfg.Program) == 0:
		return nil, errors.New("launch: no program to run")
	case len(cfg.Metrics) > 1 && len(cfg.Metrics) != nodes:
		return nil, fmt.Errorf("launch: %d metrics addresses for %d nodes: give one for each node, or one whose port is counted up",
			len(cfg.Metrics), nodes)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	p := &plan{token: hex.EncodeToString(random[:])}
	var err error
	if p.metrics, err = metricsAddresses(cfg.Metrics, nodes); err != nil {
		return nil, err
	}
	if len(cfg.Hosts) == 0 {
		slots := max(cfg.Slots, 1)
		here := place{}
		for node := range nodes {
			here.nodes = append(here.nodes, node)
			here.add(&p.ranks, node, slots)
		}
		p.places = []place{here}
		return p, nil
	}
	for node, host := range cfg.Hosts {
		at := place{name: host.Name, nodes: []int{node}}
		at.add(&p.ranks, node, host.Slots)
		p.places = append(p.places, at)
	}
	return p, nil
}

// add places the next ranks at a node.
func (at *place) add(next *int, node, slots int) {
	for range slots {
		at.ranks, at.homes = append(at.ranks, *next), append(at.homes, node)
		*next++
	}
}

// nodes is the number of nodes.
func (p *plan) nodes() (n int) {
	for _, at := range p.places {
		n += len(at.nodes)
	}
	return n
}

// children is the number of daemons and programs.
func (p *plan) children() int { return p.nodes() + p.ranks }

// openOrder is what a machine has to know first.
func (p *plan) openOrder(cfg *Config, at place) openOrder {
	o := openOrder{Token: p.token, Nodes: at.nodes, Program: []byte(cfg.Program[0]), Dir: []byte(cfg.Dir)}
	if at.name == "" {
		o.Data = loopback + ":0"
	} else {
		o.Data, o.Network = chooseAddress, cfg.Remote.Network
	}
	if p.metrics != nil {
		for _, node := range at.nodes {
			o.Metrics = append(o.Metrics, p.metrics[node])
		}
	}
	return o
}

// onTerminal reports whether standard error is shown on a terminal as programs write it.
func (c *Config) onTerminal() bool {
	f, isFile := c.Stderr.(*os.File)
	return isFile && c.Format != JSON && c.Format.directory() == "" && isTerminal(f)
}

// startOrder is what to start on a machine, when all nodes' addresses are known. keys are the files
// of each node.
func (p *plan) startOrder(cfg *Config, at place, peers []string, flags []string, keys [][]secretFile) startOrder {
	o := startOrder{Command: cfg.Program, Env: cfg.Env, Bind: cfg.Bind == ToCores}
	for _, node := range at.nodes {
		prefix := p.prefix(childID{daemon, node})
		if cfg.BareDaemonLog && cfg.Format != JSON && cfg.Format.directory() == "" {
			prefix = ""
		}
		args := append(slices.Concat(cfg.DaemonFlags, flags), "--id", strconv.Itoa(node), "--peers", strings.Join(peers, ","),
			"--ranks", strconv.Itoa(p.ranks), "--cluster", p.token)
		d := childOrder{ID: childID{daemon, node}, Prefix: prefix, Args: args, Node: node, News: cfg.Survive}
		if keys != nil {
			d.Files = keys[node]
		}
		o.Children = append(o.Children, d)
	}
	for i, rank := range at.ranks {
		env := words{EnvRank + "=" + strconv.Itoa(rank), EnvSize + "=" + strconv.Itoa(p.ranks)}
		if rank == 0 && cfg.onTerminal() {
			env = append(env, EnvTerminal+"=1")
		}
		if cfg.Stats || cfg.Profile != "" {
			env = append(env, runstats.EnvStats+"=1")
		}
		if cfg.Profile != "" {
			env = append(env, runstats.EnvProfile+"=1")
		}
		if cfg.wantsPieces() {
			env = append(env, runstats.EnvTrace+"=1")
		}
		if cfg.wantsWords() {
			env = append(env, runstats.EnvWords+"=1")
		}
		o.Children = append(o.Children, childOrder{
			ID: childID{program, rank}, Prefix: p.prefix(childID{program, rank}), Node: at.homes[i],
			Env: env, Input: rank == 0,
		})
	}
	return o
}

// wantsPieces is whether somebody reads what the ranks log.
func (cfg *Config) wantsPieces() bool { return cfg.Pieces != nil || cfg.Trace != "" || cfg.Sharing }

// wantsWords is whether somebody wants to know which words of pages the ranks write.
func (cfg *Config) wantsWords() bool { return cfg.Pieces != nil || cfg.Sharing }

// width is the number of digits of the highest of n numbers from 0.
func width(n int) int { return len(strconv.Itoa(n - 1)) }

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

// signals that Run passes on to the programs.
var signals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
