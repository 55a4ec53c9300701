package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"dsmd/internal/attach"
)

// TestCloseHangs: what programs have given can't be closed, because a file system does not answer.
// The node answers other programs, and ends.
func TestCloseHangs(t *testing.T) {
	hangs, begun := make(chan struct{}), make(chan struct{}, 100)
	t.Cleanup(func() { close(hangs) }) // when the node has ended
	c := start(t, setup{nodes: 1, ranks: 4, before: func(n *Node) {
		n.programs.replies.closer.hold = func() {
			begun <- struct{}{}
			<-hangs
		}
	}})
	file, err := os.Create(filepath.Join(t.TempDir(), "given"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	other := c.members[0].join()
	page := other.bind("x", 2)
	other.store(page, 0, 7)
	for name, gives := range map[string]func(p *prog) (descriptors int){
		"it leaves with a file": func(p *prog) int {
			p.give(file)
			return 1
		},
		"a checkpoint": func(p *prog) int {
			s := p.save(1, 0, page, 2)
			s.ok(s.call(false, true))
			s.finish()
			return 2
		},
		"stacks": func(p *prog) int {
			p.do(attach.Call{Op: attach.OpStacks, Object: uint64(p.give(file)), Count: 1})
			return 1
		},
	} {
		p := c.members[0].joinAsked(attach.NoRank).prog
		given := 1 + gives(p)
		p.leave()
		for i := range given {
			select {
			case <-begun:
			case <-time.After(patience):
				t.Fatalf("%s: of %d descriptors that it gave %d are left to the closer", name, given, i)
			}
		}
		other.wantLoad(page, 0, 7)
		other.sync()
		if len(begun) > 0 {
			t.Errorf("%s: it gave %d descriptors, and %d more are closed", name, given, len(begun))
		}
	}
}
