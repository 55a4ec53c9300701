package main

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/internal/launch"
	"dsmd/internal/patience"
	"dsmd/internal/top"
)

// What a fakeDaemon does with whoever asks.
const (
	answers = iota // as a daemon does, with a lock that is waited for all the time
	hangs          // says nothing
	hangsUp        // closes the connection
)

func fakeDaemon(t *testing.T, socket string, does int) {
	t.Helper()
	began := time.Now()
	listenAs(t, socket, func(c net.Conn) {
		switch does {
		case hangs:
			_, _ = io.Copy(io.Discard, c)
			return
		case hangsUp:
			return
		}
		conn := attach.NewConn(c.(*net.UnixConn))
		defer conn.Discard()
		for {
			f, err := conn.ReadFrame()
			if err != nil || conn.Write(fakeAnswer(f, time.Since(began))) != nil {
				return
			}
		}
	})
}

// listenAs has talk speak with whoever connects to a socket, until the listener is closed, at the
// latest when the test ends.
func listenAs(t *testing.T, socket string, talk func(c net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				talk(c)
			}()
		}
	}()
	return l
}

// fakeAnswer is what a daemon of an age says to a frame.
func fakeAnswer(f attach.Frame, age time.Duration) []byte {
	if f.Kind == attach.KindHello {
		return attach.AppendWelcome(nil, &attach.Welcome{Nodes: 1, Size: 1, RegionBase: 4096, RegionBytes: 4096, PageBytes: 4096, HomeStripe: 1, Reactors: 1, StripePages: 1, Trap: "uffd", Transport: "tcp"})
	}
	c, err := attach.DecodeCall(f.Body)
	if f.Kind != attach.KindCall || err != nil {
		return nil
	}
	waits := [attach.WaitKinds]attach.Cost{attach.WaitLock: {Count: 1, Time: age}}
	payload := map[attach.Op][]byte{
		attach.OpStats:    attach.AppendCounters(nil, []attach.Counter{{Name: "faults_read", Value: 1}}),
		attach.OpPrograms: attach.AppendPrograms(nil, &attach.Programs{PID: 1, Age: age, Attached: []attach.Attached{{PID: uint32(os.Getpid()), Size: 1, Age: age, Job: "night", Program: "solve", Waits: waits}}}),
		attach.OpWaits:    attach.AppendWaits(nil, &attach.Waits{All: waits, List: []attach.Awaited{{Kind: attach.WaitLock, Job: "night", Name: "queue", Cost: waits[attach.WaitLock]}}}),
		attach.OpUsage:    attach.AppendUsage(nil, &attach.Usage{}),
		attach.OpFaultLog: faultlog.Append(nil, &faultlog.Batch{First: 1, Next: 1}),
	}[c.Op]
	return attach.AppendReply(nil, &attach.Reply{Ticket: c.Ticket, Payload: payload})
}

// TestTopOnce: of all daemons of a machine it prints what has happened in an interval, of the job
// that is named; one that says nothing is named, and hides no other.
func TestTopOnce(t *testing.T) {
	askWithin(t, patience.Or(20*time.Second))
	fakeDaemon(t, launch.SocketPrefix+"topsilent-0", hangsUp)
	fakeDaemon(t, launch.SocketPrefix+"toptest-0", answers)
	f := topFlags{interval: minInterval, order: top.ByWaits}
	var out, warnings strings.Builder
	if err := f.run(context.Background(), &out, &warnings, "toptest"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"100.0%", `lock       "queue"`, "  solve\n", "   0/1 "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	if !strings.Contains(warnings.String(), "dsmd: no answer: "+launch.SocketPrefix+"topsilent-0: ") {
		t.Errorf("the warnings are %q", warnings.String())
	}
	if err := f.run(context.Background(), &out, &warnings, "elsewhere"); err == nil || !strings.Contains(err.Error(), `no job "elsewhere" runs on this machine`) || !strings.Contains(err.Error(), "toptest/night") {
		t.Errorf("a job that does not run: %v", err)
	}
	f.socket = launch.SocketPrefix + "topsilent-0"
	if err := f.run(context.Background(), &out, &warnings, ""); err == nil || !strings.Contains(err.Error(), "no daemon answers: ") {
		t.Errorf("nobody answers: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	f.socket, f.interval = launch.SocketPrefix+"toptest-0", time.Hour
	if err := f.run(ended, &out, &warnings, ""); err == nil {
		t.Error("what is interrupted succeeds")
	}
}

// TestAskerWaitsForNobody: a daemon that has not answered is not asked again, and the others are.
func TestAskerWaitsForNobody(t *testing.T) {
	fakeDaemon(t, launch.SocketPrefix+"topbusy-0", hangs)
	a := asker{socket: launch.SocketPrefix + "topbusy-0", answers: map[string]*top.Sample{}, asking: map[string]time.Time{}}
	for range 3 {
		list := a.ask(time.Millisecond)
		if len(list) != 1 || !strings.Contains(list[0].Error, "it was asked") {
			t.Fatalf("%+v", list)
		}
	}
	if len(a.asking) != 1 {
		t.Errorf("%d daemons are asked", len(a.asking))
	}
}

// TestTopBadFlags: what makes no sense is refused, with what would.
func TestTopBadFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"at least 100ms":               {"top", "--interval", "1ms"},
		"waits, pages, locks":          {"top", "--sort", "colour"},
		`unexpected argument "second"`: {"top", "first", "second"},
	} {
		root := newRoot()
		root.SetArgs(args)
		root.SetOut(io.Discard)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
