package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxOrders bounds the orders that wait to be sent to a machine. A machine that leaves so many
// waiting has stopped reading, and is given up. There are few in a job, apart from signals.
const maxOrders = 1024

// remote is a machine at the other end of a connection, where an agent does what it is told.
type remote struct {
	name           string // belongs to converse
	report         func(event)
	stdout, stderr output
	link           link
	orders         chan frame
	channel        *channel   // to the agent
	stdin          *allowance // of the job's input
	outputs        sync.WaitGroup
	// said is told what a program says of itself before its end, from any goroutine; set before
	// connect.
	said     func(who childID, line []byte)
	out, err *incoming

	mu    sync.Mutex
	nodes int // that open was told of; guarded by mu
	// due: how often the agent may still report what is not about a child; guarded by mu.
	due      map[eventKind]int
	children map[childID]status // that start was told of; guarded by mu
	isOpen   bool               // opened was reported; guarded by mu
	late     time.Duration      // in which it should have been, and was not, or 0; guarded by mu
	unheard  int                // calls of askAlive since the agent was last heard; guarded by mu
	silent   bool               // it was given up for that; guarded by mu
	// reported: finished is about to be reported, and nothing more will be; guarded by mu.
	reported bool
}

// status is how far a child is, as its agent has reported.
type status int

const (
	statusBegun status = iota
	statusEnded
	statusReaped
)

// link is the connection to an agent.
type link interface {
	io.Reader
	io.Writer
	// cut ends the connection. What the agent has started ends with it. It may be called at any
	// time, and again.
	cut()
	// wait returns when nothing is left of the connection, after cut, on this machine; soon,
	// whatever the other side does.
	wait()
	// machine is the name that the machine at the other end has given itself; "" if it was asked
	// for by name.
	machine() string
	// explain says, once the connection has ended, why it did and what to do about it, and the exit
	// status for a job that could not be started because of that. greeted: whether the agent
	// was heard at all. It is not asked about what the agent has said.
	explain(err error, greeted bool) (why string, status int)
}

// frame is one that waits to be sent.
type frame struct {
	kind frameKind
	body []byte
}

// newRemote makes a machine whose reports go to post, which does not block, and what the children
// print to the outputs.
func newRemote(name string, post func(event), stdout, stderr output) *remote {
	r := &remote{
		name: name, stdout: stdout, stderr: stderr,
		orders: make(chan frame, maxOrders),
		stdin:  newAllowance(),
		out:    newIncoming(), err: newIncoming(),
		due:      map[eventKind]int{failed: 2, finished: 1}, // for opening and for starting
		children: map[childID]status{},
	}
	r.report = func(e event) { e.from = r; post(e) }
	return r
}

// connect begins the conversation. version is this side's.
func (r *remote) connect(l link, version string) {
	r.link = l
	r.channel = &channel{w: l}
	go r.send()
	for _, o := range []struct {
		from   *incoming
		to     output
		credit frameKind
	}{{r.out, r.stdout, frameStdoutCredit}, {r.err, r.stderr, frameStderrCredit}} {
		r.outputs.Go(func() {
			said := false // there is room for one report of each output
			o.from.drain(wholePieces, func(pieces []byte) {
				for len(pieces) > 0 {
					var prefix string
					var text []byte
					prefix, text, pieces, _ = cutPiece(pieces)
					if err := o.to.write(prefix, text); err != nil && !said {
						said = true
						r.report(lostOutput(err))
					}
				}
			}, func(n int) { r.put(frame{o.credit, encodeCredit(n)}) })
		})
	}
	go func() {
		greeted, err := r.converse(version)
		r.out.end()
		r.err.end()
		r.stdin.close()
		r.link.cut()
		r.end(greeted, err)
	}()
}

// opensIn gives the machine up that has not opened in time. ssh bounds the wait for a connection,
// but not that for an agent that hangs while its sshd is well.
func (r *remote) opensIn(patience time.Duration) {
	time.AfterFunc(patience, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.isOpen && !r.reported {
			r.late = patience
			r.link.cut()
		}
	})
}

// How often an agent is asked whether it is there, and how often it may leave that unanswered,
// which together is a minute. Its machine may be very busy. Tests change the first.
var aliveTime = aliveSeconds * time.Second

const maxUnheard = 6

// askAlive asks again and again whether the agent is there, until nothing is reported any more, and
// gives up one that says nothing. ssh only notices that of its machine. What counts is how often
// this process was there to ask: it may be stopped itself.
func (r *remote) askAlive() {
	r.mu.Lock()
	reported := r.reported
	r.silent = r.silent || !reported && r.unheard == maxUnheard
	silent := r.silent
	r.unheard++
	r.mu.Unlock()
	switch {
	case reported:
	case silent:
		r.link.cut()
	default:
		r.put(frame{frameAlive, nil})
		time.AfterFunc(aliveTime, r.askAlive)
	}
}

// hearing is the link of a remote, of which it notes that something has come: a frame may take long
// on a slow line.
type hearing struct{ *remote }

func (h hearing) Read(b []byte) (int, error) {
	n, err := h.link.Read(b)
	if n > 0 {
		h.heard()
	}
	return n, err
}

func (r *remote) heard() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unheard = 0
}

// send writes what waits in orders.
func (r *remote) send() {
	for f := range r.orders {
		if r.channel.send(f.kind, f.body) != nil {
			// converse notices the end, and says so, after the agent's last words: a cut would take
			// those. What is still ordered goes nowhere.
			time.AfterFunc(flushTime, r.link.cut)
			for range r.orders {
			}
			return
		}
	}
}

// put sends a frame soon, without waiting for it.
func (r *remote) put(f frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reported {
		return
	}
	select {
	case r.orders <- f:
	default:
		r.link.cut()
	}
}

func (r *remote) order(o order) { r.put(frame{frameOrder, mustEncode(o)}) }

// versionError: the two sides could not work together.
type versionError struct{ here, there string }

func (e *versionError) Error() string {
	return fmt.Sprintf("its dsmd is another version: it is %s there and %s here; install the same on both, or name the right one with --remote-dsmd", e.there, e.here)
}

// partedError is why an agent says that it has ended.
type partedError string

func (e partedError) Error() string { return "its dsmd has ended: " + string(e) }

// converse reads what the agent says until the connection ends. The error is nil if everything was
// said.
func (r *remote) converse(version string) (greeted bool, err error) {
	from := bufio.NewReader(hearing{r})
	there, err := readGreeting(from, func(line string) {
		_ = r.stderr.write("["+r.name+"] ", []byte(line+"\n"))
	})
	if err != nil {
		return false, err
	}
	if here := spoken(version); there != here {
		return true, &versionError{here, there}
	}
	for {
		kind, body, err := readFrame(from)
		if err != nil {
			return true, err
		}
		if done, err := r.take(kind, body); done || err != nil {
			return true, err
		}
	}
}

// take handles a frame, and reports whether it was the last.
func (r *remote) take(kind frameKind, body []byte) (done bool, err error) {
	switch kind {
	case frameEvent:
		e, err := decode[event](body)
		if err != nil {
			return false, err
		}
		return r.pass(e)
	case frameStdout:
		return false, r.out.add(body)
	case frameStderr:
		return false, r.err.add(body)
	case frameStdinCredit:
		return false, r.stdin.credit(body)
	case frameSaid:
		e, err := decode[event](body)
		if err == nil && r.mayTalk(e.Child) {
			r.said(e.Child, e.Says)
		}
		return false, err
	case frameAlive:
		return false, nil
	default:
		return false, fmt.Errorf("%w: kind %d from an agent", errFrame, kind)
	}
}

// pass reports an event of the agent's.
func (r *remote) pass(e event) (done bool, err error) {
	if e.Kind == parted {
		return false, partedError(e.Err)
	}
	if e.Kind == opened && r.link.machine() != "" {
		r.name, e.Name = r.link.machine(), r.link.machine()
	}
	if !r.admit(e) {
		return false, fmt.Errorf("%w: event %d, which the agent has no reason to report", errFrame, e.Kind)
	}
	switch e.Kind {
	case opened: // before, opensIn bounds the wait
		r.askAlive()
	case failed:
		e.Err = "launch: on " + r.name + ": " + strings.TrimPrefix(e.Err, "launch: ")
	case finished:
		// Reported by end, when the output has been passed on.
		return true, nil
	}
	r.report(e)
	return false, nil
}

// mayTalk reports whether a child of this machine has begun, and was not reaped: its last words may
// come after the news of its end.
func (r *remote) mayTalk(id childID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	status, known := r.children[id]
	return known && status != statusReaped
}

// admit reports whether an event makes sense now. So the supervisor gets no more of them than it
// has room for, and none about others' children.
func (r *remote) admit(e event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, known := r.children[e.Child]
	switch e.Kind {
	case childEnded:
		if known = known && now == statusBegun; known {
			r.children[e.Child] = statusEnded
		}
		return known
	case childReaped:
		if known = known && now != statusReaped; known {
			r.children[e.Child] = statusReaped
		}
		return known
	case opened:
		if len(e.Addresses) != r.nodes || slices.ContainsFunc(e.Addresses, badAddress) {
			return false
		}
		r.isOpen = true
	case suspected:
		if e.Found && (!known || e.Child.Role != daemon) {
			return false
		}
	}
	r.due[e.Kind]--
	return r.due[e.Kind] >= 0
}

// badAddress reports whether an address can be no node's. They become a list, separated by commas.
func badAddress(addr string) bool {
	_, err := netip.ParseAddrPort(addr)
	return err != nil
}

// expect says that the agent may report something once more.
func (r *remote) expect(kind eventKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due[kind]++
}

// end makes the machine's last reports. A loss is reported at once: nobody may ever read the output
// that has to be passed on before the machine has finished.
func (r *remote) end(greeted bool, err error) {
	var said partedError
	switch {
	case errors.As(err, &said):
		r.report(event{Kind: lost, Status: StatusDaemon, Err: fmt.Sprintf("launch: on %s: %v", r.name, said)})
	case err != nil:
		why, status := r.explain(err, greeted)
		r.report(event{Kind: lost, Status: status, Err: fmt.Sprintf("launch: on %s: %s", r.name, why)})
	}
	r.outputs.Wait()
	r.link.wait()
	r.mu.Lock()
	r.reported = true
	close(r.orders)
	r.mu.Unlock()
	// Without the lock: whoever takes reports gives orders, too.
	r.report(event{Kind: finished})
}

// explain says why the connection has ended, as link.explain does.
func (r *remote) explain(err error, greeted bool) (why string, status int) {
	r.mu.Lock()
	late, silent := r.late, r.silent
	r.mu.Unlock()
	var version *versionError
	switch {
	case late > 0:
		return fmt.Sprintf("no answer within %v: see whether one can log in there, and whether its dsmd is stopped or waits for a file system", late), StatusSystem
	case silent:
		return fmt.Sprintf("its dsmd has not answered for %v: see there whether it is stopped (kill -CONT), or waits for a file system; what it runs ends when it goes on", maxUnheard*aliveTime), StatusDaemon
	case errors.As(err, &version), errors.Is(err, errFrame):
		return err.Error(), StatusSystem
	}
	return r.link.explain(err, greeted)
}

func (r *remote) open(o openOrder) {
	r.mu.Lock()
	r.nodes = len(o.Nodes)
	r.mu.Unlock()
	r.expect(opened)
	r.order(order{Open: &o})
}

func (r *remote) start(o startOrder, in input) {
	body := mustEncode(order{Start: &o})
	if len(body) > maxFrameBytes {
		in.close()
		r.refuse(o, fmt.Errorf("launch: on %s: the command line and environment of the programs make an order of %d bytes, of at most %d, and are more than the kernel takes: %s",
			r.name, len(body), maxFrameBytes, inAFile))
		return
	}
	r.mu.Lock()
	for _, c := range o.Children {
		r.children[c.ID] = statusBegun
	}
	r.mu.Unlock()
	r.put(frame{frameOrder, body})
	if in.file != nil {
		go r.feed(in)
	}
}

// refuse says why nothing can be started, as a machine does that has tried.
func (r *remote) refuse(o startOrder, err error) {
	r.report(event{Kind: failed, Status: StatusSystem, Err: err.Error()})
	for _, c := range o.Children {
		r.report(event{Kind: childReaped, Child: c.ID})
	}
}

// feed sends the job's standard input, as far as rank 0 takes it.
func (r *remote) feed(in input) {
	defer in.close()
	buf := make([]byte, 32<<10)
	for {
		n := r.stdin.take(len(buf))
		if n == 0 {
			return
		}
		got, err := in.file.Read(buf[:n])
		r.stdin.add(n - got)
		if got > 0 {
			r.put(frame{frameStdin, append([]byte(nil), buf[:got]...)})
		}
		if err != nil {
			r.put(frame{frameStdinEnd, nil})
			return
		}
	}
}

func (r *remote) signal(to childID, sig syscall.Signal) {
	r.order(order{Signal: &signalOrder{to, sig}})
}

func (r *remote) ask() {
	r.expect(suspected)
	r.order(order{Ask: true})
}

func (r *remote) halt() {
	r.expect(halted)
	r.order(order{Halt: true})
}

func (r *remote) mourn(who childID) { r.order(order{Mourn: &who}) }

func (r *remote) hurry() { r.order(order{Hurry: true}) }

func (r *remote) abandon() { r.link.cut() }

// finish ends a conversation that never began at once: the agent may be far from being heard.
func (r *remote) finish() {
	r.mu.Lock()
	isOpen := r.isOpen
	r.mu.Unlock()
	if !isOpen {
		r.link.cut()
		return
	}
	r.order(order{Finish: true})
}
