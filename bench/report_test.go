package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/bench/report"
	"dsmd/internal/patience"
)

// TestReportIsInterruptedAndGoesOn interrupts a report in its second run, which never ends, and
// asks for it again without that run and with a wrong one.
func TestReportIsInterruptedAndGoesOn(t *testing.T) {
	out, temp := filepath.Join(t.TempDir(), "report"), t.TempDir()
	arguments := func(kernels string, more ...string) []string {
		return append([]string{"report", "--out", out, "--kernels", kernels, "-n", "1", "--traps", "auto", "--dsmd", dsmdPath}, more...)
	}
	cmd := exec.Command(os.Args[0], arguments("matmul,sleeper")...)
	cmd.Env = append(os.Environ(), driverEnv+"=1", "TMPDIR="+temp)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(out, "results", "matmul-n1-t1-test-auto-tcp-1.json")
	awaitFile(t, first)
	awaitWorkers(t, temp, 2) // the worker of the second run, and `bench run` itself
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit status says it
	if status := cmd.ProcessState.ExitCode(); status != 128+int(syscall.SIGINT) || !strings.Contains(said.String(), "after 1 of 2 runs") {
		t.Errorf("exit status %d, want 130; it said\n%s", status, said.String())
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	awaitWorkers(t, temp, 0)
	if files, _ := filepath.Glob(filepath.Join(out, "results", "*")); len(files) != 1 {
		t.Errorf("results: %v", files)
	}

	t.Setenv(driverEnv, "1") // for the runs, which are copies of this executable
	before := began(t, first)
	if _, err := run(t, arguments("matmul,liar")...); !errors.Is(err, errRunsFailed) || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("with a wrong run: %v", err)
	}
	if !began(t, first).Equal(before) {
		t.Error("what was finished was run again")
	}
	page, err := os.ReadFile(filepath.Join(out, "index.html"))
	if err != nil || !strings.Contains(string(page), "2 runs, 1 verified, 1 failed") || !strings.Contains(string(page), "first word 2") {
		t.Errorf("the page is %v\n%s", err, page)
	}
	if text, err := run(t, arguments("matmul", "--fresh")...); err != nil || text != filepath.Join(out, "index.html")+"\n" {
		t.Errorf("a fresh report: %q, %v", text, err)
	}
	if began(t, first).Equal(before) {
		t.Error("--fresh did not run again what was finished")
	}
}

// began reads when the run began that a file has the outcome of.
func began(t *testing.T, path string) time.Time {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var o report.Outcome
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	return o.Began
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(patience.Or(20 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there is no %s", path)
		}
	}
}

func TestFingerprintIsOfContents(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for path, text := range map[string]string{a: "1", b: "2"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	of := func(paths ...string) string {
		t.Helper()
		print, err := fingerprint(paths...)
		if err != nil {
			t.Fatal(err)
		}
		return print
	}
	if of(a, b) != of(a, b) || of(a, b) == of(a, a) || len(of(a)) != 16 {
		t.Errorf("fingerprints: %s, %s, %s", of(a, b), of(a, a), of(a))
	}
	if _, err := fingerprint(filepath.Join(dir, "c")); err == nil {
		t.Error("a file that is not there has a fingerprint")
	}
}

func TestLastWordsAreBounded(t *testing.T) {
	if got := last("short", 10); got != "short" {
		t.Errorf("%q", got)
	}
	if got := last("ä"+strings.Repeat("x", 9), 10); got != "…"+strings.Repeat("x", 9) {
		t.Errorf("a cut letter stays: %q", got)
	}
}
