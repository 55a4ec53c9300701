package launch

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/certs"
	patient "dsmd/internal/patience"
	"dsmd/internal/runstats"
)

// The test binary plays every part in a job: it runs itself as the supervisor under test, which
// runs it as daemons, guard and programs. So each test has a real tree of processes that it can
// signal and kill.
func TestMain(m *testing.M) {
	// Under the race detector a process sleeps for a second before it exits, by default: too long
	// for a tree of them.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "play-supervisor":
			os.Exit(playSupervisor(os.Args[2]))
		case "play-daemon":
			os.Exit(playDaemon(os.Args[2:]))
		case "play-guard":
			Guard(os.Stdin, os.Args[2])
			os.Exit(0)
		case "play-agent":
			os.Exit(playAgent(os.Args[2], os.Args[3]))
		case "play-attend":
			os.Exit(playAttend(os.Args[2], os.Args[3], os.Args[4]))
		case "play-ssh":
			os.Exit(playSSH(os.Args[2:]))
		case "play-parent":
			os.Exit(playParent())
		case "play-program":
			os.Exit(playProgram(os.Args[2]))
		}
	}
	// If nohup runs the tests, what they start would ignore SIGHUP too, as it should. A signal that
	// is caught here is theirs again.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	patient.Beside(8)
	os.Exit(m.Run())
}

const self = "/proc/self/exe"

// job is what a test tells the supervisor.
type job struct {
	Nodes   int
	Slots   int
	Program []string
	Daemon  string // how the daemons behave
	Grace   time.Duration
	Remind  time.Duration
	Metrics []string
	Hosts   []string // instead of Nodes; see playSSH
	Env     []string
	Dir     string
	// Meet: directory of a meeting of Tasks processes, of which the supervisor is the first.
	Meet    string
	Tasks   int
	Alone   time.Duration // how long it waits for the others; 0: as long as it may take
	Survive bool
	Alive   time.Duration // between questions whether agents are there; 0: the usual
	Bind    Binding
	Trace   string
	// Starved: each time it is asked the kernel counts one more process killed for want of memory.
	Starved bool
	Pieces  bool // print the pieces that programs write

	// further arguments and environment of the programs: any bytes, which a JSON text cannot have
	RawArgs, RawEnv [][]byte
	PadEnv          int // so many further variables of padBytes each
}

// padBytes is the length of a long argument or variable: one may have 128 KiB.
const padBytes = 100 << 10

func playSupervisor(arg string) int {
	verdictTime = patience // no test is about a machine that does not answer
	var j job
	if err := json.Unmarshal([]byte(arg), &j); err != nil {
		panic(err)
	}
	aliveTime = cmp.Or(j.Alive, aliveTime)
	if j.Starved {
		var kills atomic.Uint64
		oomKills = func() uint64 { return kills.Add(1) }
	}
	for _, arg := range j.RawArgs {
		j.Program = append(j.Program, string(arg))
	}
	for _, variable := range j.RawEnv {
		j.Env = append(j.Env, string(variable))
	}
	for i := range j.PadEnv {
		j.Env = append(j.Env, fmt.Sprintf("PAD_%d=%s", i, strings.Repeat("x", padBytes)))
	}
	hosts, err := ParseHosts(j.Hosts)
	if err != nil {
		panic(err)
	}
	executable, err := os.Executable()
	if err != nil {
		panic(err)
	}
	commands := Commands{Daemon: []string{self, "play-daemon", j.Daemon}, Guard: []string{self, "play-guard"},
		Attend: []string{self, "play-attend", j.Meet, strconv.Itoa(j.Tasks), "0"}}
	var meeting *Meeting
	if j.Meet != "" {
		meeting = &Meeting{Dir: j.Meet, Name: "meeting", Tasks: j.Tasks, Timeout: cmp.Or(j.Alone, patience/4)}
		for range j.Tasks {
			hosts = append(hosts, Host{"host", 1})
		}
	}
	var pieces func(runstats.Piece)
	if j.Pieces {
		pieces = func(p runstats.Piece) { fmt.Printf("piece of %d: %d with %d bytes\n", p.Rank, p.Lost, len(p.Log)) }
	}
	status, err := Run(Config{
		Insight: Insight{Pieces: pieces, Trace: j.Trace},
		Meeting: meeting, Commands: commands,
		Hosts: hosts, Remote: Remote{SSH: quoted(executable) + " play-ssh " + quoted(j.Daemon), Version: "1"}, Env: j.Env, Dir: j.Dir,
		Survive: j.Survive, Bind: j.Bind, Nodes: j.Nodes, Slots: j.Slots, Program: j.Program, Grace: cmp.Or(j.Grace, DefaultGrace), EarlyExit: EarlyExit{Remind: cmp.Or(j.Remind, time.Hour)}, Metrics: j.Metrics,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "dsmd:", err)
		if meeting != nil {
			meeting.TurnAway(err)
		}
	}
	return status
}

// playSSH is ssh to hosts whose names say how they behave; that of an ordinary one begins with
// "host". The agent is a child of ssh's, as it would be of sshd on the host, and so outlives it.
func playSSH(args []string) int {
	mode, host := args[0], args[len(args)-2]
	version := "1"
	switch host {
	case "unknown":
		fmt.Fprintln(os.Stderr, "Host key verification failed.")
		return sshFailed
	case "without-dsmd":
		return StatusNotFound
	case "silent":
		return await()
	case "other":
		version = "2"
	case "host-talks":
		fmt.Println("welcome to this machine")
		fmt.Print("$ ")
	case "host-of-old":
		fmt.Println(greeting + "1") // before agents said which orders they know
		return await()
	case "host-babbles":
		fmt.Print(greeting + spoken("1") + "\n\x07\x00\x00\x00\x00garbage")
		return await()
	}
	cmd := exec.Command(self, "play-agent", mode, version)
	if host == "host-garbles" { // its agent hears of an order of 4 GiB
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("\x00\xff\xff\xff\xff"), os.Stdout, os.Stderr
		_ = cmd.Run()
		return 0
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	// sshd's end of the connection: only the agent has it.
	os.Stdin.Close()
	if err := cmd.Wait(); err != nil {
		return sshFailed
	}
	return 0
}

// playAttend is one of the tasks of a meeting.
func playAttend(dir, tasks, number string) int {
	n, err := strconv.Atoi(tasks)
	if err != nil {
		panic(err)
	}
	task, err := strconv.Atoi(number)
	if err != nil {
		panic(err)
	}
	m := Meeting{Dir: dir, Name: "meeting", Tasks: n, Timeout: patience / 4}
	if err := m.Attend(task, "node-"+number, AgentConfig{Version: "1",
		Commands: Commands{Daemon: []string{self, "play-daemon", ""}, Guard: []string{self, "play-guard"}}}); err != nil && !(errors.Is(err, ErrNoJob) && task == 0) {
		fmt.Fprintln(os.Stderr, "dsmd:", err)
		return 1
	}
	return 0
}

func playAgent(mode, version string) int {
	err := Agent(os.Stdin, os.Stdout, AgentConfig{Version: version, Address: "127.0.0.1",
		Commands: Commands{Daemon: []string{self, "play-daemon", mode}, Guard: []string{self, "play-guard"}}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "dsmd:", err)
		return 1
	}
	return 0
}

// playParent has a child that is spared when its orphans are ended, and one that is not.
func playParent() int {
	var children [2]*exec.Cmd
	for i := range children {
		children[i] = exec.Command("sleep", "3600")
		children[i].SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := children[i].Start(); err != nil {
			panic(err)
		}
	}
	fmt.Println("left:", endOrphans(time.Now().Add(patience), children[0].Process.Pid))
	for _, child := range children {
		_, _, err := peekExit(unix.P_PID, child.Process.Pid, unix.WNOHANG)
		fmt.Println(err)
	}
	fmt.Println("left:", endOrphans(time.Now().Add(patience), 0))
	return 0
}

// playDaemon tells each program that connects its id, the number of its peers and whether it was
// given a descriptor for metrics.
func playDaemon(args []string) int {
	mode := args[0]
	flags := flag.NewFlagSet("play-daemon", flag.ContinueOnError)
	id := flags.Int("id", -1, "")
	peers := flags.String("peers", "", "")
	ranks := flags.Int("ranks", 0, "")
	cluster := flags.String("cluster", "", "")
	listenFD := flags.Int("listen-fd", -1, "")
	socketFD := flags.Int("socket-fd", -1, "")
	metricsFD := flags.Int("metrics-fd", -1, "")
	newsFD := flags.Int("news-fd", -1, "")
	secret := flags.String("secret-file", "", "")
	var keys [3]string
	for i, name := range []string{"tls-ca", "tls-cert", "tls-key"} {
		flags.StringVar(&keys[i], name, "", "")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return 2
	}
	data, err := net.FileListener(os.NewFile(uintptr(*listenFD), "listen"))
	if err != nil {
		panic(err)
	}
	addresses := strings.Split(*peers, ",")
	if keys[0] != "" {
		if _, err := certs.Load(keys[0], keys[1], keys[2]); err != nil {
			panic(err)
		}
	} else if !OnLoopback(addresses[0]) {
		panic("other machines reach a daemon without keys")
	} else if _, err := certs.LoadSecret(*secret); err != nil {
		panic(err)
	}
	if data.Addr().String() != addresses[*id] || *cluster == "" || *ranks < len(addresses) {
		panic(fmt.Sprintf("listening on %v, peers %v, cluster %q, ranks %d", data.Addr(), addresses, *cluster, *ranks))
	}
	socket, err := net.FileListener(os.NewFile(uintptr(*socketFD), "socket"))
	if err != nil {
		panic(err)
	}
	if mode == "ignores-term" {
		signal.Ignore(syscall.SIGTERM)
	}
	if mode == "killed-at-attach" && *id != 1 {
		go giveUpWith(addresses[1])
	}
	rankLost := hearNews(*newsFD)
	fmt.Fprintln(os.Stderr, "daemon is up")
	for {
		c, err := socket.Accept()
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(c, "%d %d %t\n", *id, len(addresses), *metricsFD >= 0)
		if mode == "dies-at-attach" && *id == 1 {
			os.Exit(3)
		}
		if mode == "killed-at-attach" && *id == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			await()
		}
		// The connection stays open for the life of the daemon. Who stays is let go when a rank is
		// lost; but not by a daemon that gives up with its peer, and may hear of the rank first.
		go func() {
			<-rankLost
			if mode != "killed-at-attach" {
				_, _ = c.Write([]byte("x"))
			}
		}()
	}
}

// hearNews has a daemon print who is lost. The channel is closed when the first rank is.
func hearNews(fd int) <-chan struct{} {
	rankLost := make(chan struct{})
	if fd >= 0 {
		var once sync.Once
		go News{
			Node: func(id int) { fmt.Fprintln(os.Stderr, "lost: node", id) },
			Rank: func(rank int) {
				fmt.Fprintln(os.Stderr, "lost: rank", rank)
				once.Do(func() { close(rankLost) })
			},
		}.Read(os.NewFile(uintptr(fd), "news"))
	}
	return rankLost
}

// giveUpWith ends this daemon as soon as a peer is gone, as real ones do.
func giveUpWith(peer string) {
	c, err := net.Dial("tcp", peer)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	fmt.Fprintln(os.Stderr, "peer is lost:", err)
	os.Exit(1)
}

func playProgram(mode string) int {
	rank := os.Getenv(EnvRank)
	mode, on, _ := strings.Cut(mode, "@")
	if on != "" && on != rank { // the part of another rank: wait to be ended, or until that is lost
		if os.Getenv("FAKE_STAYS") != "" {
			return attach(rank)
		}
		return await(syscall.SIGTERM)
	}
	switch mode {
	case "hello":
		fmt.Printf("out %s of %s\nsecond\n", rank, os.Getenv(EnvSize))
		fmt.Fprintf(os.Stderr, "err %s\n", rank)
		fmt.Print("partial")
	case "attach":
		return attach(rank)
	case "both":
		return writeBoth()
	case "bytes":
		fmt.Printf("%x %x\n", os.Getenv("FAKE_BYTES"), os.Args[3])
	case "where":
		dir, err := os.Getwd()
		fmt.Println(os.Getenv(EnvSize), os.Getenv("FAKE_CHOSEN"), dir, err)
	case "terminal":
		fmt.Printf("%q\n", os.Getenv(EnvTerminal))
	case "kill-agent": // which is the parent
		fmt.Println("ready", os.Getpid())
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
		return await()
	case "pieces":
		return writePieces(rank)
	case "exit-3":
		return 3
	case "abort":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		return await()
	case "await-term":
		return await(syscall.SIGTERM)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("ready", os.Getpid())
		return await()
	case "signals":
		return reportSignals()
	case "long-line":
		chunk := []byte(strings.Repeat("x", 1<<20))
		for range 8 {
			_, _ = os.Stdout.Write(chunk)
		}
	case "cat":
		var word string
		n, err := fmt.Scanln(&word)
		fmt.Println(word, n, err)
	case "question":
		fmt.Print("name? ")
		var name string
		_, _ = fmt.Scanln(&name)
		fmt.Println("hello", name)
	case "leave", "leave-session":
		return leave(mode == "leave-session", false)
	case "family", "family-session":
		return leave(mode == "family-session", true)
	case "flood":
		for {
			if _, err := fmt.Println("flood"); err != nil {
				return 4
			}
		}
	default:
		panic("unknown mode " + mode)
	}
	return 0
}

// manyPieces is how many pieces writePieces writes, and pieceBytes the length of a log.
const manyPieces, pieceBytes = 200, 10000

// writePieces writes numbered pieces, and what makes no sense between them, and ends.
func writePieces(rank string) int {
	fd, err := strconv.Atoi(os.Getenv(runstats.Env))
	own, err2 := strconv.Atoi(rank)
	if err != nil || err2 != nil {
		return 4
	}
	fmt.Printf("asked for: %q %q\n", os.Getenv(runstats.EnvTrace), os.Getenv(runstats.EnvWords))
	to := os.NewFile(uintptr(fd), "pieces")
	for i := range uint64(manyPieces) {
		for _, line := range [][]byte{
			runstats.Piece{Rank: own, Lost: i, Log: make([]byte, pieceBytes)}.Encode(),
			runstats.Piece{Rank: own + 1, Lost: i}.Encode(), // which is not its own
			[]byte("{\"piece\":{},\"hang\":{}}\n"),
		} {
			if _, err := to.Write(line); err != nil {
				return 5
			}
		}
	}
	return 0
}

// bothLines is how many lines writeBoth writes to each of its outputs, and bothBytes how many
// letters each has.
const bothLines, bothBytes = 4000, 100

// writeBoth writes whole lines to standard output and standard error at the same time, as fast as
// they are taken.
func writeBoth() int {
	var both sync.WaitGroup
	for letter, to := range map[string]*os.File{"o": os.Stdout, "e": os.Stderr} {
		both.Go(func() {
			line := strings.Repeat(letter, bothBytes) + "\n"
			for range bothLines {
				_, _ = to.WriteString(line)
			}
		})
	}
	both.Wait()
	return 0
}

// attach connects to the daemon and waits until a rank is lost, if it is one that stays; it fails
// if the daemon goes.
func attach(rank string) int {
	c, err := net.Dial("unix", os.Getenv(EnvSocket))
	if err != nil {
		fmt.Println(err)
		return 5
	}
	defer c.Close()
	var id, peers, metrics string
	if _, err := fmt.Fscanln(c, &id, &peers, &metrics); err != nil {
		fmt.Println(err)
		return 6
	}
	fmt.Println("daemon", id, peers, metrics, id == rank)
	if os.Getenv("FAKE_STAYS") != "" {
		if _, err := c.Read(make([]byte, 1)); err != nil {
			fmt.Println("daemon gone:", err)
			return 7
		}
	}
	return 0
}

// await waits for one of the signals, for ever if there is none given, and succeeds.
func await(signals ...os.Signal) int {
	if len(signals) == 0 {
		time.Sleep(time.Hour)
	}
	got := make(chan os.Signal, 1)
	signal.Notify(got, signals...)
	fmt.Println("ready", os.Getpid())
	<-got
	return 0
}

func reportSignals() int {
	got := make(chan os.Signal, 8)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	fmt.Println("ready", os.Getpid())
	for sig := range got {
		fmt.Println("got", int(sig.(syscall.Signal)))
		if ends(sig) {
			return 0
		}
	}
	return 0
}

// leave starts a process that holds standard output open, and ends without it or waits with it.
func leave(session, stay bool) int {
	cmd := exec.Command("sleep", "3600")
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	fmt.Println("child " + strconv.Itoa(cmd.Process.Pid))
	if stay {
		return await()
	}
	return 0
}
