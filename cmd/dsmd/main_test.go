package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/launch"
	"dsmd/internal/patience"
)

// limit bounds every wait of these tests.
var limit = patience.Or(20 * time.Second)

// The test binary is dsmd when this variable is set, so that the tests run the real thing, and
// `run` finds its daemons and guard in it.
const asCommand = "DSMD_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		askTimeout = limit
		os.Exit(execute(os.Args[1:]))
	}
	// Under the race detector a process sleeps for a second before it exits, by default.
	for name, value := range map[string]string{asCommand: "1", "GORACE": "atexit_sleep_ms=0"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// askWithin sets askTimeout for a test.
func askWithin(t *testing.T, limit time.Duration) {
	t.Helper()
	before := askTimeout
	askTimeout = limit
	t.Cleanup(func() { askTimeout = before })
}

// dsmd prepares a dsmd process that is killed if it takes too long.
func dsmd(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), self, args...)
	timer := time.AfterFunc(limit, func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
		}
	})
	t.Cleanup(func() { timer.Stop() })
	cmd.WaitDelay = limit
	return cmd
}

// finish runs it and returns its exit status and outputs.
func finish(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := dsmd(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("dsmd %q: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestCommandLineMistakes(t *testing.T) {
	for _, test := range []struct {
		args string
		want string
	}{
		{"stauts", `unknown command "stauts": did you mean stacks or status?`},
		{"frobnicate", `unknown command "frobnicate"`},
		{"completion bsh", `unknown command "bsh": did you mean bash`},
		{"config shwo", `unknown command "shwo"`},
		{"run --metrisc :1 -- true", "unknown flag: --metrisc: did you mean --metrics?"},
		{"run --log -- true", "unknown flag: --log: did you mean --log-format or --log-level or --lost?"},
		{"run -n 2", "no program to run"},
		{"run -n 0 -- true", "-n: 0 nodes: 1 to 1024 are possible"},
		{"run -n x -- true", `invalid argument "x"`},
		{"run -n 2:0 -- true", `"2:0" for "-n, --nodes" flag: want a number of nodes, or N:RANKS`},
		{"run -n 2: -- true", "want a number of nodes, or N:RANKS"},
		{"run -n 2:100000 -- true", "100000 programs at each node"},
		{"run -n 0:2 -- true", "-n: 0 nodes: 1 to 1024 are possible"},
		{"run -n 3 --metrics :1,:2 -- true", "2 metrics addresses for 3 nodes"},
		{"run --trap none -- true", `"none" for "--trap" flag: "none" is not possible; available are auto, uffd, sigsegv`},
		{"run --transport rdma -- true", "--transport rdma: rdma: no usable RDMA device: "},
		{"run --rdma-device none -- true", "--rdma-device none: rdma: no usable RDMA device: "},
		{"run --transport none -- true", `"none" is not possible; available are auto, tcp, rdma`},
		{"run --memory 0 -- true", `"--memory" flag: 0 is not possible: 4MiB to 1024PiB, or auto, or unlimited`},
		{"run --memory 4096 -- true", `4KiB is not possible: 4MiB to 1024PiB, or auto, or unlimited`},
		{"run --memory 64MiB --spill /none -- true", "/none: no such file or directory (--spill)"},
		{"run --memory 64MiB --spill /dev/shm -- true", "is in memory (tmpfs): give one on a disk (--spill)"},
		{"run --memory unlimited --spill /var/tmp -- true", "--memory unlimited: no page would ever go there"},
		{"run --grace -1s -- true", "--grace -1s: want a time from 0, such as 10s"},
		{"run --region 17TiB -- true", `"--region" flag: 17TiB is not possible: 4KiB to 16TiB`},
		{"run --region 0 -- true", `"--region" flag: 0 is not possible`},
		{"run --region 4097 -- true", "4097 is not a whole number of pages"},
		{"run --region much -- true", `"much" is no size`},
		{"run --hold -1s -- true", `"--hold" flag: -1s is not possible: 1µs to 20ms`},
		{"run --log-level loud -- true", `"loud" is not possible; available are debug, info, warn, error`},
		{"run --log-format xml -- true", `"xml" is not possible; available are console, json`},
		{"serve extra", `unexpected argument "extra"`},
		{"serve --id 2 --peers a:1,b:2", "--id 2: the list of peers has places 0 to 1"},
		{"serve --peers a:1,b", `address 1, "b"`},
		{"serve --ranks -1", `"-1" is not possible: 1 to 65536`},
		{"serve --peers a:1,b:2", "--peers without --id"},
		{"serve --nodes 3 --peers a:1,b:2 --id 0", "--nodes 3: the list of peers has 2"},
		{"serve --nodes 3", "name some with --join, or list all with --peers"},
		{"serve --join a", "--join without --nodes"},
		{"serve --nodes 2 --join a --peers a:1", "either found or listed"},
		{"serve --nodes 2 --join a --id 2", "--id 2: ids of 2 nodes are 0 to 1"},
		{"serve --tls-ca x", "--tls-ca, --tls-cert and --tls-key belong together"},
		{"serve --dead-after 1s", "1s is not possible: 2s to 1h0m0s"},
		{"serve --config /no/such/file", "the configuration file cannot be read"},
		{"guard", "an argument is missing"},
	} {
		status, stdout, stderr := finish(t, strings.Fields(test.args)...)
		if status != launch.StatusUsage || stdout != "" || !strings.HasPrefix(stderr, "dsmd: ") ||
			!strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("dsmd %s: status %d, stdout %q, stderr %q; want one line with %q", test.args, status, stdout, stderr, test.want)
		}
	}
}

func TestHelpOfEveryCommand(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"run", "--help"}, {"serve", "--help"}, {"status", "--help"}, {"doctor", "-h"}, {"help", "version"}} {
		status, stdout, stderr := finish(t, args...)
		if status != 0 || stderr != "" || !strings.Contains(stdout, "Usage:") {
			t.Errorf("dsmd %q: status %d, stderr %q, stdout:\n%s", args, status, stderr, stdout)
		}
		if strings.Contains(stdout, "listen-fd") || strings.Contains(stdout, "guard") {
			t.Errorf("dsmd %q shows what is hidden:\n%s", args, stdout)
		}
	}
}

// TestManualPages: there is one for each command that people type.
func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if status, stdout, stderr := finish(t, "man", dir); status != 0 || stdout+stderr != "" {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
	for _, name := range []string{"dsmd.1", "dsmd-run.1", "dsmd-checkpoint-ls.1"} {
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(page), ".SH SYNOPSIS") {
			t.Errorf("%s: %v\n%.300s", name, err, page)
		}
	}
	if hidden, err := filepath.Glob(filepath.Join(dir, "*guard*")); err != nil || len(hidden) != 0 {
		t.Errorf("there are pages for what is hidden: %q, %v", hidden, err)
	}
}

// TestCompletion: shells complete the values of flags, too, where these are some words.
func TestCompletion(t *testing.T) {
	for want, args := range map[string][]string{
		"auto\nuffd\nsigsegv\n":           {"run", "--trap", ""},
		"auto\nuffd\n":                    {"serve", "--trap", ""},
		"prefix\nplain\njson\ndir:\n":     {"run", "--output", ""},
		"debug\ninfo\nwarn\nerror\n":      {"run", "--log-level", ""},
		"--survive\tgo on without nodes":  {"run", "--surv"},
		"run\tRun copies of a program on": {"ru"},
	} {
		if status, stdout, _ := finish(t, append([]string{"__complete"}, args...)...); status != 0 || !strings.HasPrefix(stdout, want) {
			t.Errorf("dsmd %q: status %d, it is completed to %q, want %q", args, status, stdout, want)
		}
	}
}

func TestVersion(t *testing.T) {
	status, stdout, _ := finish(t, "version")
	if status != 0 || !strings.HasPrefix(stdout, "dsmd ") || !strings.Contains(stdout, "go1.") {
		t.Errorf("status %d: %s", status, stdout)
	}
	if status, flag, _ := finish(t, "--version"); status != 0 || flag != stdout {
		t.Errorf("--version prints %q with status %d", flag, status)
	}
	_, stdout, _ = finish(t, "version", "--json")
	var v versions
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || v.Attach == 0 || v.Node == 0 || v.Go == "" {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestNamesOfProcesses: to ps the processes of a job are dsmd, whatever they were started as.
func TestNamesOfProcesses(t *testing.T) {
	const list = `list() {
		for p in $(cat /proc/$PPID/task/*/children); do
			[ $p != $$ ] && echo $(cat /proc/$p/comm) $(tr "\0" " " </proc/$p/cmdline | cut -d" " -f1,2)
		done; true
	}
	for i in $(seq 100); do list | grep -q "^exe" || break; sleep 0.02; done # one may have just begun
	list`
	status, stdout, stderr := finish(t, "run", "-n", "1", "--", "sh", "-c", list)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	slices.Sort(lines)
	if want := []string{"[0] dsmd dsmd guard", "[0] dsmd dsmd serve"}; status != 0 || !slices.Equal(lines, want) {
		t.Errorf("status %d, %q, want %q; %s", status, lines, want, stderr)
	}
}

func TestDoctor(t *testing.T) {
	status, stdout, stderr := finish(t, "doctor")
	if status != 0 || stderr != "" || !strings.Contains(stdout, "dsmd can run here") {
		t.Errorf("status %d, stderr %q:\n%s", status, stderr, stdout)
	}
	status, stdout, _ = finish(t, "doctor", "--json")
	var report struct {
		Usable   bool
		Findings []struct{ Name, Verdict string }
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || status != 0 || !report.Usable || len(report.Findings) == 0 {
		t.Errorf("status %d, %+v, %v", status, report, err)
	}
}

// next reads a line of a running process.
func next(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	return strings.TrimSuffix(line, "\n")
}

// A whole job: real daemons, whose status can be asked for while the programs run.
func TestRunAndStatus(t *testing.T) {
	// Both ranks wait for a line each from a pipe that this test writes.
	fifo := filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	start, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer start.Close()
	cmd := dsmd(t, "run", "-n", "2", "--metrics", ":0", "--log-level", "info", "--",
		"sh", "-c", `echo $DSM_SOCKET $DSM_SIZE; read x < "$0"`, fifo)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	logs, logsEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = logsEnd
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	logsEnd.Close()
	out := bufio.NewReader(stdout)
	lines := []string{next(t, out), next(t, out)}
	slices.Sort(lines)
	var sockets []string
	for rank, line := range lines {
		m := regexp.MustCompile(`^\[(\d)\] (@dsmd-[0-9a-f]+-(\d)) 2$`).FindStringSubmatch(line)
		if m == nil || m[1] != m[3] || m[1] != string(rune('0'+rank)) {
			t.Fatalf("%q", lines)
		}
		sockets = append(sockets, m[2])
	}

	for node, socket := range sockets {
		status, text, stderr := finish(t, "status", "--json", "--socket", socket)
		var list []daemonStatus
		if err := json.Unmarshal([]byte(text), &list); err != nil || status != 0 || len(list) != 1 {
			t.Fatalf("status %d, %v, stderr %q: %s", status, err, stderr, text)
		}
		if d := list[0]; int(d.Node) != node || d.Nodes != 2 || d.Ranks != 2 || d.Trap != "uffd" && d.Trap != "sigsegv" || d.Transport != "tcp" || len(d.Counters) == 0 {
			t.Errorf("%+v", d)
		}
		// The shells have not attached, and who asks for the status does not count itself.
		if n, ok := list[0].Counters["programs"]; !ok || n != 0 {
			t.Errorf("%d programs are attached (counted: %v), want 0", n, ok)
		}
	}
	// Other jobs may run on this machine, so only that these are among them can be asked.
	_, text, _ := finish(t, "status")
	for _, socket := range sockets {
		if !strings.Contains(text, socket) {
			t.Errorf("status does not find %s:\n%s", socket, text)
		}
	}

	log := bufio.NewReader(logs)
	address := metricsAddress(t, log)
	go func() { _, _ = io.Copy(io.Discard, log) }()
	for path, want := range map[string]string{"/metrics": "dsmd_faults_read_total", "/debug/pprof/": "goroutine"} {
		if body := get(t, "http://"+address+path); !strings.Contains(body, want) {
			t.Errorf("%s lacks %s:\n%s", path, want, body)
		}
	}

	if _, err := start.WriteString("go\ngo\n"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("dsmd run: %v", err)
	}
	for _, socket := range sockets {
		if status, _, stderr := finish(t, "status", "--socket", socket); status != 1 || !strings.Contains(stderr, "connection refused") {
			t.Errorf("after the job: status %d, %q", status, stderr)
		}
	}
}

// metricsAddress reads the log up to the line that says where metrics are.
func metricsAddress(t *testing.T, log *bufio.Reader) string {
	t.Helper()
	for {
		if m := regexp.MustCompile(`metrics are served.*"address": "(127\.0\.0\.1:\d+)"`).FindStringSubmatch(next(t, log)); m != nil {
			return m[1]
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: limit}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, response.Status, err)
	}
	return string(body)
}

func TestRunHandsOnTheStatus(t *testing.T) {
	status, _, stderr := finish(t, "run", "-n", "2", "--", "sh", "-c", `[ $DSM_RANK = 0 ] || exit 42; exec sleep 3600`)
	if want := "dsmd: rank 1 exited with status 42: ending the other ranks\n"; status != 42 || !strings.Contains(stderr, want) {
		t.Errorf("status %d, want 42; stderr %q", status, stderr)
	}
	status, _, stderr = finish(t, "run", "--", "/no/such/program")
	if status != launch.StatusNotFound || !strings.HasPrefix(stderr, "dsmd: ") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

// A job whose daemons cannot do what they are told ends at once, although the programs wait for
// them. Here they may not make a file as large as the region.
func TestDaemonThatCannotStart(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := dsmd(t)
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `ulimit -f 1 && exec "$0" run -n 2 -- sleep 3600`, path}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	_ = cmd.Run() // it fails, and how is looked at
	if status := cmd.ProcessState.ExitCode(); status != launch.StatusDaemon || !strings.Contains(stderr.String(), "dsmd: the daemon of node ") {
		t.Errorf("status %d, stderr %q", status, stderr.String())
	}
}

func TestServeOwnsItsSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	serve := func() (*exec.Cmd, string) {
		cmd := dsmd(t, "serve", "--socket", socket)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, next(t, bufio.NewReader(stderr))
	}
	first, line := serve()
	if !strings.Contains(line, "serving") {
		t.Fatal(line)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	second, line := serve()
	if err := second.Wait(); err == nil || !strings.Contains(line, "another daemon serves there") {
		t.Errorf("a second daemon at the same socket: %v, %q", err, line)
	}

	// A daemon that is killed leaves its socket file; the next one replaces it.
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	third, line := serve()
	if !strings.Contains(line, "serving") {
		t.Errorf("at a stale socket: %q", line)
	}
	if status, stdout, stderr := finish(t, "status", "--socket", socket); status != 0 || !strings.Contains(stdout, socket) {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	if err := third.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := third.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(socket)); err != nil || len(left) != 0 {
		t.Errorf("%v is left where the socket was (%v)", left, err)
	}
}

func TestStatusOfSomethingElse(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	status, _, stderr := finish(t, "status", "--socket", socket)
	if status != 1 || !strings.Contains(stderr, socket) {
		t.Errorf("status %d, %q", status, stderr)
	}
}

// TestStatusLeavesOutOtherUsers: a daemon of somebody else is recognised before it is asked; root
// and its owner do ask.
func TestStatusLeavesOutOtherUsers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "daemon")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // hangs up, which is no answer
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	owner := os.Geteuid()
	for user, foreign := range map[int]bool{0: false, owner: false, owner + 1: true} {
		d := askOrExplain(socket, user)
		if d.Error == "" || d.foreign != foreign {
			t.Errorf("user %d asks a daemon of user %d: foreign is %v, error %q", user, owner, d.foreign, d.Error)
		}
	}
}

func TestListeningSockets(t *testing.T) {
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 100 @dsmd-bb-10
0000000000000000: 00000002 00000000 00010000 0001 01 101 @dsmd-bb-9
0000000000000000: 00000003 00000000 00000000 0001 03 102 @dsmd-bb-8
0000000000000000: 00000002 00000000 00010000 0001 01 103 @dsmd-aa-0
0000000000000000: 00000002 00000000 00010000 0001 01 104 @other
0000000000000000: 00000002 00000000 00010000 0001 01 105 /run/x
0000000000000000: 00000003 00000000 00000000 0001 03 106
`
	want := []string{"@dsmd-aa-0", "@dsmd-bb-9", "@dsmd-bb-10"}
	if got := listeningSockets(table); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
