package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/memfile"
	"dsmd/internal/memlimit"
	"dsmd/internal/runstats"
)

// haltTime bounds the wait for all daemons to stand still. Meanwhile no signal is answered. A
// daemon that is late may complain of the end of the others.
const haltTime = time.Second

// orphanTime bounds the killing of what the programs left behind.
const orphanTime = 5 * time.Second

// local is the machine that this process runs on.
type local struct {
	commands       Commands
	address        string // for openOrder.Data when it leaves the choice to the machine
	post           func(event)
	stdout, stderr output
	starter        *starter
	deaths         chan os.Signal // SIGCHLD
	over           chan struct{}  // closed by close
	hurried        chan struct{}  // closed by hurry
	hurryOnce      sync.Once
	kills          uint64 // what oomKills said when the job began

	dir       string // where the programs run; "": where this process is
	path      string // of the program, from there
	endpoints *endpoints
	parts     []unix.CPUSet // processors of each of endpoints.nodes; nil: all have all
	// said is told what a program says of itself before its end, from any goroutine; set before
	// open.
	said func(who childID, x runstats.Statement, line []byte)
	// stop reports whether the job is to end, so that no more children are started; nil: never. Set
	// before start, which calls it before each child.
	stop func() bool

	mu    sync.Mutex // taken before a process's
	guard *guard     // guarded by mu; nil before open
	// renewals is how many more guards may take the place of one that has ended. Guarded by mu.
	renewals int
	// processes: guarded by mu. A new process is added under the lock that it was started under.
	processes []*process
}

// newLocal makes the machine that this process runs on. Its events go to post, which does not
// block, and what the children print to the outputs.
//
// It is for a process that does nothing else: it becomes the subreaper of its descendants, and at
// the end kills and reaps every child of the process.
func newLocal(commands Commands, address string, post func(event), stdout, stderr output) *local {
	l := &local{
		commands: commands, address: address, post: post, stdout: stdout, stderr: stderr,
		starter: newStarter(),
		deaths:  make(chan os.Signal, 1),
		over:    make(chan struct{}),
		hurried: make(chan struct{}),
		kills:   oomKills(), renewals: mostRenewals,
	}
	signal.Notify(l.deaths, syscall.SIGCHLD)
	go func() {
		for {
			select {
			case <-l.deaths:
				l.renewGuard()
				l.reapOrphans()
			case <-l.over:
				return
			}
		}
	}()
	return l
}

// close gives back what newLocal and open took. What still runs of the job is killed by the kernel.
func (l *local) close() {
	signal.Stop(l.deaths)
	close(l.over)
	l.dismissGuard()
	l.starter.stop()
}

func (l *local) dismissGuard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.guard != nil {
		l.guard.dismiss()
		l.guard = nil
	}
}

func (l *local) open(order openOrder) {
	addresses, status, err := l.prepare(order)
	if err != nil {
		l.post(event{Kind: failed, Status: status, Err: err.Error()})
		return
	}
	l.post(event{Kind: opened, Addresses: addresses})
}

func (l *local) prepare(order openOrder) (addresses []string, status int, err error) {
	if err := tryProc(); err != nil {
		return nil, StatusSystem, err
	}
	// This process stays where it is: its own files have names that count from there.
	if l.dir = string(order.Dir); l.dir != "" {
		if _, err := os.Stat(l.dir + "/."); err != nil { // the dot needs what chdir does
			return nil, StatusSystem, fmt.Errorf("launch: the working directory %s: %w: make it there too, or name another with --dir", l.dir, cause(err))
		}
	}
	if l.path, err = lookFrom(l.dir, string(order.Program)); err != nil {
		status, err := lookFailure(string(order.Program), err)
		return nil, status, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, StatusSystem, fmt.Errorf("launch: becoming the subreaper of the job: %w", err)
	}
	if order.Data == chooseAddress {
		if order.Data, err = chooseData(l.address, order.Network); err != nil {
			return nil, StatusSystem, err
		}
	}
	if l.endpoints, err = newEndpoints(order); err != nil {
		return nil, StatusSystem, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.guard, err = startGuard(l.commands.Guard, l.endpoints.sockets()); err != nil {
		l.endpoints.close()
		return nil, StatusSystem, err
	}
	return l.endpoints.addresses, 0, nil
}

// lookFrom looks for a program as a shell does that runs in dir.
func lookFrom(dir, program string) (path string, err error) {
	if dir == "" || filepath.IsAbs(program) || !strings.Contains(program, "/") {
		return exec.LookPath(program)
	}
	_, err = exec.LookPath(dir + "/" + program)
	return program, err
}

// start starts the children, until one cannot be or the job is to end. Each start takes the time of
// a fork and an exec; the processes come up concurrently.
func (l *local) start(order startOrder, stdin input) {
	defer stdin.close()
	var bindErr error
	if order.Bind {
		l.parts, bindErr = divideProcessors(len(l.endpoints.nodes))
	}
	unborn := order.Children
	for len(unborn) > 0 && !(l.stop != nil && l.stop()) {
		p, err := (*process)(nil), bindErr
		if err == nil {
			p, err = l.spawn(order, unborn[0], stdin.file)
		}
		if err != nil {
			l.post(event{Kind: failed, Status: startStatus(unborn[0].ID.Role, err), Err: err.Error()})
			break
		}
		go l.watch(p)
		unborn = unborn[1:]
	}
	for _, child := range unborn {
		l.post(event{Kind: childReaped, Child: child.ID})
	}
	// The daemons have them now, and when a daemon dies its peers must notice.
	l.endpoints.close()
}

// canStart reports whether an order that came from elsewhere makes sense: the machine is open, and
// the nodes are its own.
func (l *local) canStart(order startOrder) bool {
	if l.endpoints == nil || len(order.Children) > maxAgentChildren {
		return false
	}
	return !slices.ContainsFunc(order.Children, func(c childOrder) bool {
		return !slices.Contains(l.endpoints.nodes, c.Node) || c.ID.Role != daemon && (c.ID.Role != program || len(order.Command) == 0)
	})
}

// startStatus is the exit status for a job of which a child could not be started, of this role.
func startStatus(of role, err error) int {
	if of == program && (errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.ENOEXEC)) {
		return StatusNotExecutable
	}
	return StatusSystem
}

// spawn starts a child.
func (l *local) spawn(order startOrder, child childOrder, stdin *os.File) (*process, error) {
	p := &process{id: child.ID, silent: make(chan struct{})}
	stdout := l.stdout
	if child.ID.Role == daemon {
		files, err := l.daemonCommand(p, child)
		defer closeAll(files)
		if err != nil {
			return nil, err
		}
		// A daemon has nothing to say on its standard output; if it does, it must not look like a
		// program's.
		stdout = l.stderr
	} else {
		p.cmd = l.programCommand(order, child)
		w, err := p.hear(func(x runstats.Statement, line []byte) { l.said(child.ID, x, line) })
		if err != nil {
			return nil, err
		}
		defer w.Close()
		if child.Input && stdin != nil {
			p.cmd.Stdin = stdin
		}
	}
	ends, err := p.connect(child.Prefix, stdout, l.stderr)
	if err != nil {
		p.abandon()
		return nil, err
	}
	defer closeAll(ends)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.starter.startOn(p.cmd, l.partOf(child.Node)); err != nil {
		p.abandon()
		return nil, fmt.Errorf("launch: starting %v: %w", p.id, explainLimit(err))
	}
	p.pid = p.cmd.Process.Pid
	l.guard.add(p.pid)
	l.processes = append(l.processes, p)
	return p, nil
}

// partOf is the processors of a node; nil: all.
func (l *local) partOf(node int) *unix.CPUSet {
	if l.parts == nil {
		return nil
	}
	return &l.parts[slices.Index(l.endpoints.nodes, node)]
}

func (l *local) programCommand(order startOrder, child childOrder) *exec.Cmd {
	cmd := &exec.Cmd{Path: l.path, Args: order.Command, Dir: l.dir}
	cmd.Env = append(append(append(inherited(), order.Env...), child.Env...), EnvSocket+"="+l.endpoints.socket(child.Node))
	return cmd
}

// daemonCommand gives a process a daemon's command line. The caller closes the files, once the
// daemon has them or after an error.
func (l *local) daemonCommand(p *process, child childOrder) (files []*os.File, err error) {
	cmd := command(append(append([]string(nil), l.commands.Daemon...), child.Args...))
	p.cmd = cmd
	pass := func(f *os.File) int {
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		return 2 + len(cmd.ExtraFiles) // the first three descriptors are the standard ones
	}
	at := l.endpoints.of(child.Node)
	cmd.Args = append(cmd.Args, "--listen-fd", strconv.Itoa(pass(at.data)), "--socket-fd", strconv.Itoa(pass(at.socket)))
	if at.metrics != nil {
		cmd.Args = append(cmd.Args, "--metrics-fd", strconv.Itoa(pass(at.metrics)))
	}
	for _, s := range child.Files {
		f, err := inMemory(s)
		if err != nil {
			return files, err
		}
		files = append(files, f)
		cmd.Args = append(cmd.Args, s.Flag, "/proc/self/fd/"+strconv.Itoa(pass(f)))
	}
	if child.News {
		r, w, err := os.Pipe()
		if err != nil {
			return files, fmt.Errorf("launch: making a pipe for news to node %d: %w", child.Node, explainLimit(err))
		}
		files, p.news = append(files, r), w
		cmd.Args = append(cmd.Args, "--news-fd", strconv.Itoa(pass(r)))
	}
	return files, nil
}

// inMemory makes a file that exists only as long as somebody has it open.
func inMemory(s secretFile) (*os.File, error) {
	fd, err := unix.MemfdCreate(s.Flag, unix.MFD_CLOEXEC)
	if err = os.NewSyscallError("memfd_create", err); err != nil {
		return nil, fmt.Errorf("launch: a file in memory for %s: %w", s.Flag, memfile.Explain(explainLimit(err)))
	}
	f := os.NewFile(uintptr(fd), s.Flag)
	_, err = f.Write(s.Content)
	// Whoever reads keys wants to see that nobody else can.
	if err = errors.Join(err, f.Chmod(0o600)); err != nil {
		f.Close()
		return nil, fmt.Errorf("launch: a file in memory for %s: %w", s.Flag, err)
	}
	return f, nil
}

// command is a command line without a search for the program: the daemon and the guard are this
// very executable, wherever it is, also when its file has been deleted since (as `go run` does). To
// ps they are dsmd.
func command(line []string) *exec.Cmd {
	return &exec.Cmd{Path: line[0], Args: append([]string{"dsmd"}, line[1:]...)}
}

// watch reports a process's end, sees to the end of its group, and reports that too.
func (l *local) watch(p *process) {
	go p.forward(func(err error) { l.post(lostOutput(err)) })
	_, e, err := peekExit(unix.P_PID, p.pid, 0)
	switch {
	case err == unix.ECHILD && l.isHurried():
		// An agent could not kill the process in time, and endOrphans has reaped it since. Nobody
		// hears of it any more.
		return
	case err != nil:
		// Nobody else waits for this process, so it must be there.
		panic(fmt.Sprintf("launch: waiting for %v, process %d: %v", p.id, p.pid, err))
	}
	l.post(event{Kind: childEnded, Child: p.id, Exit: l.explained(e)})
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-p.silent:
	case <-timer.C:
	case <-l.hurried:
	}
	p.signal(unix.SIGKILL)
	// The guard lets go of the group while its leader is a zombie, so that its id is nobody else's.
	l.mu.Lock()
	if l.guard != nil {
		l.guard.remove(p.pid)
	}
	l.mu.Unlock()
	p.reap()
	l.reapOrphans()
	l.post(event{Kind: childReaped, Child: p.id, Says: p.says.last()})
}

// oomKills is how many processes the kernel has killed here for want of memory. Tests change it.
var oomKills = memlimit.Kills

// explained adds to how a process ended whether there was too little memory.
func (l *local) explained(e exit) exit {
	if now := oomKills(); e.Signal == syscall.SIGKILL && now > l.kills {
		e.Starved = now - l.kills
	}
	return e
}

// all returns the processes of some roles.
func (l *local) all(roles ...role) []*process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.processes), func(p *process) bool { return !slices.Contains(roles, p.id.Role) })
}

func (l *local) signal(id childID, sig syscall.Signal) {
	for _, p := range l.all(id.Role) {
		if p.id == id {
			p.signal(sig)
		}
	}
}

// ask looks for a daemon that is ending, or has ended without our having said so yet: one that was
// killed, or else any.
func (l *local) ask() {
	answer := event{Kind: suspected}
	for _, p := range l.all(daemon) {
		if !p.exists() {
			continue
		}
		if e, ok := exiting(p.pid); ok && (!answer.Found || answer.Exit.Signal == 0) {
			answer.Found, answer.Child, answer.Exit = true, p.id, l.explained(e)
		}
	}
	l.post(answer)
}

func (l *local) halt() {
	daemons := l.all(daemon)
	for _, p := range daemons {
		p.signal(syscall.SIGSTOP)
	}
	deadline := time.Now().Add(haltTime)
	for _, p := range daemons {
		p.awaitStop(deadline)
	}
	l.post(event{Kind: halted})
}

func (l *local) mourn(who childID) {
	for _, p := range l.all(daemon) {
		if p.news != nil {
			p.tell(who)
		}
	}
}

func (l *local) hurry() { l.hurryOnce.Do(func() { close(l.hurried) }) }

func (l *local) isHurried() bool {
	select {
	case <-l.hurried:
		return true
	default:
		return false
	}
}

// abandon is not called: this machine answers at once.
func (l *local) abandon() {}

// finish waits for the output in a goroutine: nobody may ever read it.
func (l *local) finish() {
	left := l.endOrphans(time.Now().Add(orphanTime))
	go func() {
		// Whoever could write is dead, so what is in the pipes now is all.
		for _, p := range l.all(daemon, program) {
			for _, st := range p.streams {
				st.hurryUp()
			}
			<-p.silent
		}
		l.post(event{Kind: finished, Left: left})
	}()
}
