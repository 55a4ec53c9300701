package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A daemon may have several Transports, each for a part of what it says, over one port: channels.
// Who has several says first for which channel it calls, in channelBytes bytes, before anything
// else, TLS included. That is no secret, and believed only as far as the channel then believes the
// caller. Nodes of different numbers of channels meet in a handshake all the same, and refuse each
// other there.

// MaxChannels bounds the channels of a listener.
const MaxChannels = 64

// channelMark begins what a caller says; the number of the channel follows, in a byte.
const channelMark = "dsmdchn"

const channelBytes = len(channelMark) + 1

// channel is one of the listeners of Channels.
type channel struct {
	*channels
	conns chan net.Conn
	once  sync.Once
	ended chan struct{} // closed by Close
}

// channels is what the channels of a listener share.
type channels struct {
	base    net.Listener
	log     func(line string)
	callers lobby
	all     []*channel
	done    chan struct{} // closed when base accepts no more

	mu   sync.Mutex
	open int // channels that are not closed; guarded by mu
}

// Channels divides those who call a listener among n others, 2 to MaxChannels, by the channel that
// they ask for (Config.Channel). Who asks for none of them is sent to the first, which finds out
// what is wrong. It takes over base, which is closed when all of them are. log receives lines for
// people.
func Channels(base net.Listener, n int, log func(line string)) []net.Listener {
	l := &channels{base: base, log: log, done: make(chan struct{}), open: n}
	var list []net.Listener
	for range n {
		x := &channel{channels: l, conns: make(chan net.Conn), ended: make(chan struct{})}
		l.all = append(l.all, x)
		list = append(list, x)
	}
	go l.accept()
	return list
}

// accept answers whoever connects, until the listener is closed.
func (l *channels) accept() {
	defer close(l.done)
	var asking sync.WaitGroup
	defer asking.Wait()
	for pause := firstPause; ; {
		conn, err := l.base.Accept()
		if err != nil {
			if l.closed() {
				return
			}
			l.log(fmt.Sprintf("tcp: accept on %v: %v", l.base.Addr(), err))
			time.Sleep(pause) // out of descriptors, say
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstPause
		l.callers.enter(conn)
		if l.closed() { // perhaps after all who had entered were shown the door
			conn.Close()
		}
		asking.Go(func() {
			defer l.callers.leave(conn)
			l.direct(conn)
		})
	}
}

// closed reports whether all channels are.
func (l *channels) closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open == 0
}

// direct gives a caller to the channel that it asks for.
func (l *channels) direct(conn net.Conn) {
	number, err := takeChannel(conn)
	if err != nil {
		conn.Close()
		return
	}
	if number >= len(l.all) {
		number = 0
	}
	x := l.all[number]
	select {
	case x.conns <- conn:
	case <-x.ended:
		conn.Close()
	}
}

// takeChannel takes what a caller says first if that is for which channel it calls. Of one who says
// anything else it takes nothing, and returns 0.
func takeChannel(conn net.Conn) (number int, err error) {
	socket, is := conn.(syscall.Conn)
	if !is {
		return 0, nil // the handshake says what is wrong with it
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		err = conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	}
	if err != nil {
		return 0, err
	}
	var said [channelBytes]byte
	n := 0
	err = raw.Read(func(fd uintptr) bool {
		var failed error
		n, _, failed = unix.Recvfrom(int(fd), said[:], unix.MSG_PEEK)
		if errors.Is(failed, unix.EAGAIN) {
			return false // it waits for more
		}
		n = max(n, 0) // what fails here fails in the handshake, too, which tells
		return n == 0 || n == channelBytes || string(said[:n]) != channelMark[:n]
	})
	if err == nil && n == channelBytes && string(said[:len(channelMark)]) == channelMark {
		_, err = io.ReadFull(conn, said[:])
		number = int(said[len(channelMark)])
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	return number, err
}

// Accept implements net.Listener.
func (x *channel) Accept() (net.Conn, error) {
	select {
	case conn := <-x.conns:
		return conn, nil
	case <-x.ended:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (x *channel) Addr() net.Addr { return x.base.Addr() }

// Close implements net.Listener.
func (x *channel) Close() (err error) {
	x.once.Do(func() {
		close(x.ended)
		x.mu.Lock()
		x.open--
		last := x.open == 0
		x.mu.Unlock()
		if last {
			err = x.base.Close()
			x.callers.close()
			<-x.done
		}
	})
	return err
}

// close shows everybody the door.
func (l *lobby) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, caller := range slices.Clone(l.callers) {
		caller.Close()
	}
}

// askFor says to which channel this caller wants, if the other side has several.
func askFor(conn net.Conn, channel, channels int) error {
	if channels <= 1 {
		return nil
	}
	_, err := conn.Write(append([]byte(channelMark), byte(channel)))
	return err
}
