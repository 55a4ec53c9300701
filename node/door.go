package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/netio"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// door is where programs connect.
type door struct {
	poller *netio.Poller
	fd     int // the listening socket, non-blocking
	spare  int // a descriptor set aside, see acceptSpare; -1: there is none
	// peer tells who has connected, as the kernel knows it. attach.Peer, but in tests of other
	// users.
	peer func(fd int) (pid int, uid uint32, err error)
	take func(fd int) (int, error) // attach.Accept, but in tests

	// fault is why programs have to wait, as the log says; "": none has to. The socket is watched
	// again at retryAt; 0: it is watched.
	fault   string
	retryAt time.Duration
}

// doorPause is how long the socket is not watched when a program can neither be let in nor be
// turned away: it would keep the reactor awake for as long as the program waits.
const doorPause = 100 * time.Millisecond

// newDoor makes a door, which is closed until open is called. That of a reactor that does not lead
// has no socket, and is never opened.
func newDoor(poller *netio.Poller, socket *net.UnixListener) (*door, error) {
	if socket == nil {
		return &door{poller: poller, fd: -1, spare: -1}, nil
	}
	fd, err := detachListener(socket)
	if err != nil {
		return nil, fmt.Errorf("node: the socket for programs: %w", err)
	}
	d := &door{poller: poller, fd: fd, peer: attach.Peer, take: attach.Accept}
	d.openSpare()
	return d, nil
}

// detachListener returns a descriptor of its own for the listening socket. The listener itself
// stays open, so that closing it at the end removes a socket file.
func detachListener(l *net.UnixListener) (int, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(own uintptr) { fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	if dupErr != nil {
		return -1, dupErr
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// open lets programs in.
func (d *door) open() error {
	if err := d.poller.Add(d.fd, tokenAccept); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return nil
}

func (d *door) close() {
	d.closeSpare()
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
}

// openSpare sets a descriptor aside for acceptSpare. If there is none, the next acceptSpare does
// without.
func (d *door) openSpare() {
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	d.spare = fd
}

func (d *door) closeSpare() {
	if d.spare >= 0 {
		unix.Close(d.spare)
		d.spare = -1
	}
}

// pause has programs wait for a while, because of an error that is none of theirs.
func (d *door) pause(now time.Duration, why error, log *zap.Logger) {
	if text := why.Error(); d.fault != text {
		d.fault = text
		log.Warn("programs that connect have to wait: the system does not let this daemon have their connections", zap.Error(why))
	}
	if d.retryAt == 0 {
		if err := d.poller.Remove(d.fd); err != nil {
			log.Error("the socket for programs", zap.Error(err))
		}
	}
	d.retryAt = now + doorPause
}

// goOn notes that no program has to wait. A descriptor is set aside again if none was: who has
// waited comes first.
func (d *door) goOn(log *zap.Logger) {
	if d.spare < 0 {
		d.openSpare()
	}
	if d.fault != "" {
		d.fault = ""
		log.Info("programs that connect have to wait no longer")
	}
}

// tick watches the socket again after a pause.
func (d *door) tick(now time.Duration, log *zap.Logger) {
	if d.retryAt == 0 || now < d.retryAt {
		return
	}
	if err := d.open(); err != nil {
		d.pause(now, err, log)
		return
	}
	d.retryAt = 0
}

// tickIn is for how long the reactor may sleep for the sake of tick.
func (d *door) tickIn(now time.Duration) time.Duration {
	if d.retryAt == 0 {
		return netio.Forever
	}
	return max(0, d.retryAt-now)
}

// isWaitedAt is whether a program has connected. The system has a descriptor ready before it looks,
// and where there is none it says so although nobody waits.
func (d *door) isWaitedAt() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil
}

// accept takes programs that have connected. For those that it leaves the poller calls again.
func (s *programs) accept() (any bool) {
	for range acceptsPerTurn {
		fd, err := s.door.take(s.door.fd)
		switch {
		case err == nil:
			s.add(fd)
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			err = s.acceptSpare()
		}
		switch {
		case err == nil:
			any = true
		case errors.Is(err, unix.EAGAIN) || !s.door.isWaitedAt():
			s.door.goOn(s.log)
			return any
		default:
			s.door.pause(s.drive.clock.now, err, s.log)
			return any
		}
	}
	return any
}

// acceptSpare turns a program away when there is no descriptor left to accept it with, by giving up
// a spare one for the moment.
func (s *programs) acceptSpare() error {
	s.door.closeSpare()
	fd, err := s.door.take(s.door.fd)
	if err == nil {
		s.turnAway(s.newProgram(fd), "this daemon has too many open files; raise the limit (ulimit -n) and start it again")
	}
	s.door.openSpare()
	return err
}

// add takes in a program that has connected.
func (s *programs) add(fd int) {
	p := s.newProgram(fd)
	pid, uid, err := s.door.peer(fd)
	p.pid = pid
	switch {
	case err != nil:
		s.turnAway(p, "the daemon cannot tell whose process this is: "+err.Error())
		return
	case int(uid) != os.Geteuid() && uid != 0:
		// Whoever attaches reads and writes the memory of everybody else in the job. There is no
		// warning: "dsmd top" of any user asks all daemons of the machine, again and again.
		sendAway(p, fmt.Sprintf("this daemon belongs to user %d and you are user %d; run the program as the same user", os.Geteuid(), uid))
		return
	case len(s.byID) >= maxPrograms && !s.makeRoom():
		s.turnAway(p, fmt.Sprintf("%d programs are attached already", len(s.byID)))
		return
	}
	if err := s.door.poller.Add(fd, int32(p.id)); err != nil {
		s.turnAway(p, err.Error())
		return
	}
	s.byID[p.id] = p
	s.serve(p, netio.Readiness{Readable: true})
}

// makeRoom ends the oldest of the connections that have not attached, if there is one: whoever
// connects and says nothing, or not all that it should, must not keep others out for ever.
func (s *programs) makeRoom() bool {
	var oldest *program
	for _, p := range s.byID {
		if !p.ranked && (oldest == nil || p.id < oldest.id) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	s.remove(oldest, fmt.Errorf("%d connections are open, and this one is the oldest of those that are not attached", len(s.byID)))
	return true
}

// turnAway refuses a program that was not added, and says so.
func (s *programs) turnAway(p *program, reason string) {
	s.log.Warn("program refused", zap.Int("pid", p.pid), zap.String("reason", reason))
	sendAway(p, reason)
}

// sendAway tells a program that was not added why, and parts with it.
func sendAway(p *program, reason string) {
	// A fresh socket takes one small frame; if not, the program sees the end of the connection.
	_, _ = attach.Send(p.fd, attach.AppendRefuse(nil, &attach.Refuse{Code: attach.RefuseOther, Reason: reason}))
	p.close()
}
