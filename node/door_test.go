package node

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/attach"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

// TestNobodyCanBeLetIn: the system refuses to let programs in that connect. They wait, and the node
// serves others. It says what is wrong, once each time, and tries again now and then until it can.
func TestNobodyCanBeLetIn(t *testing.T) {
	for _, refusal := range []unix.Errno{unix.ENOBUFS, unix.EMFILE, unix.ENFILE, unix.EPERM} {
		t.Run(fmt.Sprint(refusal), func(t *testing.T) {
			var refuses atomic.Bool // from the next time on that somebody is to be let in
			var tries atomic.Int64
			refusing := false // this time
			core, logs := observer.New(zapcore.InfoLevel)
			c := start(t, setup{nodes: 1, ranks: 4, change: func(cfg *Config) { cfg.Log = zap.New(core) }, before: func(n *Node) {
				d := n.programs.door
				d.take = func(fd int) (int, error) {
					tries.Add(1)
					// Without a spare descriptor it is the second try, with the spare one.
					if d.spare >= 0 {
						refusing = refuses.Load()
					}
					if refusing {
						return -1, refusal
					}
					return attach.Accept(fd)
				}
			}})
			m := c.members[0]
			p := m.join()
			for round := 1; round <= 2; round++ {
				refuses.Store(true)
				tries.Store(0)
				begun := time.Now()
				conn := m.dial()
				write(t, conn, hello(attach.NoRank))
				for time.Since(begun) < 3*doorPause {
					p.sync()
				}
				eventually(t, "it is tried again", func() bool { return tries.Load() > 2 })
				// Two tries each time are with the spare descriptor, and without.
				tried, within := tries.Load(), time.Since(begun)
				if most := 2 * (int64(within/doorPause) + 2); tried > most {
					t.Errorf("%d tries within %v", tried, within)
				}
				refuses.Store(false)
				if f := read(t, conn); f.Kind != attach.KindWelcome {
					t.Errorf("who has waited is told %v", f.Kind)
				}
				conn.Close()
				eventually(t, "all is said", func() bool { return logs.FilterMessageSnippet("wait no longer").Len() == round })
				said := logs.FilterMessageSnippet("have to wait: ").All()
				if len(said) != round || said[0].ContextMap()["error"] != refusal.Error() {
					t.Errorf("in round %d it is said %d times: %v", round, len(said), said)
				}
			}
		})
	}
}

// TestTurnedAway: programs that come when there is one descriptor left are told so, and nothing is
// said of programs that wait.
func TestTurnedAway(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	c := start(t, setup{nodes: 1, change: func(cfg *Config) { cfg.Log = zap.New(core) }, before: func(n *Node) {
		d := n.programs.door
		d.take = func(fd int) (int, error) {
			if d.spare >= 0 {
				return -1, unix.EMFILE
			}
			return attach.Accept(fd)
		}
	}})
	for range 3 {
		conn := c.members[0].dial()
		f := read(t, conn)
		r, err := attach.DecodeRefuse(f.Body)
		if f.Kind != attach.KindRefuse || err != nil {
			t.Fatalf("it is told %v, %v", f.Kind, err)
		}
		wantRefused(t, &r, attach.RefuseOther, "ulimit -n")
		closedBy(t, conn)
	}
	c.stop()
	if said := logs.FilterMessageSnippet("wait").All(); len(said) > 0 {
		t.Errorf("it is said that %v", said)
	}
}

// TestOthersAreServedAtTheDoor: programs of another user connect as fast as they are sent away, so
// that somebody waits at all times. Those that are attached are served all the same.
func TestOthersAreServedAtTheDoor(t *testing.T) {
	var crowded atomic.Bool
	var came atomic.Int64
	c := start(t, setup{nodes: 1, before: func(n *Node) {
		d := n.programs.door
		d.take = func(fd int) (int, error) {
			if !crowded.Load() {
				return attach.Accept(fd)
			}
			came.Add(1)
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				unix.Close(pair[1])
			}
			return pair[0], err
		}
		d.peer = func(fd int) (int, uint32, error) {
			if crowded.Load() {
				return 1, uint32(os.Geteuid() + 1), nil
			}
			return attach.Peer(fd)
		}
	}})
	t.Cleanup(func() { crowded.Store(false) })
	m := c.members[0]
	p := m.join()
	crowded.Store(true)
	m.dial()
	eventually(t, "they come", func() bool { return came.Load() > 0 })
	for range 100 {
		p.sync()
	}
	if n := came.Load(); n < 100 {
		t.Errorf("only %d of them came meanwhile", n)
	}
	crowded.Store(false)
	c.quiet()
}
