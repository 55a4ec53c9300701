package main

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/internal/uffd/uffdtest"
)

// TestThroughput runs all workloads, which are verified, and asserts nothing about the times but
// that figures follow from each other.
func TestThroughput(t *testing.T) {
	once(t)
	uffdtest.Require(t)
	for _, what := range []throughput{kvThroughput, frameThroughput} {
		out, err := run(t, what.use, "-n", "1,2", "-t", "2", "--size", "test", "--json", "-", "--dsmd", dsmdPath)
		if err != nil {
			t.Fatal(err)
		}
		var lines []throughputLine
		if err := json.Unmarshal([]byte(out), &lines); err != nil || len(lines) != 2*len(what.kernels) {
			t.Fatalf("standard output is not one JSON list of %d lines: %v\n%s", 2*len(what.kernels), err, out)
		}
		for i, l := range lines {
			if want := what.kernels[i/2].Name; l.Kernel != want || l.Nodes != 1+i%2 || l.Threads != 2 || !l.Verified {
				t.Errorf("line %d is of %s on %d nodes with %d threads, verified: %t", i, l.Kernel, l.Nodes, l.Threads, l.Verified)
			}
			if !(l.PerSecond > 0) || math.Abs(l.Relative*l.PerSecondAlone/l.PerSecond-1) > 1e-9 {
				t.Errorf("%s: %v operations a second, %v of %v", l.Kernel, l.PerSecond, l.Relative, l.PerSecondAlone)
			}
			if (l.Messages > 0) != (l.Nodes > 1) {
				t.Errorf("%s: %d messages on %d nodes", l.Kernel, l.Messages, l.Nodes)
			}
		}
		if text := throughputTable(what.operation, lines); !strings.Contains(text, what.kernels[0].Name) || !strings.Contains(text, what.operation+"/s") {
			t.Errorf("the table is\n%s", text)
		}
	}
}

// TestThroughputOfAWrongResult: the line is there, and the command fails.
func TestThroughputOfAWrongResult(t *testing.T) {
	k, err := kernels.Find("liar")
	if err != nil {
		t.Fatal(err)
	}
	cmd := throughputCommand(throughput{use: "lies", operation: "lies", kernels: kernel.Registry{k}})
	cmd.SetArgs([]string{"-n", "1", "-t", "1", "--dsmd", dsmdPath})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, errNotVerified) {
		t.Errorf("the error is %v", err)
	}
}
