package floor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// processMark is the first argument of a process of a floor.
const processMark = "floor-process"

// Descriptors that a process inherits. The daemon has both, the program only the link to the
// daemon, servers and clients only the connection.
const (
	inheritedFirst = 3 + iota
	inheritedSecond
)

type role string

const (
	roleProgram role = "program"
	roleDaemon  role = "daemon"
	roleServer  role = "server"
	roleClient  role = "client"
	roleToucher role = "toucher"
	roleSpinner role = "spinner"
)

// IsProcess reports whether the arguments of this process (os.Args) make it one of a floor's.
func IsProcess(args []string) bool { return len(args) == 4 && args[1] == processMark }

// Main is the whole life of a process of a floor; args are os.Args. It never returns.
func Main(args []string) {
	var spec Spec
	err := json.Unmarshal([]byte(args[3]), &spec)
	if err == nil {
		// Nothing but this thread may matter from here on: no collection, no migration to another
		// thread. (Preemption is switched off by the environment that start gives.)
		debug.SetGCPercent(-1)
		runtime.LockOSThread()
		err = play(role(args[2]), spec)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func play(r role, spec Spec) error {
	switch r {
	case roleProgram:
		return program(spec)
	case roleDaemon:
		return daemon(spec)
	case roleServer:
		return ended(serve(spec))
	case roleClient:
		return client(spec)
	case roleToucher:
		return toucher(spec)
	case roleSpinner:
		for {
			Compute(time.Hour)
		}
	default:
		return fmt.Errorf("there is no role %q", r)
	}
}

// ended takes the peer's end for a normal end.
func ended(err error) error {
	if errors.Is(err, errEnd) {
		return nil
	}
	return err
}

// program is P: it faults and takes the times.
func program(spec Spec) error {
	pages := spec.warmUps() + spec.Samples*max(1, spec.Pages)
	m, err := mapFresh(pages)
	if err != nil {
		return err
	}
	fd, err := m.trap()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(inheritedFirst, []byte{0}, unix.UnixRights(fd.Sysfd()), nil, 0); err != nil {
		return fmt.Errorf("passing the userfaultfd: %w", err)
	}
	if spec.Path == FetchMany {
		return report(m.loadTogether(spec), nil)
	}
	access := func(page int) { m.load(page) }
	if spec.Path == Unprotect {
		for page := range pages {
			m.load(page)
		}
	}
	if spec.Store || spec.Path == Unprotect {
		access = m.store
	}
	return report(timed(spec, 1, func(page int) error {
		access(page)
		return nil
	}))
}

// daemon is D: it serves the faults of P with the help of S.
func daemon(spec Spec) error {
	if err := unix.SetNonblock(inheritedFirst, false); err != nil {
		return fmt.Errorf("making the connection blocking: %w", err)
	}
	n, err := receiveDescriptor(inheritedSecond)
	if err != nil {
		return err
	}
	t := newTrapReader(n, spec.Spin)
	if spec.Path == FetchMany {
		return t.fetchMany(inheritedFirst)
	}
	request, reply, zeros := make([]byte, requestBytes), make([]byte, spec.replyBytes()), make([]byte, PageBytes)
	for {
		f, err := t.next()
		if err != nil {
			return err
		}
		switch {
		case spec.Path == Unprotect && !f.Protected:
			// The preparation, which is not timed.
			err = t.install(f.Addr, zeros, uffd.WriteProtected)
		case spec.Path == Unprotect:
			if err = ask(inheritedFirst, request, reply, spec.Spin); err == nil {
				err = t.unprotect(f.Addr)
			}
		default:
			if err = ask(inheritedFirst, request, reply, spec.Spin); err == nil {
				err = t.install(f.Addr, reply, 0)
			}
		}
		if err != nil {
			return err
		}
	}
}

func receiveDescriptor(socket int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("receiving the userfaultfd: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("the program sent %d control messages instead of one descriptor: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, fmt.Errorf("the program sent %d descriptors instead of one: %w", len(fds), err)
	}
	return fds[0], nil
}

func ask(fd int, request, reply []byte, spin bool) error {
	if err := send(fd, request); err != nil {
		return err
	}
	return receive(fd, reply, spin)
}

// serve is S: it answers requests until the peer is gone. What it streams it has written before, as
// a node that has pages did, and says so with a reply that nobody has asked for.
func serve(spec Spec) error {
	if err := unix.SetNonblock(inheritedFirst, false); err != nil {
		return fmt.Errorf("making the connection blocking: %w", err)
	}
	if spec.Path == FetchMany {
		return serveMany(spec)
	}
	request, reply := make([]byte, requestBytes), make([]byte, spec.replyBytes())
	if spec.Pages > 0 {
		for at := 0; at < len(reply); at += PageBytes {
			reply[at] = 1
		}
		if err := send(inheritedFirst, request); err != nil {
			return err
		}
	}
	for {
		if err := receive(inheritedFirst, request, spec.Spin); err != nil {
			return err
		}
		for rest := reply; len(rest) > 0; {
			n := min(len(rest), writeBytes)
			if err := send(inheritedFirst, rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
	}
}

// client times round trips and streams, and what it installs of them.
func client(spec Spec) error {
	if err := unix.SetNonblock(inheritedFirst, false); err != nil {
		return fmt.Errorf("making the connection blocking: %w", err)
	}
	put := func([]byte) error { return nil }
	if spec.Path == Pipeline {
		var err error
		if put, err = installer(spec.Samples * spec.Pages); err != nil {
			return err
		}
	}
	request, buffer := make([]byte, requestBytes), make([]byte, min(writeBytes, spec.replyBytes()))
	if spec.Pages > 0 {
		if err := receive(inheritedFirst, request, false); err != nil {
			return err
		}
	}
	return report(timed(spec, max(1, spec.Pages), func(int) error {
		if err := send(inheritedFirst, request); err != nil {
			return err
		}
		for left := spec.replyBytes(); left > 0; {
			n := min(left, len(buffer))
			if err := receive(inheritedFirst, buffer[:n], spec.Spin); err != nil {
				return err
			}
			if err := put(buffer[:n]); err != nil {
				return err
			}
			left -= n
		}
		return nil
	}))
}

// toucher times the first stores to memory that nobody traps.
func toucher(spec Spec) error {
	samples := make([]float64, 0, spec.Samples)
	for range spec.Samples {
		m, err := mapFresh(spec.Pages)
		if err != nil {
			return err
		}
		start := time.Now()
		for page := range spec.Pages {
			m.store(page)
		}
		samples = append(samples, microseconds(time.Since(start))/float64(spec.Pages))
		if err := m.unmap(); err != nil {
			return fmt.Errorf("unmapping: %w", err)
		}
	}
	return report(samples, nil)
}

// timed does the operation spec.warmUps() + spec.Samples times, counting from 0, with spec.Gap of
// computing before each time, and returns the times after the warm-ups in microseconds, divided by
// share.
func timed(spec Spec, share int, operation func(i int) error) ([]float64, error) {
	samples := make([]float64, spec.warmUps()+spec.Samples)
	for i := range samples {
		if spec.Gap > 0 {
			Compute(spec.Gap)
		}
		start := time.Now()
		err := operation(i)
		samples[i] = microseconds(time.Since(start)) / float64(share)
		if err != nil {
			return nil, err
		}
	}
	return samples[spec.warmUps():], nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// report writes the samples to standard output, from where Measure reads them.
func report(samples []float64, err error) error {
	if err != nil {
		return err
	}
	if err := binary.Write(os.Stdout, binary.LittleEndian, samples); err != nil {
		return fmt.Errorf("reporting the samples: %w", err)
	}
	return nil
}

func parseReport(r io.Reader, samples int) ([]float64, error) {
	out := make([]float64, samples)
	if err := binary.Read(r, binary.LittleEndian, out); err != nil {
		return nil, fmt.Errorf("reading %d samples: %w", samples, err)
	}
	return out, nil
}
