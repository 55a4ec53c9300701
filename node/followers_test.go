package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"dsmd/internal/agreement"
	"dsmd/pagetable"
)

// onReactor has a function called on a reactor of a node, and waits until it was.
func (c *parted) onReactor(node, reactor int, f func(*Node)) {
	c.Helper()
	o := c.members[node].node.partition.all[reactor]
	callOn(c, o, func() { f(o) })
}

// inReactor has a function called on the reactor of a node that has one, and waits until it was.
func (m *member) inReactor(f func()) {
	m.Helper()
	callOn(m, m.node, f)
}

func callOn(t testing.TB, reactor *Node, f func()) {
	t.Helper()
	done := make(chan struct{})
	reactor.news.tell(func() { f(); close(done) })
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the reactor does not do what it is told")
	}
}

// TestPartedLoss: a peer is lost when the connection of one reactor to it is. All reactors of the
// others go on without it, with the memory of all stripes, and what is bound after that is new.
func TestPartedLoss(t *testing.T) {
	const lost = 2
	for _, loss := range []struct {
		name string
		make func(c *parted)
	}{
		{"a connection ends", func(c *parted) {
			c.onReactor(0, 1, func(o *Node) { o.net.Disconnect(lost, errors.New("the test ends it")) })
		}},
		{"who leads is heard elsewhere", func(c *parted) {
			c.onReactor(lost, 1, func(o *Node) { o.members.out.tell(0, []byte{agreement.Mark}) })
		}},
		{"the process ends", func(c *parted) { c.members[lost].cancel() }},
	} {
		t.Run(loss.name, func(t *testing.T) {
			c := startPartedAs(t, 3, 3, func(cfg *Config) { cfg.Survive = true }, nil)
			a, b, doomed := c.join(0), c.join(1), c.join(lost)
			first := a.bind("m", 4*stripe)
			for _, p := range []*prog{b, doomed} {
				if p.bind("m", 4*stripe) != first {
					t.Fatal("the same memory lies elsewhere")
				}
			}
			for page := first; page < first+4*stripe; page += stripe {
				a.settled(c.touch(a, 0, page, true, func(x []byte) { x[0] = byte(page) }))
				doomed.settled(c.touch(doomed, lost, page, false, func([]byte) {}))
			}
			loss.make(c)
			for _, node := range []int{0, 1} {
				m := c.members[node]
				eventually(t, "the others have gone on", func() bool {
					s := m.ask()
					return s["recoveries"] == 1 && s["members"] == 2
				})
			}
			if err := c.members[lost].ended(); loss.name != "the process ends" && (err == nil || !strings.Contains(err.Error(), "without this one")) {
				t.Errorf("the node that is lost ends with %v", err)
			}
			for page := first; page < first+4*stripe; page += stripe {
				b.settled(c.touch(b, 1, page, true, func(x []byte) {
					if x[0] != byte(page) {
						t.Errorf("page %d is %d", page, x[0])
					}
				}))
			}
			more := b.bind("more", 4*stripe)
			for page := more; page < more+4*stripe; page += stripe {
				b.settled(c.touch(b, 1, page, false, func(x []byte) {
					if x[0] != 0 {
						t.Errorf("page %d begins as %d", page, x[0])
					}
				}))
			}
			// What is said of a process that is lost, or was before another came, counts no more.
			c.onReactor(0, 0, func(n *Node) {
				n.members.lostElsewhere(lost, 0, errors.New("said late"))
				n.members.followers.came[1] = 5
				n.members.lostElsewhere(1, 4, errors.New("said late"))
			})
			a.settled(c.touch(a, 0, pagetable.Page(more), true, func([]byte) {}))
			if s := c.members[0].ask(); s["nodes_lost"] != 1 {
				t.Errorf("%d nodes are lost", s["nodes_lost"])
			}
		})
	}
}
