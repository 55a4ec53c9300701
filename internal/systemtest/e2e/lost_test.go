package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestLostPages kills a daemon that had the only copies of pages, over each trap: programs catch
// what they touch of them, again and again, and go on with the rest and with each other. Memory
// that is freed and allocated again is as new.
func TestLostPages(t *testing.T) {
	t.Parallel()
	withEachWay(t, func(t *testing.T, flags []string) {
		c := serve(t, 3, 3, append(flags, "--survive")...)
		first, second, doomed := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3), join(t, c, 2, 2, 3)
		left := []*testcluster.Process{first, second}
		for _, p := range append(left, doomed) {
			p.Do(t, "ok", "alloc data 60")
		}
		const words = 512                     // of a page
		doomed.Do(t, "ok", "put data 512 7")  // page 1: nobody else has it
		doomed.Do(t, "ok", "put data 1024 8") // page 2: somebody reads it
		first.Do(t, "8", "get data 1024")
		first.Do(t, "ok", "put data 0 9")
		first.Do(t, "9", "get data 0")
		c.Daemons[2].Kill(t)
		for _, d := range c.Daemons[:2] {
			d.AwaitLog(t, "recovery is over")
		}
		for range 2 {
			for _, p := range left {
				p.Do(t, "lost with node 2: byte 4096 of data", "get data 512")
				p.Do(t, "lost with node 2: byte 4104 of data", "put data 513 1")
				p.Do(t, "lost with node 2: byte 4096 of data", "fill data 9")
				p.Do(t, "8", "get data 1024")
			}
		}
		second.Do(t, "ok", "put data 1024 10")
		first.Do(t, "10", "get data 1024")
		c.Daemons[0].AwaitLog(t, `"allocation": "data"`)
		if said := first.Ask(t, "prefetch data 1"); !strings.Contains(said, "a node is lost: node 2") {
			t.Errorf("a prefetch of memory of which pages are lost ends with %q", said)
		}
		if said := first.Ask(t, "barrier"); !strings.Contains(said, "a node is lost: node 2") || !strings.Contains(said, "with rank 2") {
			t.Errorf("the barrier of all ranks ends with %q", said)
		}
		for _, p := range left {
			p.Say(t, "survivors")
		}
		for _, p := range left {
			p.Expect(t, "[0 1] 2")
		}
		for _, p := range left {
			p.Do(t, "ok", "free data")
		}
		for _, p := range left {
			p.Do(t, "ok", "alloc data 60")
			p.Do(t, "ok", "zero data")
		}
		first.Do(t, "ok", "fill data 77")
		second.Do(t, "ok", "check data 77")
	})
}
