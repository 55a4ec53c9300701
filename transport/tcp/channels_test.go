package tcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/tcp/tcptest"
	"dsmd/transport/transporttest"
)

// laned divides the listeners of nodes into channels: the result has, for each channel, the
// configurations of its nodes.
func laned(t testing.TB, configs []tcp.Config, channels int) [][]tcp.Config {
	t.Helper()
	all := make([][]tcp.Config, channels)
	if channels == 1 {
		return [][]tcp.Config{configs}
	}
	for _, c := range configs {
		for channel, l := range tcp.Channels(c.Listener, channels, func(line string) { t.Log(line) }) {
			t.Cleanup(func() { l.Close() }) // of one that no transport has
			own := c
			own.Listener, own.Channel, own.Channels = l, channel, channels
			all[channel] = append(all[channel], own)
		}
	}
	return all
}

// TestConformanceOfChannels: a channel is a transport as any other, with others beside it.
func TestConformanceOfChannels(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
		all := laned(t, configsWith(t, o.Nodes, o.PageBytes, o.MaxQueuedBytes, plain), 2)
		tcptest.Connect(t, all[0])
		return asInterface(tcptest.Connect(t, all[1]))
	}, transporttest.Beside)
}

// TestChannels: what is sent on a channel arrives there and nowhere else, under TLS.
func TestChannels(t *testing.T) {
	t.Parallel()
	const channels = 3
	all := laned(t, configsWith(t, 2, 64, 1<<20, underTLS(t)), channels)
	var nodes [channels][]*tcp.Transport
	for channel := range channels {
		nodes[channel] = tcptest.Connect(t, all[channel])
	}
	for channel := range channels {
		if err := nodes[channel][1].Send(0, []byte{byte(channel)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for channel := range channels {
		h := &heard{}
		for end := time.Now().Add(patience.Or(10 * time.Second)); len(h.frames) == 0 && time.Now().Before(end); {
			for _, node := range nodes[channel] {
				node.Flush()
				if _, err := node.Poll(h, 8); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(h.frames) != 1 || !bytes.Equal(h.frames[0], []byte{byte(channel)}) {
			t.Errorf("channel %d has heard %v", channel, h.frames)
		}
	}
}

type heard struct{ frames [][]byte }

func (h *heard) PeerUp(transport.NodeID)          {}
func (h *heard) PeerDown(transport.NodeID, error) {}
func (h *heard) Frame(_ transport.NodeID, b []byte, _ transport.Payload) {
	h.frames = append(h.frames, bytes.Clone(b))
}

// TestOtherChannels: nodes of different numbers of channels refuse each other, in words that both
// sides understand, whichever has more of them, and whichever channel calls.
func TestOtherChannels(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ lanes0, lanes1, calls int }{{1, 2, 0}, {1, 2, 1}, {2, 1, 0}, {2, 4, 1}, {2, 4, 3}, {4, 2, 1}} {
		t.Run(fmt.Sprintf("%d and %d, channel %d", test.lanes0, test.lanes1, test.calls), func(t *testing.T) {
			secure := plain
			if test.calls > 0 {
				secure = underTLS(t)
			}
			configs := configsWith(t, 2, 64, 1<<20, secure)
			logged := make(chan string, 100)
			configs[0].Log = func(line string) { logged <- line }
			ctx, cancel := context.WithTimeout(t.Context(), patience.Or(10*time.Second))
			var waiting sync.WaitGroup
			defer waiting.Wait()
			defer cancel()
			for _, c := range laned(t, configs[:1], test.lanes0) {
				node := newNode(t, c[0])
				waiting.Go(func() { _ = node.Connect(ctx) }) // another node 1 may come
			}
			node := newNode(t, laned(t, configs[1:], test.lanes1)[test.calls][0])
			const words = "it runs with --reactors %d, this node with %d; give all daemons of a cluster the same number"
			err := node.Connect(ctx)
			if want := fmt.Sprintf(words, test.lanes0, test.lanes1); !errors.Is(err, tcp.ErrRefused) || !strings.Contains(err.Error(), want) {
				t.Errorf("the calling node says %v, want %q", err, want)
			}
			if line, want := <-logged, fmt.Sprintf(words, test.lanes1, test.lanes0); !strings.Contains(line, want) {
				t.Errorf("the called node logs %q, want %q", line, want)
			}
		})
	}
}

// newNode makes a node, which ends with the test.
func newNode(t *testing.T, c tcp.Config) *tcp.Transport {
	t.Helper()
	node, err := tcp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	return node
}

// TestStrangersAtChannels: callers who say nothing, however many, keep nobody out. Who says
// something else, byte by byte or at once, is sent to the first channel as it came.
func TestStrangersAtChannels(t *testing.T) {
	base := transporttest.Listen(t)
	channels := tcp.Channels(base, 2, func(line string) { t.Log(line) })
	dial := func(says string) net.Conn {
		conn, err := net.Dial("tcp", base.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		for i := range len(says) {
			if _, err := conn.Write([]byte(says[i : i+1])); err != nil {
				t.Fatal(err)
			}
		}
		return conn
	}
	var silent []net.Conn
	for range 100 {
		silent = append(silent, dial(""))
	}
	for _, test := range []struct {
		says, arrives string
		channel       int
	}{
		{"dsmdchn\x01x", "x", 1},
		{"dsmdchn\x00x", "x", 0},
		{"dsmdchn\x02x", "x", 0}, // there is none
		{"dsmdtcp\x01x", "dsmdtcp\x01x", 0},
		{"GET / HTTP", "GET / HTTP", 0},
		{"\x16\x03\x01", "\x16\x03\x01", 0},
	} {
		dial(test.says)
		conn, err := channels[test.channel].Accept()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(test.arrives))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != test.arrives {
			t.Errorf("of %q arrives %q, %v", test.says, got, err)
		}
		conn.Close()
	}
	var closing sync.WaitGroup
	for _, l := range channels { // while callers wait, and one Accept
		closing.Go(func() { l.Close() })
	}
	closing.Go(func() { channels[0].Accept() })
	closing.Wait()
	for i, conn := range silent {
		if err := conn.SetReadDeadline(time.Now().Add(patience.Or(10 * time.Second))); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("caller %d is still there when all channels are closed: %v", i, err)
		}
	}
	if l, err := net.Listen("tcp", base.Addr().String()); err != nil {
		t.Errorf("the port is not free when all channels are closed: %v", err)
	} else {
		l.Close()
	}
}
