package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/bench/fabric"
	"dsmd/bench/floor"
	"dsmd/bench/kernel"
	"dsmd/bench/kernels/cholesky"
	"dsmd/bench/micro"
	"dsmd/bench/report"
	"dsmd/bench/stages"
	"dsmd/bench/storage"

	"dsmd/internal/patience"
	"dsmd/internal/uffd/uffdtest"
)

// driverEnv makes the test executable the driver, with the arguments it was given.
const driverEnv = "BENCH_TEST_DRIVER"

// dsmdPath is the dsmd that the tests use, built once.
var dsmdPath string

// TestMain lets the test executable play every part that the bench executable plays: its processes
// are copies of whatever runs. All of them know the kernels made for the tests.
func TestMain(m *testing.M) {
	kernels = append(kernels, faulty("liar", lie), faulty("sleeper", hang), faulty("failure", fail), access("sweep", false), access("scatter", true))
	if os.Getenv(driverEnv) != "" || floor.IsProcess(os.Args) || len(os.Args) > 1 && os.Args[1] == workerName {
		main()
		return
	}
	fabric.Patience = max(fabric.Patience, patience.Or(fabric.Patience))
	os.Exit(testWithDsmd(m))
}

func testWithDsmd(m *testing.M) int {
	dir, err := os.MkdirTemp("", "bench-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if dsmdPath, err = findDsmd(context.Background(), "", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// fault is what a faulty kernel does wrong on the cluster.
type fault int

const (
	lie  fault = iota // one word of the output is wrong
	hang              // computing never ends
	fail              // computing fails on rank 1
)

// faulty is a kernel that computes n zeros, and on the cluster does something wrong.
func faulty(name string, what fault) kernel.Kernel {
	return kernel.Kernel{
		Name: name, Summary: "wrong on purpose",
		Sizes:   kernel.Sizes{Parameter: "words", Test: 4, Default: 4, Large: 4, Min: 1, Max: 10},
		Problem: func(n int) kernel.Problem { return &faultyRun{fault: what, output: make(kernel.Uint64s, n)} },
	}
}

type faultyRun struct {
	fault  fault
	output kernel.Uint64s
	shared bool
}

func (r *faultyRun) Prepare(t *kernel.Team) (kernel.Program, error) {
	return &faultyRun{fault: r.fault, output: r.output, shared: t.Shared()}, nil
}
func (r *faultyRun) Verify(want, got kernel.Result) error { return kernel.SameBits(want, got) }

func (r *faultyRun) Compute(t *kernel.Thread) {
	t.Done(1, 2)
	switch {
	case r.shared && r.fault == hang:
		<-t.Context().Done()
	case r.shared && r.fault == fail && t.Index == t.Threads:
		t.Check(errors.New("out of luck"), "failing")
	}
}

func (r *faultyRun) Result() kernel.Result {
	if r.shared && r.fault == lie {
		r.output[2] = 7
	}
	return kernel.Result{Figures: map[string]any{"fnv": "0", figureOperations: 1.0}, Output: r.output}
}

// run executes the driver's command in this process and returns its standard output. Its temporary
// files must be gone after that.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithTimeout(t.Context(), max(4*time.Minute, patience.Or(4*time.Minute)))
	defer cancel()
	var stdout bytes.Buffer
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	err := cmd.ExecuteContext(ctx)
	if left, readErr := os.ReadDir(temp); readErr != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, readErr)
	}
	return stdout.String(), err
}

// once leaves a test out of runs that are there for something else: what it measures with is tested
// beside its code in every build.
func once(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it is the same for every build and user")
	}
}

func TestRunVerifiesEveryKernel(t *testing.T) {
	for _, name := range []string{"sor", "matmul"} {
		for _, shape := range [][]string{{"-n", "1"}, {"-n", "2", "-t", "2"}, {"-n", "4"}} {
			t.Run(name+strings.Join(shape, ""), func(t *testing.T) {
				out, err := run(t, append([]string{"run", name, "--size", "test", "--json", "-", "--dsmd", dsmdPath}, shape...)...)
				if err != nil {
					t.Fatal(err)
				}
				var got map[string]any
				if err := json.Unmarshal([]byte(out), &got); err != nil {
					t.Fatalf("standard output is not one JSON value: %v\n%s", err, out)
				}
				for _, field := range []string{"kernel", "nodes", "threads", "size", "trap", "transport", "verified", "seconds",
					"seconds_serial", "seconds_goroutines", "speedup", "overhead", "faults", "remote_faults", "bytes_moved", "messages", "result",
					"lock_calls", "barrier_calls", "seconds_faults", "seconds_locks", "seconds_barriers", "per_node"} {
					if _, ok := got[field]; !ok {
						t.Errorf("the JSON output has no %q", field)
					}
				}
				if got["verified"] != true || got["kernel"] != name || fmt.Sprint(got["nodes"]) != shape[1] || got["size"] != "test" {
					t.Errorf("the JSON output says %s", out)
				}
				if fnv, ok := got["result"].(map[string]any)["fnv"].(string); !ok || len(fnv) != 16 {
					t.Errorf("result.fnv is %v", got["result"])
				}
			})
		}
	}
}

// TestRunTableAndFile: without --json -, the table goes to standard output and the JSON value to
// the file.
func TestRunTableAndFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	out, err := run(t, "run", "sor", "-n", "2", "--size", "33", "--json", file, "--dsmd", dsmdPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"sor", "speed-up", "yes", "read faults", "unpredicted", "in vain", "fnv = "} {
		if !strings.Contains(out, want) {
			t.Errorf("the table does not have %q:\n%s", want, out)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r report.Result
	if err := json.Unmarshal(text, &r); err != nil || !r.Verified || r.N != 33 || r.Size != "33" || len(r.PerNode) != 2 {
		t.Errorf("the file has %s, %v", text, err)
	}
}

// resultOf is what a command says of a run, as JSON.
func resultOf(t *testing.T, args ...string) (r report.Result) {
	t.Helper()
	out, err := run(t, append(args, "--json", "-", "--dsmd", dsmdPath)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRemoteFaultsAddUp: each fault of a whole program that waited for another node did so for one
// reason. Beside the late ones, whose pages were asked for before, they are the faults that the
// daemons did not settle alone.
func TestRemoteFaultsAddUp(t *testing.T) {
	r := resultOf(t, "run", "water", "-n", "2", "-t", "2", "--size", "test")
	for _, n := range r.PerNode {
		why := n.Remote
		if asked := n.Misses() - n.Faults["alone"]; asked == 0 || len(why) != 4 || asked != why["cold"]+why["retaken"]+why["unpredicted"] {
			t.Errorf("node %d: %v are the faults, and why they waited for the other node: %v", n.Rank, n.Faults, why)
		}
	}
	for _, why := range []string{"retaken", "unpredicted"} {
		if n := r.Remote[why]; n == 0 || n != r.PerNode[0].Remote[why]+r.PerNode[1].Remote[why] {
			t.Errorf("%d %s faults in all, %v on the nodes", n, why, r.PerNode)
		}
	}
}

// anInput is the matrix of two unknowns that are connected, in the format that cholesky reads.
const anInput = `two unknowns
             2             1             1             0             0
PSA                        2             2             3             0
(3I5)           (3I5)
    1    3    4
    1    2    2
`

// TestRunInput: all ranks read the file, also one that is named from here.
func TestRunInput(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("two.O", []byte(anInput), 0o666); err != nil {
		t.Fatal(err)
	}
	r := resultOf(t, "run", "cholesky", "-n", "2", "--input", "two.O")
	if !r.Verified || r.Size != "two.O" || r.N != 2 || r.Figures["elements"] != 3.0 {
		t.Errorf("the result is %+v", r)
	}
}

func TestBadInput(t *testing.T) {
	damaged := filepath.Join(t.TempDir(), "damaged.O")
	if err := os.WriteFile(damaged, []byte(strings.Replace(anInput, "PSA", "RUA", 1)), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want error
		says string
	}{
		{[]string{"run", "sor", "--input", damaged}, errNoInput, "kernels with inputs are: cholesky"},
		{[]string{"run", "cholesky", "--input", damaged}, cholesky.ErrFormat, damaged + `: not a symmetric matrix in Harwell-Boeing format: line 3: the type is "RUA"`},
		{[]string{"run", "cholesky", "--input", damaged + ".none"}, fs.ErrNotExist, "--input"},
		{[]string{"run", "cholesky", "--input", damaged, "--size", "test"}, errSizeAndInput, "use one of them"},
	} {
		if _, err := run(t, tc.args...); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v: the error %v is not %v, or does not say %q", tc.args, err, tc.want, tc.says)
		}
	}
}

func TestWrongResultIsAFailure(t *testing.T) {
	out, err := run(t, "run", "liar", "-n", "2", "--json", "-", "--dsmd", dsmdPath)
	if !errors.Is(err, errNotVerified) || !strings.Contains(err.Error(), "first word 2") {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(out, `"verified": false`) {
		t.Errorf("the result is still due, but standard output is %q", out)
	}
}

// TestHangIsAFailureThatSaysWhere: how long the ranks take to come as far as to compute is the
// machine's doing.
func TestHangIsAFailureThatSaysWhere(t *testing.T) {
	for limit := time.Second; ; limit *= 3 {
		_, err := run(t, "run", "sleeper", "-n", "2", "--timeout", limit.String(), "--dsmd", dsmdPath)
		timedOut := errors.Is(err, errTimeout)
		if timedOut && strings.Contains(err.Error(), "rank 1 has been computing") {
			return
		}
		if !timedOut || limit > patience.Or(time.Minute) {
			t.Fatalf("after %v the error is %v", limit, err)
		}
	}
}

func TestFailureOfARankIsTold(t *testing.T) {
	_, err := run(t, "run", "failure", "-n", "2", "--dsmd", dsmdPath)
	if err == nil || !strings.Contains(err.Error(), "rank 1 failed while computing") || !strings.Contains(err.Error(), "out of luck") {
		t.Errorf("the error is %v", err)
	}
}

func TestInterruptEndsEverything(t *testing.T) {
	temp := t.TempDir()
	cmd := exec.Command(os.Args[0], "run", "sleeper", "-n", "2", "-v", "--dsmd", dsmdPath)
	cmd.Env = append(os.Environ(), driverEnv+"=1", "TMPDIR="+temp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitWorkers(t, temp, 2)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit status says it
	if status := cmd.ProcessState.ExitCode(); status != 128+int(syscall.SIGINT) {
		t.Errorf("exit status %d, want 130", status)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	awaitWorkers(t, temp, 0)
}

// awaitWorkers waits until so many processes have temp in their command line.
func awaitWorkers(t *testing.T, temp string, want int) {
	t.Helper()
	deadline := time.Now().Add(patience.Or(20 * time.Second))
	for {
		got := 0
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range files {
			// `dsmd run` has the workers' command line within its own.
			line, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(line), temp) && !strings.HasPrefix(string(line), dsmdPath) {
				got++
			}
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d workers, waited for %d", got, want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestBadUse(t *testing.T) {
	for args, says := range map[string]string{
		"":                                 "",
		"frobnicate":                       "list, micro, report, run, sim, stages, storage",
		"run":                              "sor",
		"run nix":                          "sor, matmul",
		"run sor matmul":                   "one kernel",
		"run sor --size giant":             "default (2048)",
		"run sor --size 2":                 "3 to 65536",
		"run sor -n 0":                     "1 to 1024",
		"run sor -n 1025":                  "1 to 1024",
		"run sor -t 0":                     "1 to 1024",
		"run sor --trap mouse":             "auto, uffd, sigsegv",
		"run sor --transport mule":         "auto, tcp, rdma",
		"run sor --timeout -1s":            "positive",
		"run sor --frob":                   "--transport",
		"run sor --dsmd /none":             "--dsmd",
		"micro teleport":                   "read_miss",
		"micro -n 1":                       "2 to 1024",
		"micro --runs 0":                   "--runs",
		"stages --runs 0":                  "--runs",
		"storage":                          "--dir",
		"storage --dir . --mib 0":          "--mib",
		"storage write --dir .":            `unknown command "write"`,
		"storage checkpoint":               "--dir",
		"storage read":                     "--dir",
		"storage read --dir . --mib 0":     "--mib 0",
		"storage read --dir . --runs 0":    "--runs",
		"storage read --dir . --bind core": "parts the cores itself",
		"storage --dir . --profile x":      "--profile x",
		"kv --trace x":                     "--trace x",
		"storage read --dir . -n 3":        "--random-mib",
		"stages --trap mouse":              "auto, uffd, sigsegv",
		"kv -n 0":                          "1 to 1024",
		"kv --size giant":                  "default (10000)",
		"frame -t 0":                       "1 to 1024",
		"frame all":                        "all",
		"list all":                         "all",
		"report":                           "--out",
		"report --out x --kernels nix":     "sor, matmul",
		"report --out x --kernels sor,sor": "twice",
		"report --out x --size 127":        "fft",
		"report --out x -n 0":              "1 to 1024",
		"report --out x --traps mouse":     "auto, uffd, sigsegv",
		"report --out x --repeat 0":        "--repeat",
		"report --out x --transports=":     "nothing to run",
	} {
		_, err := run(t, strings.Fields(args)...)
		if says == "" {
			if err != nil {
				t.Errorf("bench %s: %v", args, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("bench %s: the error %v does not say %q", args, err, says)
		}
	}
}

func TestList(t *testing.T) {
	out, err := run(t, "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kernels {
		if !strings.Contains(out, k.Name) || !strings.Contains(out, k.Summary) {
			t.Errorf("the list lacks %s:\n%s", k.Name, out)
		}
	}
}

// TestMicro measures everything once, and asserts nothing about the times but that there are some.
func TestMicro(t *testing.T) {
	uffdtest.Require(t)
	args, want := []string{"micro", "-n", "3", "--runs", "1", "--json", "-", "--dsmd", dsmdPath}, micro.Names()
	if testing.Short() {
		want = []string{"read_miss", "scan", "barrier"}
		args = append(args, want...)
	}
	out, err := run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	var lines []map[string]any
	if err := json.Unmarshal([]byte(out), &lines); err != nil {
		t.Fatalf("standard output is not one JSON list: %v\n%s", err, out)
	}
	if len(lines) != len(want) {
		t.Errorf("%d lines, want %d", len(lines), len(want))
	}
	for i, line := range lines {
		if line["name"] != want[i] {
			t.Errorf("line %d is %v", i, line["name"])
		}
		for _, field := range []string{"p50", "p99", "floor_p50", "ratio"} {
			if v, ok := line[field].(float64); !ok || !(v > 0) {
				t.Errorf("%v: %s is %v", line["name"], field, line[field])
			}
		}
		if unit, ok := line["unit"].(string); !ok || unit == "" {
			t.Errorf("%v: unit is %v", line["name"], line["unit"])
		}
	}
}

// TestStages takes real faults apart, and asserts nothing about the times but that stages have
// some.
func TestStages(t *testing.T) {
	once(t)
	uffdtest.Require(t)
	dir := t.TempDir()
	out, err := run(t, "stages", "--runs", "1", "--json", "-", "--out", dir, "--dsmd", dsmdPath)
	if err != nil {
		t.Fatal(err)
	}
	var result stages.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("standard output is not one JSON value: %v\n%s", err, out)
	}
	if len(result.Operations) != len(stagesMicros) {
		t.Fatalf("%d operations, want %d", len(result.Operations), len(stagesMicros))
	}
	for _, o := range result.Operations {
		if o.Samples == 0 { // how many take another way depends on what else the machine does
			t.Errorf("%s: %d accesses were taken apart, and %d left out", o.Name, o.Samples, o.LeftOut)
		}
		// a single stage may take nothing that the clock shows: the thread is woken before the
		// daemon has looked at it
		together := 0.0
		for _, s := range o.Stages {
			if !(s.P50 >= 0) {
				t.Errorf("%s: %q takes %v µs", o.Name, s.Name, s.P50)
			}
			together += s.P50
		}
		if !(together > 0) {
			t.Errorf("%s: all stages take %v µs", o.Name, together)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "stages-faults.svg")); err != nil {
		t.Errorf("the chart: %v", err)
	}
}

// TestStorage saves and restores real memory, and asserts nothing about the times.
func TestStorage(t *testing.T) {
	once(t)
	uffdtest.Require(t)
	dir := t.TempDir()
	out, err := run(t, "storage", "--dir", dir, "--mib", "2", "--runs", "2", "--json", "-", "--dsmd", dsmdPath)
	if err != nil {
		t.Fatal(err)
	}
	var result storage.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.Runs) != 2 {
		t.Fatalf("standard output is not one JSON value with two runs: %v\n%s", err, out)
	}
	for _, r := range result.Runs {
		if !(r.FloorWrite > 0 && r.FloorRead > 0 && r.Whole > r.Moment && r.Incremental > 0 && r.Store >= r.Own && r.Own > 0 && r.Read > 0) {
			t.Errorf("measured was %+v", r)
		}
	}
	if text := result.Text(); !strings.Contains(text, "checkpoint, whole") || !strings.Contains(text, "MB/s") {
		t.Errorf("the table is\n%s", text)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left behind are %v, %v", left, err)
	}
}

// diskDir is a directory on a disk: the usual place for temporary files may lie in memory.
func diskDir(t *testing.T) string {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, parent := range []string{os.TempDir(), here} {
		var fs unix.Statfs_t
		if err := unix.Statfs(parent, &fs); err != nil {
			t.Fatal(err)
		}
		if fs.Type == unix.TMPFS_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(parent, "storage-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	t.Fatal("neither temporary files nor this package lie on a disk: set TMPDIR to a directory that does")
	return ""
}

// TestStorageRead reads a file by all designs, which look for wrong sums, and asserts nothing about
// the times but that there are some.
func TestStorageRead(t *testing.T) {
	once(t)
	uffdtest.Require(t)
	defer func(before time.Duration) { disturbing = before }(disturbing)
	disturbing = 30 * time.Millisecond
	dir := diskDir(t)
	out, err := run(t, "storage", "read", "--dir", dir, "--mib", "2", "--random-mib", "1", "--runs", "2", "--json", "-", "--dsmd", dsmdPath)
	if err != nil {
		t.Fatal(err)
	}
	var result storage.ReadResult
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.Runs) != 2 {
		t.Fatalf("standard output is not one JSON value with two runs: %v\n%s", err, out)
	}
	if result.Bytes != 2<<20 || result.RandomBytes != 1<<20 || result.Cores < 1 || result.Trap == "" || result.Transport == "" {
		t.Errorf("the result is %+v", result)
	}
	for _, r := range result.Runs {
		checkReads(t, &r)
	}
	if text := result.Text(); !strings.Contains(text, "shared memory") || !strings.Contains(text, "s lost per GB read") {
		t.Errorf("the table is\n%s", text)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left behind are %v, %v", left, err)
	}
}

// checkReads looks whether a run has everything.
func checkReads(t *testing.T, r *storage.ReadRun) {
	t.Helper()
	if want := len(storage.Patterns) * (len(storage.Designs) + len(storage.WarmDesigns)); len(r.Reads) != want {
		t.Errorf("%d measurements, want %d", len(r.Reads), want)
	}
	for _, x := range r.Reads {
		bytes := 1 << 20
		if x.Pattern == storage.Patterns[0].Name {
			bytes = 2 << 20
		}
		if !(x.Seconds > 0 && x.ReaderSeconds > 0 && x.Sum != 0) || x.Bytes != bytes {
			t.Errorf("measured was %+v", x)
		}
		if alone := x.Design == storage.Local; alone != (x.StorageSeconds == 0) {
			t.Errorf("the storage side took %v s of processors: %+v", x.StorageSeconds, x)
		}
	}
	if !(r.Alone > 0) || len(r.Disturbed) != len(storage.Disturbing) {
		t.Fatalf("beside a memory-bound program was measured %+v", r)
	}
	for _, x := range r.Disturbed {
		if !(x.Rate > 0 && x.Share > 0 && x.Relative > 0 && x.Seconds >= disturbing.Seconds()) || x.Bytes < 2<<20 {
			t.Errorf("beside a memory-bound program was measured %+v", x)
		}
	}
}

func TestStorageReadNeedsADisk(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	if _, err := run(t, "storage", "read", "--dir", none, "--dsmd", dsmdPath); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--dir") {
		t.Errorf("without a directory the error is %v", err)
	}
	// Linux has it for POSIX shared memory, also where nothing else lies in memory.
	const inMemory = "/dev/shm"
	if _, err := run(t, "storage", "read", "--dir", inMemory, "--dsmd", dsmdPath); !errors.Is(err, storage.ErrNoDisk) || !strings.Contains(err.Error(), "tmpfs") {
		t.Errorf("in memory the error is %v", err)
	}
	if left, err := filepath.Glob(inMemory + "/dsm-bench-*"); len(left) > 0 || err != nil {
		t.Errorf("left behind are %v, %v", left, err)
	}
}

func TestMicroTable(t *testing.T) {
	out, err := run(t, "micro", "first_touch", "--runs", "1", "--dsmd", dsmdPath)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "first_touch") || !strings.Contains(out, "MB/s") || strings.Contains(out, "read_miss") {
		t.Errorf("the table is\n%s", out)
	}
}

func TestWordsSurviveTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "words")
	want := kernel.Float64s{0, math.Copysign(0, -1), 1.5, math.Inf(-1), math.Float64frombits(0x7ff8_0000_0000_0001)}
	if err := writeWords(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := readWords(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := kernel.SameBits(kernel.Result{Output: want}, kernel.Result{Output: got}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, make([]byte, 9), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readWords(path); err == nil {
		t.Error("a file of 9 bytes was read as words")
	}
}

func TestGrowth(t *testing.T) {
	got := growth(map[string]uint64{"faults_read": 3, "gauge": 9}, map[string]uint64{"faults_read": 10, "gauge": 4, "new": 2})
	if got["faults_read"] != 7 || got["gauge"] != 0 || got["new"] != 2 {
		t.Errorf("growth = %v", got)
	}
}

// TestBarrierBeforeComputingIsNotCounted: the timed part has the kernel's barriers and the one that
// ends it.
func TestBarrierBeforeComputingIsNotCounted(t *testing.T) {
	r := resultOf(t, "run", "matmul", "-n", "2", "--size", "test")
	for _, n := range r.PerNode {
		if n.Barriers != 1 || n.SecondsBarriers > n.Seconds {
			t.Errorf("node %d: %d barriers, %v s of %v s", n.Rank, n.Barriers, n.SecondsBarriers, n.Seconds)
		}
	}
	if got := withoutBarrier(map[string]uint64{"barrier_calls": 3, "barrier_wait_ns": 10}, 40); got["barrier_calls"] != 2 || got["barrier_wait_ns"] != 0 {
		t.Errorf("withoutBarrier = %v", got)
	}
}

func TestFindDsmd(t *testing.T) {
	if path, err := findDsmd(t.Context(), dsmdPath, ""); err != nil || path != dsmdPath {
		t.Errorf("findDsmd(%s) = %s, %v", dsmdPath, path, err)
	}
	// Outside the module, without one on PATH.
	t.Chdir(t.TempDir())
	goPath, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(goPath))
	if path, err := findDsmd(t.Context(), "", ""); !errors.Is(err, errNoDsmd) {
		t.Errorf("findDsmd outside the module = %s, %v, want errNoDsmd", path, err)
	}
	t.Setenv("PATH", filepath.Dir(dsmdPath))
	if path, err := findDsmd(t.Context(), "", ""); err != nil || path != dsmdPath {
		t.Errorf("findDsmd with dsmd on PATH = %s, %v", path, err)
	}
}

// TestDocumented: docs/benchmarks.md says what each kernel and each microbenchmark is.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range micro.Names() {
		if !strings.Contains(string(text), "| `"+name+"` |") {
			t.Errorf("docs/benchmarks.md does not explain %s", name)
		}
	}
	for _, name := range slices.Concat([]string{"sor", "matmul"}, kvThroughput.kernels.Names(), frameThroughput.kernels.Names()) {
		if !strings.Contains(string(text), "**"+name+"**") {
			t.Errorf("docs/benchmarks.md does not explain %s", name)
		}
	}
}
