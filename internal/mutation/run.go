package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Status is what has become of a mutant.
type Status string

// The states of mutants.
const (
	Killed     Status = "killed"     // a check failed
	TimedOut   Status = "timed out"  // a check used up its time or memory
	Survived   Status = "survived"   // no check noticed
	Equivalent Status = "equivalent" // it is in the list
)

// Result is what has become of one mutant.
type Result struct {
	Place
	Line     int
	Operator string
	Status   Status
	By       string   `json:",omitempty"` // the check that it failed
	Detail   string   `json:",omitempty"` // what that said, or why it is equivalent
	Passed   []string `json:",omitempty"` // the checks that it has passed
	Seconds  float64  // of processor time, of the checks
}

// Runner runs the checks of one package.
type Runner struct {
	Root    string
	Package *Package
	Checks  []Check
	Log     io.Writer
	Least   time.Duration // processor time that each check has

	limits   map[string]time.Duration // processor time, by name of check
	original string                   // folder of the binaries without mutants
}

// packages are those of the checks.
func (r *Runner) packages() []string {
	var all []string
	for _, c := range r.Checks {
		if !slices.Contains(all, c.Package) {
			all = append(all, c.Package)
		}
	}
	return all
}

// batch is how many mutants are compiled together. Each makes a copy of a function: more mutants in
// a build save compiling, fewer spare the first result.
const batch = 80

// Run runs mutants and reports each.
func (r *Runner) Run(ctx context.Context, mutants []Mutant, passed func(Place) []string, report func(Result) error) error {
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r.limits, r.original = map[string]time.Duration{}, dir
	if len(mutants) > 0 {
		if err := compile(ctx, r.Root, dir, nil, r.packages()); err != nil {
			return err
		}
	}
	for len(mutants) > 0 {
		n := r.next(mutants)
		if err := r.batch(ctx, mutants[:n], passed, report); err != nil {
			return err
		}
		mutants = mutants[n:]
	}
	return nil
}

// next is how many mutants are compiled together next.
func (r *Runner) next(mutants []Mutant) int {
	alone := func(m Mutant) bool {
		return slices.ContainsFunc(r.Package.Files, func(f *File) bool { return !f.allInBodies(m) })
	}
	if alone(mutants[0]) {
		return 1
	}
	mutants = mutants[:min(batch, len(mutants))]
	if i := slices.IndexFunc(mutants, alone); i > 0 {
		return i
	}
	return len(mutants)
}

func (r *Runner) batch(ctx context.Context, mutants []Mutant, passed func(Place) []string, report func(Result) error) error {
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := compile(ctx, r.Root, dir, r.Package.combine(mutants), r.packages()); err != nil {
		if half := len(mutants) / 2; half > 0 && ctx.Err() == nil {
			if err := r.batch(ctx, mutants[:half], passed, report); err != nil {
				return err
			}
			return r.batch(ctx, mutants[half:], passed, report)
		}
		return err
	}
	for i, m := range mutants {
		result, err := r.mutant(ctx, dir, i+1, m, passed(m.Place))
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		if err := report(result); err != nil {
			return err
		}
	}
	return nil
}

// limit is the processor time that a check may take. The first time the check runs without a
// mutant: it must pass, and says how long it takes.
func (r *Runner) limit(ctx context.Context, c Check) (time.Duration, error) {
	if limit, ok := r.limits[c.Name]; ok {
		return limit, nil
	}
	if c.Survivors {
		return time.Hour, nil // it takes that long
	}
	o := r.run(ctx, r.original, c, 0, time.Hour)
	if o.failed {
		return 0, fmt.Errorf("check %q fails without any mutant:\n%s", c.Name, o.output)
	}
	r.limits[c.Name] = r.Least + 3*o.cpu
	fmt.Fprintf(r.Log, "%-28s takes %.1f s\n", c.Name, o.cpu.Seconds())
	return r.limits[c.Name], nil
}

// mutant runs the checks of one mutant until one fails. If some are named, these run, and all have
// to fail.
func (r *Runner) mutant(ctx context.Context, dir string, number int, m Mutant, passed []string) (Result, error) {
	result := Result{Place: m.Place, Line: m.Line, Operator: m.Operator, Status: Survived, Passed: passed}
	failed := 0
	for _, c := range r.Checks {
		if slices.Contains(passed, c.Name) || len(m.by) > 0 && !slices.Contains(m.by, c.Name) || len(m.by) == 0 && c.Named {
			continue
		}
		limit, err := r.limit(ctx, c)
		if err != nil {
			return result, err
		}
		o := r.run(ctx, dir, c, number, limit)
		result.Seconds += o.cpu.Seconds()
		if !o.failed {
			result.Passed = append(result.Passed, c.Name)
			continue
		}
		result.By, result.Detail = c.Name, firstFailure(o.output)
		if failed++; failed < len(m.by) {
			continue
		}
		result.Status, result.Passed = Killed, nil
		if o.exhausted {
			result.Status = TimedOut
		}
		break
	}
	return result, nil
}

// outcome is what has become of one check.
type outcome struct {
	failed, exhausted bool
	cpu               time.Duration
	output            string
}

// run runs one check of one mutant; number 0 is the original.
func (r *Runner) run(ctx context.Context, dir string, c Check, number int, limit time.Duration) outcome {
	ctx, cancel := context.WithTimeout(ctx, wallPerCPU*limit)
	defer cancel()
	script := fmt.Sprintf("ulimit -c 0; ulimit -t %d; ", int(limit.Seconds()))
	if c.Memory > 0 {
		script += fmt.Sprintf("ulimit -v %d; ", c.Memory)
	}
	args := append([]string{"-c", script + `exec "$0" "$@"`, testBinary(dir, c.Package)}, c.Args...)
	if !slices.Contains(c.Args, "-test.timeout") {
		args = append(args, "-test.timeout", "0") // the limits are enough
	}
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = filepath.Join(r.Root, c.Package)
	cmd.Env = append(os.Environ(), selector+"="+strconv.Itoa(number))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var output head
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	o := outcome{failed: err != nil, output: output.String()}
	if s := cmd.ProcessState; s != nil {
		o.cpu = s.UserTime() + s.SystemTime()
		status, _ := s.Sys().(syscall.WaitStatus)
		o.exhausted = status.Signaled() && status.Signal() == syscall.SIGKILL
	}
	o.exhausted = o.exhausted || errors.Is(ctx.Err(), context.DeadlineExceeded) ||
		o.failed && (strings.Contains(o.output, "out of memory") || strings.Contains(o.output, "cannot allocate memory"))
	return o
}

// head keeps the beginning of what is written to it.
type head struct{ bytes.Buffer }

func (h *head) Write(b []byte) (int, error) {
	const most = 64 << 10
	h.Buffer.Write(b[:min(len(b), max(0, most-h.Len()))])
	return len(b), nil
}

// firstFailure is a line of a test's output that says what was wrong.
func firstFailure(output string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		return line[:min(len(line), 240)]
	}
	return ""
}
