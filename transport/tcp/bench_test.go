package tcp_test

import (
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"
)

// BenchmarkRoundTrip times a request of 16 bytes and its answer, which is as short or brings a
// page, over loopback. Transport is this package; Bare is two loops over bare sockets that know the
// length of what comes, the floor. Spin polls without end, Sleep waits in the kernel: the transport
// in poll(2) on WaitFD, the bare loop in a blocking receive. Compare figures of one run only.
func BenchmarkRoundTrip(b *testing.B) {
	const page = 4096
	for _, answer := range []struct {
		name  string
		bytes int
	}{{"16B", 0}, {"Page", page}} {
		b.Run(answer.name+"/Transport/Spin", func(b *testing.B) { benchTransport(b, answer.bytes, false) })
		b.Run(answer.name+"/Bare/Spin", func(b *testing.B) { benchBare(b, 16+answer.bytes, true) })
		b.Run(answer.name+"/Transport/Sleep", func(b *testing.B) { benchTransport(b, answer.bytes, true) })
		b.Run(answer.name+"/Bare/Sleep", func(b *testing.B) { benchBare(b, 16+answer.bytes, false) })
	}
}

// BenchmarkByHand times the same request and answer with both nodes on one thread, in turns: what
// the code costs, whatever else runs on the machine, and without any waiting. OneWay sends pages
// that nobody answers.
func BenchmarkByHand(b *testing.B) {
	for _, test := range []struct {
		name           string
		bytes          int
		oneWay, secure bool
	}{{name: "16B"}, {name: "Page", bytes: 4096}, {name: "OneWay", bytes: 4096, oneWay: true}, {name: "PageUnderTLS", bytes: 4096, secure: true}} {
		b.Run(test.name, func(b *testing.B) {
			secure := plain
			if test.secure {
				secure = underTLS(b)
			}
			benchByHand(b, newClusterWith(b, 2, max(test.bytes, 64), 0, secure), test.bytes, test.oneWay)
		})
	}
}

func benchByHand(b *testing.B, nodes []*tcp.Transport, pageBytes int, oneWay bool) {
	server := &echo{tr: nodes[0], peer: 1, answer: !oneWay}
	if pageBytes > 0 {
		server.page = make([]byte, pageBytes)
	}
	client := &echo{tr: nodes[1], peer: 0}
	control := make([]byte, 16)
	for _, e := range []*echo{server, client} { // to take over the connection
		if _, err := e.tr.Poll(e, 64); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	before, rounds := processorTime(b), 0
	for ; b.Loop(); rounds++ {
		var payload transport.Payload
		if oneWay {
			payload = client.tr.Lease(0)
		}
		client.send(control, payload)
		for before := server.frames; server.frames == before && server.err == nil; {
			if _, err := server.tr.Poll(server, 64); err != nil {
				b.Fatal(err)
			}
		}
		for before := client.frames; !oneWay && client.frames == before && client.err == nil; {
			if _, err := client.tr.Poll(client, 64); err != nil {
				b.Fatal(err)
			}
		}
		if oneWay { // It hears of what has arrived.
			if _, err := client.tr.Poll(client, 64); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(rounds), "cpu-ns/op")
	if server.err != nil || client.err != nil {
		b.Fatal(server.err, client.err)
	}
}

// processorTime is how much this process has computed, in nanoseconds. Unlike the time, it does not
// grow while others have the core.
func processorTime(b *testing.B) int64 {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// echo is one side of the round trips over a Transport.
type echo struct {
	tr     *tcp.Transport
	peer   transport.NodeID
	page   []byte // what the answer brings; nil: nothing
	answer bool
	sleep  bool
	frames int
	err    error
}

func (e *echo) Frame(_ transport.NodeID, control []byte, _ transport.Payload) {
	e.frames++
	if !e.answer {
		return
	}
	var payload transport.Payload
	if e.page != nil {
		payload = e.tr.Lease(e.peer)
		copy(payload.Bytes(), e.page)
	}
	e.send(control, payload)
}

func (e *echo) PeerUp(transport.NodeID)                {}
func (e *echo) PeerDown(_ transport.NodeID, err error) { e.err = err }

func (e *echo) send(control []byte, payload transport.Payload) {
	if err := e.tr.Send(e.peer, control, payload); err != nil {
		e.err = err
	}
	e.tr.Flush()
}

// await polls until so many frames have come.
func (e *echo) await(frames int) error {
	for e.frames < frames && e.err == nil {
		n, err := e.tr.Poll(e, 64)
		if err != nil {
			return err
		}
		if n == 0 && e.sleep && !e.tr.Arm() {
			fds := []unix.PollFd{{Fd: int32(e.tr.WaitFD()), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
				return err
			}
		}
	}
	return e.err
}

func benchTransport(b *testing.B, pageBytes int, sleep bool) {
	nodes := newCluster(b, 2, max(pageBytes, 64), 0)
	server := &echo{tr: nodes[0], peer: 1, answer: true, sleep: sleep}
	if pageBytes > 0 {
		server.page = make([]byte, pageBytes)
	}
	client := &echo{tr: nodes[1], peer: 0, sleep: sleep}
	const warmUp = 100
	rounds := 0
	b.ReportAllocs()
	runBoth(b, func() error { return server.await(warmUp + b.N) }, func() error {
		control := make([]byte, 16)
		for range warmUp + b.N {
			if rounds == warmUp {
				b.ResetTimer()
			}
			rounds++
			client.send(control, nil)
			if err := client.await(rounds); err != nil {
				return err
			}
		}
		b.StopTimer()
		return nil
	})
}

func benchBare(b *testing.B, answerBytes int, spin bool) {
	client, server := bareSockets(b)
	const warmUp = 100
	runBoth(b, func() error {
		request, answer := make([]byte, 16), make([]byte, answerBytes)
		for range warmUp + b.N {
			if err := receiveAll(server, request, spin); err != nil {
				return err
			}
			if err := sendAll(server, answer); err != nil {
				return err
			}
		}
		return nil
	}, func() error {
		request, answer := make([]byte, 16), make([]byte, answerBytes)
		for i := range warmUp + b.N {
			if i == warmUp {
				b.ResetTimer()
			}
			if err := sendAll(client, request); err != nil {
				return err
			}
			if err := receiveAll(client, answer, spin); err != nil {
				return err
			}
		}
		b.StopTimer()
		return nil
	})
}

// runBoth runs the two sides, each on a thread of its own as the daemon does.
func runBoth(b *testing.B, server, client func() error) {
	b.Helper()
	var serving sync.WaitGroup
	serving.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := server(); err != nil {
			b.Error(err)
		}
	})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := client(); err != nil {
		b.Fatal(err)
	}
	serving.Wait()
}

// bareSockets is a connection over loopback as two blocking descriptors.
func bareSockets(b *testing.B) (client, server int) {
	b.Helper()
	listener := transporttest.Listen(b)
	dialled, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		b.Fatal(err)
	}
	var fds [2]int
	for i, conn := range []net.Conn{dialled, accepted} {
		if fds[i], err = netio.Detach(conn.(*net.TCPConn)); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { unix.Close(fds[i]) })
		if err := unix.SetNonblock(fds[i], false); err != nil {
			b.Fatal(err)
		}
	}
	return fds[0], fds[1]
}

func sendAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

func receiveAll(fd int, into []byte, spin bool) error {
	for len(into) > 0 {
		var n int
		var err error
		if spin {
			var errno unix.Errno
			if n, errno = netio.Recv(fd, into); errno == unix.EAGAIN {
				continue
			} else if errno != 0 {
				err = errno
			}
		} else {
			n, err = unix.Read(fd, into)
		}
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		into = into[n:]
	}
	return nil
}
