package dsm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
)

// shakeHands does everything between connecting and the first call. On an error it leaves nothing
// but conn.
func (j *joining) shakeHands(conn *attach.Conn) (*Cluster, error) {
	hello := attach.Hello{Version: attach.Version, PID: uint32(os.Getpid()), Rank: j.rank, Job: j.job, Program: filepath.Base(os.Args[0])}
	if j.job != "" {
		hello.Size = uint32(j.size) // the job without a name has the size that the daemon was told
	}
	if err := tell(conn, attach.AppendHello(nil, &hello)); err != nil {
		return nil, fmt.Errorf("greet the daemon at %s: %w", j.socket, err)
	}
	w, err := j.awaitWelcome(conn)
	if err != nil {
		return nil, err
	}
	files, err := takeFiles(conn, int(w.Reactors))
	if err != nil {
		return nil, err
	}
	r, err := reserve(&w, files)
	if err != nil {
		return nil, err
	}
	trap, page, line, err := handOverTrap(conn, j.socket, &w, r)
	if err != nil {
		return nil, errors.Join(err, r.retire())
	}
	c := &Cluster{
		welcome: w, socket: j.socket, job: j.job, grace: j.grace, lost: j.lost, region: r, trap: trap, page: page,
		allocating: newTurn(),
		mapping:    newTurn(),
		closing:    make(chan struct{}),
		holdings:   holdings{held: map[uint64]*holding{}},
		occupied:   occupied{by: map[uint64]struct{}{}},
		called:     newCalled(),
	}
	c.attendant = newAttendant(c, line)
	return c, nil
}

// takeFiles takes the memory files that come with a Welcome.
func takeFiles(conn *attach.Conn, n int) (files []int, err error) {
	for range n {
		fd, err := conn.TakeFD()
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, fd)
	}
	return files, nil
}

func (j *joining) awaitWelcome(conn *attach.Conn) (attach.Welcome, error) {
	f, err := awaitFrame(conn, j.socket, attach.KindWelcome)
	if err != nil {
		return attach.Welcome{}, err
	}
	w, err := attach.DecodeWelcome(f.Body)
	switch {
	case err != nil:
		return w, fmt.Errorf("the daemon at %s: %w", j.socket, err)
	case w.Version != attach.Version:
		return w, fmt.Errorf("%w: it is version %d at %s, and this program version %d; build the program and dsmd from the same release", ErrVersion, w.Version, j.socket, attach.Version)
	case w.Trap != trapUffd && w.Trap != trapSigsegv:
		return w, fmt.Errorf("%w: the daemon at %s wants the trap %q, and this program knows only %q and %q; start the daemon with --trap uffd",
			ErrNoTrap, j.socket, w.Trap, trapUffd, trapSigsegv)
	case j.size != 0 && int(w.Size) != j.size && j.job == "":
		return w, fmt.Errorf("the environment has %s=%d, and the job of the daemon at %s has %d ranks; unset %s, start the program with `dsmd run`, or give it a job of its own (%s)", envSize, j.size, j.socket, w.Size, envSize, envJob)
	case j.size != 0 && int(w.Size) != j.size:
		return w, fmt.Errorf("job %q was to have %d ranks, and the daemon at %s gave it %d: it is faulty", j.job, j.size, j.socket, w.Size)
	case j.rank != attach.NoRank && w.Rank != uint32(j.rank):
		return w, fmt.Errorf("%w: it gave this program rank %d at %s, and rank %d was asked for; choose a rank below %d that no other program has", ErrRefused, w.Rank, j.socket, j.rank, w.Size)
	}
	return w, nil
}

// handOverTrap opens the trap, passes the daemon its side and that of the second socket, and takes
// the control page.
func handOverTrap(conn *attach.Conn, socket string, w *attach.Welcome, r *region) (trap, *controlpage.Page, *attach.Conn, error) {
	t, err := openTrap(w, r)
	if err != nil {
		return nil, nil, nil, err
	}
	line, theirs, err := attach.Pair()
	if err != nil {
		return nil, nil, nil, errors.Join(err, t.close())
	}
	defer unix.Close(theirs)
	fds, m := t.handover()
	var page *controlpage.Page
	if err = tell(conn, attach.AppendTrap(nil, &m), append(fds, theirs)...); err == nil {
		page, err = awaitReady(conn, socket)
	}
	t.handedOver()
	if err != nil {
		t.close()
		line.Close()
		return nil, nil, nil, fmt.Errorf("hand the page faults to the daemon: %w", err)
	}
	return t, page, line, nil
}

func awaitReady(conn *attach.Conn, socket string) (*controlpage.Page, error) {
	f, err := awaitFrame(conn, socket, attach.KindReady)
	if err != nil {
		return nil, err
	}
	if err := attach.DecodeEmpty(f); err != nil {
		return nil, err
	}
	fd, err := conn.TakeFD()
	if err != nil {
		return nil, err
	}
	return controlpage.Map(fd)
}

// tell sends a frame of the handshake. That the daemon has closed the connection is no error yet:
// it may have refused the program before, and then its reason is what comes to be read next.
func tell(conn *attach.Conn, frame []byte, fds ...int) error {
	if err := conn.Write(frame, fds...); err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	return nil
}

// awaitFrame reads the one frame that a correct daemon sends next, unless it refuses.
func awaitFrame(conn *attach.Conn, socket string, want attach.Kind) (attach.Frame, error) {
	f, err := conn.ReadFrame()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		// A daemon that refuses says so. This one may have been killed the moment before.
		return f, fmt.Errorf("%w: what listened at %s has closed the connection without a word: it has ended, or is it a dsmd? see its log", ErrNoDaemon, socket)
	case err != nil:
		return f, fmt.Errorf("read from the daemon at %s: %w", socket, err)
	case f.Kind == attach.KindRefuse:
		return f, refusal(f, socket)
	case f.Kind == attach.KindLost:
		reason, err := attach.DecodeLost(f.Body)
		return f, fmt.Errorf("%w: %s", ErrLost, errors.Join(err, errors.New(reason)))
	case f.Kind != want:
		return f, fmt.Errorf("the daemon at %s sent %v, %v was due: it is faulty", socket, f.Kind, want)
	}
	return f, nil
}

func refusal(f attach.Frame, socket string) error {
	m, err := attach.DecodeRefuse(f.Body)
	if err != nil {
		return fmt.Errorf("%w at %s: %w", ErrRefused, socket, err)
	}
	why := ErrRefused
	switch m.Code {
	case attach.RefuseVersion:
		why = ErrVersion
	case attach.RefuseTrap:
		why = ErrNoTrap
	}
	return fmt.Errorf("%w: %s (daemon at %s)", why, m.Reason, socket)
}
