package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"dsmd/internal/runstats"
)

// agent is the launcher's hand on a machine: it does what it is told through a connection, and ends
// with it.
type agent struct {
	channel        *channel
	here           *local
	stdout, stderr *allowance
	stdin          *incoming // nil unless rank 0 is here
	started        bool
	finishing      atomic.Bool // the last event has been, or is being, sent
	events         chan event
}

// AgentConfig says what an agent is.
type AgentConfig struct {
	Commands Commands
	// Version is compared with the launcher's: only equal ones understand each other.
	Version string
	// Address is the address by which the launcher has reached this machine, without a port; "" if
	// that is not known.
	Address string
}

// Agent serves a launcher at the other end of the connection. It starts what the launcher wants,
// and reports what becomes of it. When the connection ends, in whatever way, it kills all of it. It
// returns when nothing is left. If the launcher did not end it, the error has the reason.
//
// Agent is for a process that does nothing else, as Run is. Signals that Run passes on to programs
// are left to the launcher, which gets them too.
func Agent(from io.Reader, to io.Writer, cfg AgentConfig) error {
	takeSIGPIPE()
	// Under a batch system these signals reach all processes of a job. They are not ignored,
	// because programs would inherit that, and never read.
	signal.Notify(make(chan os.Signal, 1), signals...)
	a := &agent{channel: &channel{w: to}, stdout: newAllowance(), stderr: newAllowance()}
	if _, err := fmt.Fprintf(to, "%s%s\n", greeting, spoken(cfg.Version)); err != nil {
		return fmt.Errorf("launch: greeting the launcher: %w", err)
	}
	// Events wait here while the connection is slow. Their number is known once the children are.
	a.events = make(chan event, eventRoom(1, maxAgentChildren))
	a.here = newLocal(cfg.Commands, cfg.Address, func(e event) { a.events <- e },
		&relay{to: &outgoing{to: a.channel, kind: frameStdout, allowance: a.stdout}},
		&relay{to: &outgoing{to: a.channel, kind: frameStderr, allowance: a.stderr}})
	a.here.said = func(who childID, _ runstats.Statement, line []byte) {
		// Should that fail, obey sees the end of the connection too.
		_ = a.channel.send(frameSaid, mustEncode(event{Child: who, Says: line}))
	}
	// Each child that is started is a sign of life: all of them may take long.
	a.here.stop = func() bool { _ = a.channel.send(frameAlive, nil); return false }
	defer a.here.close()
	over := make(chan bool, 1)
	go func() { over <- a.report() }()
	err := a.obey(bufio.NewReader(from))
	if a.finishing.Load() && <-over {
		return nil // the launcher has heard that nothing is left
	}
	gone := errors.Is(err, errConnection)
	if gone && !a.started {
		return a.abort() // the launcher has changed its mind, and needs no explanation
	}
	err = errors.Join(err, a.abort())
	if !gone {
		// This comes behind abort: whatever becomes of the message, nothing is left.
		_ = a.channel.send(frameEvent, mustEncode(event{Kind: parted, Err: err.Error()}))
	}
	return err
}

// maxAgentChildren bounds the daemons and programs of one agent; there are far fewer cores.
const maxAgentChildren = 1 << 12

// report sends events until the last one. It returns false if one could not be sent: then obey sees
// the end of the connection too.
func (a *agent) report() (complete bool) {
	for {
		e := <-a.events
		if e.Kind == finished {
			a.finishing.Store(true) // before the launcher can hear of it, and hang up
		}
		if a.channel.send(frameEvent, mustEncode(e)) != nil {
			return false
		}
		if e.Kind == finished {
			return true
		}
	}
}

// errConnection: the launcher is gone.
var errConnection = errors.New("launch: the connection to the launcher has ended")

// obey carries out the launcher's orders until the connection ends, which the launcher brings
// about.
func (a *agent) obey(from *bufio.Reader) error {
	for {
		kind, body, err := readFrame(from)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ETIMEDOUT) {
			// Reset, when the launcher was killed with something unread; timed out, when its
			// machine is silent.
			return errConnection
		}
		if err != nil {
			return err
		}
		if err := a.take(kind, body); err != nil {
			return err
		}
	}
}

// take handles a frame.
func (a *agent) take(kind frameKind, body []byte) error {
	switch kind {
	case frameOrder:
		o, err := decode[order](body)
		if err != nil {
			return err
		}
		return a.carryOut(o)
	case frameStdin:
		if a.stdin == nil {
			return fmt.Errorf("%w: input, but nobody reads it", errFrame)
		}
		return a.stdin.add(body)
	case frameStdinEnd:
		if a.stdin != nil {
			a.stdin.end()
		}
		return nil
	case frameStdoutCredit:
		return a.stdout.credit(body)
	case frameStderrCredit:
		return a.stderr.credit(body)
	case frameAlive:
		// It is answered in its turn, so that an order that hangs is noticed if nothing else is
		// said meanwhile. Should this fail, obey sees the end of the connection too.
		_ = a.channel.send(frameAlive, nil)
		return nil
	default:
		return fmt.Errorf("%w: kind %d from a launcher", errFrame, kind)
	}
}

// carryOut does what an order says. Orders in a sequence that makes no sense are errors.
func (a *agent) carryOut(o order) error {
	switch {
	case o.Open != nil && a.here.endpoints == nil && (len(o.Open.Metrics) == 0 || len(o.Open.Metrics) == len(o.Open.Nodes)):
		a.here.open(*o.Open)
	case o.Start != nil && !a.started && a.here.canStart(*o.Start):
		a.started = true
		in, err := a.inputFor(*o.Start)
		if err != nil {
			return err
		}
		a.here.start(*o.Start, in)
	case o.Signal != nil:
		a.here.signal(o.Signal.To, o.Signal.Signal)
	case o.Ask:
		a.here.ask()
	case o.Halt:
		a.here.halt()
	case o.Mourn != nil && (o.Mourn.Role == daemon || o.Mourn.Role == program):
		a.here.mourn(*o.Mourn)
	case o.Hurry:
		a.here.hurry()
	case o.Finish:
		a.here.finish()
	default:
		return fmt.Errorf("%w: an order that cannot be carried out now", errFrame)
	}
	return nil
}

// inputFor makes the pipe to the child that gets the job's standard input, if it is here.
func (a *agent) inputFor(o startOrder) (input, error) {
	for _, c := range o.Children {
		if !c.Input {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return input{}, fmt.Errorf("launch: making a pipe for the input of rank 0: %w", explainLimit(err))
		}
		a.stdin = newIncoming()
		go func() {
			defer w.Close()
			a.stdin.drain(nil,
				// when rank 0 does not read any more, the rest goes nowhere
				func(b []byte) { _, _ = w.Write(b) },
				func(n int) { _ = a.channel.send(frameStdinCredit, encodeCredit(n)) })
		}()
		return input{file: r, owned: true}, nil
	}
	return input{}, nil
}

// abort kills everything: nobody is there any more who could want it.
func (a *agent) abort() error {
	a.stdout.close()
	a.stderr.close()
	a.here.hurry()
	processes := a.here.all(program, daemon)
	for _, p := range processes {
		p.signal(syscall.SIGKILL)
	}
	deadline := time.Now().Add(orphanTime)
	for _, p := range processes {
		for p.exists() && time.Now().Before(deadline) {
			// The killed need a moment to die. This is no normal end.
			time.Sleep(time.Millisecond)
		}
	}
	if left := a.here.endOrphans(deadline); left > 0 {
		return fmt.Errorf("launch: %d processes could not be killed", left)
	}
	return nil
}
