package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// ErrPerftest says that perftest's programs cannot be run here, or have failed; the error that
// wraps it says why.
var ErrPerftest = errors.New("perftest")

const (
	// perftestPatience bounds one measurement by a program of perftest, from its start to its end.
	perftestPatience = time.Minute
	// perftestPause is how long one waits before it tries again to reach the other, which does not
	// say when it is ready.
	perftestPause = 20 * time.Millisecond
	// maxSaid bounds how much of what a program has said is told when it has failed.
	maxSaid = 500
)

// A perftestEnd is what a program of perftest must know to use one end's device.
type perftestEnd struct {
	device   string
	gidIndex int
}

// perftest makes a method that measures with a program of perftest, which is in C and none of ours:
// ib_write_lat or ib_send_lat, between this machine's two devices, with as many operations as it
// does unless told otherwise.
func (s *Session) perftest(ctx context.Context, program string, bytes int) *method {
	return &method{name: fmt.Sprintf("perftest's %s -s %d", program, bytes), measure: func(exchanged bool) (Point, error) {
		ends, err := s.perftestEnds()
		if err != nil {
			return Point{}, err
		}
		return runPerftest(ctx, program, bytes, ends, exchanged)
	}}
}

// runPerftest runs a program twice: as the end that serves, and as the one that drives and
// measures.
func runPerftest(ctx context.Context, program string, bytes int, ends [2]perftestEnd, exchanged bool) (Point, error) {
	port, err := freePort()
	if err != nil {
		return Point{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, perftestPatience)
	defer cancel()
	args := func(part int) []string {
		return []string{"-d", ends[part].device, "-x", strconv.Itoa(ends[part].gidIndex), "-s", strconv.Itoa(bytes), "-p", strconv.Itoa(port), "-F"}
	}
	server, err := startPerftest(ctx, coreOf(serving, exchanged), program, args(serving)...)
	if err != nil {
		return Point{}, err
	}
	for {
		client, err := startPerftest(ctx, coreOf(driving, exchanged), program, append(args(driving), "127.0.0.1")...)
		if err != nil {
			return Point{}, errors.Join(err, server.end(cancel))
		}
		err = client.wait()
		if err == nil {
			p, err := readPerftest(client.said.String(), bytes)
			return p, errors.Join(err, server.wait())
		}
		select {
		case <-server.over: // Without it, there is nothing to be reached.
			return Point{}, errors.Join(err, server.wait())
		case <-ctx.Done():
			return Point{}, errors.Join(err, server.end(cancel))
		case <-time.After(perftestPause):
		}
	}
}

// freePort returns a port that nobody listens at. The programs take a number, and no listener.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("looking for a free port for perftest: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// running is a program that was started.
type running struct {
	cmd  *exec.Cmd
	said bytes.Buffer  // complete when over is closed
	over chan struct{} // closed when it has ended
	err  error         // then: how
}

// startPerftest starts a program on a core, as onThread numbers them; it ends with ctx at the
// latest.
func startPerftest(ctx context.Context, core int, program string, args ...string) (*running, error) {
	r := &running{cmd: exec.CommandContext(ctx, program, args...), over: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.said, &r.said
	// A process inherits the core from the thread that starts it.
	err := onThread(core, r.cmd.Start)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: %s is not installed (on Debian: apt-get install perftest)", ErrPerftest, program)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: starting %s: %w", ErrPerftest, program, err)
	}
	go func() {
		r.err = r.cmd.Wait()
		close(r.over)
	}()
	return r, nil
}

// wait waits for the program's end, and says how it has failed.
func (r *running) wait() error {
	<-r.over
	if r.err == nil {
		return nil
	}
	said := strings.TrimSpace(r.said.String())
	return fmt.Errorf("%w: %s: %w: %s", ErrPerftest, strings.Join(r.cmd.Args, " "), r.err, said[max(0, len(said)-maxSaid):])
}

// end ends the program, and says how it has failed.
func (r *running) end(cancel context.CancelFunc) error {
	cancel()
	return r.wait()
}

// readPerftest finds the figures in what a program has said, in the line that begins with the size:
// bytes, iterations, least, greatest, typical (the median), mean, deviation, 99th percentile, and
// more.
func readPerftest(said string, size int) (Point, error) {
	const iterations, typical, p99 = 1, 4, 7
	for line := range strings.Lines(said) {
		fields := strings.Fields(line)
		if len(fields) <= p99 || fields[0] != strconv.Itoa(size) {
			continue
		}
		p := Point{Bytes: size, Connections: 1}
		var errs [3]error
		p.Samples, errs[0] = strconv.Atoi(fields[iterations])
		p.P50, errs[1] = strconv.ParseFloat(fields[typical], 64)
		p.P99, errs[2] = strconv.ParseFloat(fields[p99], 64)
		if err := errors.Join(errs[:]...); err != nil {
			return Point{}, fmt.Errorf("%w: the line %q: %w", ErrPerftest, strings.TrimSpace(line), err)
		}
		if p.P50 <= 0 {
			return Point{}, fmt.Errorf("%w: a latency of %v µs", ErrPerftest, p.P50)
		}
		return p, nil
	}
	return Point{}, fmt.Errorf("%w: there are no figures in what it has said: is it of a version that writes others? %s", ErrPerftest, said[max(0, len(said)-maxSaid):])
}
