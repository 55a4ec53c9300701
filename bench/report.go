package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"dsmd/bench/report"
)

const (
	// defaultCaseTimeout is twice what any kernel may take at its default size.
	defaultCaseTimeout = 2 * time.Minute
	// caseGrace is how long a run may take to end after its timeout, or when it is told to, before
	// it is killed.
	caseGrace = 15 * time.Second
	// maxRepeat bounds --repeat.
	maxRepeat = 1000
	// maxReason is how much of what a failed run says is kept, in bytes.
	maxReason = 2 << 10
)

// errRunsFailed is returned when a report has failed runs.
var errRunsFailed = errors.New("runs failed")

func reportCommand() *cobra.Command {
	var o reportOptions
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Run many kernels in many ways, and make a folder with tables and plots",
		Long: "Run kernels × numbers of nodes × traps × transports, each as `bench run` does, and write a folder: a page of HTML,\n" +
			"a Markdown table, plots as PNG and SVG, and all results as JSON.\n\n" +
			"Each result is stored as soon as there is one. After an interruption, the same command goes on where it stopped; runs\n" +
			"that failed, or were made by another build, are made again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return makeReport(cmd.Context(), &o, cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.sweep.Kernels, "kernels", kernels.Names(), "`names` of kernels, see bench list")
	flags.IntSliceVarP(&o.sweep.Nodes, "nodes", "n", []int{1, 2, 4}, "numbers of nodes")
	flags.StringSliceVar(&o.sweep.Traps, "traps", []string{"uffd", "sigsegv"}, "how daemons trap page faults: auto, uffd, sigsegv")
	flags.StringSliceVar(&o.sweep.Transports, "transports", []string{"tcp"}, "how pages move: auto, tcp, rdma")
	flags.StringVar(&o.sweep.Size, "size", "test", "test, default, large, or a number that is a size of all kernels")
	flags.IntVarP(&o.sweep.Threads, "threads", "t", 1, "goroutines per node")
	flags.IntVar(&o.sweep.Repeat, "repeat", 1, "how often everything is run; the report shows medians")
	flags.StringVar(&o.out, "out", "", "the folder, which is made if there is none (required)")
	flags.BoolVar(&o.fresh, "fresh", false, "start over: don't use results that the folder has")
	dsmdFlag(flags, &o.dsmd)
	flags.DurationVar(&o.timeout, "timeout", defaultCaseTimeout, "end a run after this time, as a failure")
	return cmd
}

// reportOptions are the flags of `bench report`.
type reportOptions struct {
	sweep   report.Sweep
	out     string
	fresh   bool
	dsmd    string
	timeout time.Duration
}

// check refuses what some run would refuse.
func (o *reportOptions) check() error {
	if o.out == "" {
		return errors.New("--out: name the folder for the report")
	}
	if o.sweep.Repeat < 1 || o.sweep.Repeat > maxRepeat {
		return fmt.Errorf("--repeat %d: use 1 to %d", o.sweep.Repeat, maxRepeat)
	}
	cases := o.sweep.Cases()
	if len(cases) == 0 {
		return errors.New("nothing to run: --kernels, --nodes, --traps and --transports each need a value")
	}
	seen := make(map[report.Case]bool, len(cases))
	for _, c := range cases {
		if seen[c] {
			return fmt.Errorf("%v is asked for twice", c)
		}
		seen[c] = true
		run := runOptions{
			clusterOptions: clusterOptions{nodes: c.Nodes, trap: c.Trap, transport: c.Transport, timeout: o.timeout},
			task:           task{size: c.Size}, threads: c.Threads,
		}
		if err := run.resolve(c.Kernel); err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
	}
	return nil
}

// A sweeper does the runs of a sweep.
type sweeper struct {
	workplace
	options *reportOptions
	folder  *report.Folder
	self    string // the path of this executable
	build   string
	lines   io.Writer // what was done, a line each; nothing if there is a display
}

func makeReport(ctx context.Context, o *reportOptions, cmd *cobra.Command) error {
	return inWorkplace(ctx, o.dsmd, func(w workplace) (err error) {
		s := &sweeper{workplace: w, options: o, lines: cmd.ErrOrStderr()}
		if w.view.bar != nil {
			s.lines = io.Discard
		}
		if s.folder, err = report.Open(o.out); err != nil {
			return err
		}
		if s.self, err = os.Executable(); err != nil {
			return fmt.Errorf("finding this executable: %w", err)
		}
		if s.build, err = fingerprint(s.self, w.dsmd); err != nil {
			return err
		}
		outcomes, err := s.sweep(ctx)
		if err != nil {
			return err
		}
		w.view.show("drawing", 0, 0)
		if err := s.folder.Write(about(ctx), outcomes); err != nil {
			return err
		}
		w.view.clear()
		fmt.Fprintln(cmd.OutOrStdout(), s.folder.Page())
		return failures(outcomes)
	})
}

// fingerprint identifies executables by their contents.
func fingerprint(paths ...string) (string, error) {
	hash := sha256.New()
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("identifying the build: %w", err)
		}
		_, err = io.Copy(hash, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", fmt.Errorf("identifying the build by %s: %w", path, err)
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

// sweep returns the outcomes of all cases, in order: those that the folder has, and those of the
// runs that are left.
func (s *sweeper) sweep(ctx context.Context) ([]report.Outcome, error) {
	cases := s.options.sweep.Cases()
	outcomes := make([]report.Outcome, len(cases))
	var left []int
	for i, c := range cases {
		finished, err := s.earlier(c, &outcomes[i])
		if err != nil {
			return nil, err
		}
		if !finished {
			left = append(left, i)
		}
	}
	if reused := len(cases) - len(left); reused > 0 {
		fmt.Fprintf(s.lines, "%d of %d runs are in %s already\n", reused, len(cases), s.options.out)
	}
	for done, i := range left {
		position := len(cases) - len(left) + done
		s.view.show(cases[i].String(), position, len(cases))
		o := s.run(ctx, cases[i])
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w after %d of %d runs; the same command without --fresh goes on from there", context.Cause(ctx), position, len(cases))
		}
		if err := s.folder.Keep(o); err != nil {
			return nil, err
		}
		outcomes[i] = o
		fmt.Fprintf(s.lines, "%d/%d %v: %s\n", position+1, len(cases), cases[i], brief(o))
	}
	return outcomes, nil
}

// earlier finds the outcome of a case that is finished. With --fresh none is, and the folder
// forgets it at once, so that what an interrupted fresh start leaves is fresh.
func (s *sweeper) earlier(c report.Case, into *report.Outcome) (bool, error) {
	if s.options.fresh {
		return false, s.folder.Discard(c)
	}
	o, finished, err := s.folder.Finished(c, s.build)
	if finished {
		*into = o
	}
	return finished, err
}

// brief is an outcome in a few words.
func brief(o report.Outcome) string {
	if o.Failure != "" {
		first, _, _ := strings.Cut(o.Failure, "\n")
		return "FAILED: " + first
	}
	return fmt.Sprintf("verified, %.4f s", o.Result.Seconds)
}

// run does one run in a process of its own: so each starts from the same state, and one that hangs,
// exhausts memory or dies is just another outcome.
func (s *sweeper) run(ctx context.Context, c report.Case) report.Outcome {
	o := report.Outcome{Case: c, Build: s.build, Began: time.Now(), Load: loadAverage()}
	file := filepath.Join(s.dir, "result.json")
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		o.Failure = fmt.Sprintf("removing the result of the run before: %v", err)
		return o
	}
	said, err := s.start(ctx, []string{
		"run", c.Kernel, "-n", strconv.Itoa(c.Nodes), "-t", strconv.Itoa(c.Threads), "--size", c.Size, "--trap", c.Trap, "--transport", c.Transport,
		"--timeout", s.options.timeout.String(), "--dsmd", s.dsmd, "--json", file,
	})
	if err != nil {
		o.Failure = cmp.Or(last(said, maxReason), err.Error())
	}
	// A wrong result is there all the same.
	text, readErr := os.ReadFile(file)
	if readErr == nil {
		readErr = json.Unmarshal(text, &o.Result)
	}
	if err == nil && readErr != nil {
		o.Failure = fmt.Sprintf("reading the result: %v", readErr)
	}
	return o
}

// start runs this executable and returns what it wrote to standard error.
func (s *sweeper) start(ctx context.Context, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.timeout+caseGrace)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, s.self, args...)
	cmd.Stderr = &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = caseGrace
	// A process group of its own, so that a terminal's Ctrl-C reaches this process only; Cancel
	// passes it on. If this process is killed, the kernel ends the run. It does so when the thread
	// that has started it ends, so this goroutine keeps its thread.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	return strings.TrimPrefix(strings.TrimSpace(said.String()), "bench: "), err
}

// last is the end of a text, of at most so many bytes.
func last(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return "…" + strings.ToValidUTF8(text[len(text)-most:], "")
}

// failures is an error if there are any.
func failures(outcomes []report.Outcome) error {
	failed := 0
	for _, o := range outcomes {
		if o.Failure != "" {
			failed++
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d %w; the report says why", failed, len(outcomes), errRunsFailed)
}
