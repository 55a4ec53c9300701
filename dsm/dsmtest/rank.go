package dsmtest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/dsm"
)

// envDebug is the environment variable with the number of the rank that waits for a debugger.
const envDebug = "DSMTEST_DEBUG"

// tracePause is the time between two looks for a debugger.
const tracePause = 100 * time.Millisecond

// Lines that a rank prints when body has ended. Each is written at once, and begins on a line of
// its own whatever the test has printed.
const (
	saidDone    = "dsmtest: the body has ended"
	saidSkipped = "dsmtest: the body was skipped"
)

// take runs body in this rank, and ends the test.
func take(t *testing.T, body func(ctx context.Context, c *dsm.Cluster)) {
	t.Helper()
	ctx := t.Context()
	if limit := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); limit > 0 {
		deadline, _ := t.Deadline()
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-margin(limit)))
		defer cancel()
	}
	c, err := dsm.Join(ctx)
	if err != nil {
		t.Fatal("dsmtest: ", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error("dsmtest: closing the cluster: ", err)
		}
	})
	if os.Getenv(envDebug) == strconv.Itoa(c.Rank()) {
		awaitDebugger(c.Rank())
	}
	running.Store(true)
	said := saidSkipped
	defer func() {
		if t.Skipped() {
			fmt.Printf("\n%s\n", said)
		}
	}()
	body(ctx, c)
	said = saidDone
	running.Store(false)
	// The rest of the test is the leader's.
	t.SkipNow()
}

// awaitDebugger returns when a debugger traces this process.
func awaitDebugger(rank int) {
	// Where only parents may trace (Yama), this process lets anybody of its user. Elsewhere it
	// fails, and need not do it.
	_ = unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0)
	fmt.Fprintf(os.Stderr, "rank %d waits for a debugger: dlv attach %d\n", rank, os.Getpid())
	for untraced := []byte("\nTracerPid:\t0\n"); ; time.Sleep(tracePause) {
		if status, err := os.ReadFile("/proc/self/status"); err != nil || !bytes.Contains(status, untraced) {
			return
		}
	}
}
