package e2e

import (
	"os"
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// returner is a keeper whose lost pages go back to the last checkpoint.
var returner = testcluster.Define("returner", func(s *testcluster.Self) error {
	if err := os.Setenv("DSM_LOST", "checkpoint"); err != nil {
		return err
	}
	return converse(s, func(d desk) obedient { return &safe{desk: d} })
})

// TestLostPagesGoBack kills a daemon that had the only copies of pages, over each trap, in a job
// that has taken two checkpoints: what is lost is as in the second one, for all that are left, and
// can be stored to. All else is as it was. Memory that the checkpoint lacks is lost, and that of
// other jobs, too; and to who has freed memory when the checkpoint ends, what is lost of that.
func TestLostPagesGoBack(t *testing.T) {
	t.Parallel()
	withEachWay(t, func(t *testing.T, flags []string) {
		const page, words, only = 512, 60 * 512, " only=data,lent,/open"
		dir := t.TempDir()
		c := serve(t, 3, 3, append(flags, "--survive")...)
		var all crew
		for rank := range 3 {
			all = append(all, c.Program(t, returner, rank, rank))
		}
		for rank, p := range all {
			p.Expect(t, []string{"rank 0 of 3", "rank 1 of 3", "rank 2 of 3"}[rank])
		}
		first, second, doomed := all[0], all[1], all[2]
		all.do(t, "ok", "words data %d", words)
		all.do(t, "ok", "words lent %d", page)
		all.do(t, "ok", "words /open %d", page)
		doomed.Do(t, "ok", "stamp data 1 0 %d", words/2)
		first.Do(t, "ok", "stamp data 1 %d %d", words/2, words-page) // nobody touches the last page
		doomed.Do(t, "ok", "put lent 0 1")
		doomed.Do(t, "ok", "put /open 0 1")
		all.do(t, "ok", "save %s%s", dir, only)
		second.Do(t, "ok", "stamp data 2 0 %d", 4*page)
		doomed.Do(t, "ok", "put lent 0 2")
		all.do(t, "ok", "begin %s%s", dir, only)
		second.Do(t, "ok", "free lent")
		all.do(t, "ok", "finish 60000")
		second.Do(t, "ok", "words lent %d", page)
		doomed.Do(t, "ok", "stamp data 3 0 %d", 8*page)
		first.Do(t, "ok", "stamp data 3 %d %d", words/2, words/2+4*page)
		all.do(t, "ok", "words later %d", page)
		doomed.Do(t, "ok", "put later 0 5")
		c.Daemons[2].Kill(t)
		for _, p := range all[:2] {
			p.Do(t, "ok", "same data 2 0 %d", 4*page)
			p.Do(t, "ok", "same data 1 %d %d", 4*page, words/2)
			p.Do(t, "ok", "same data 3 %d %d", words/2, words/2+4*page)
			p.Do(t, "ok", "same data 1 %d %d", words/2+4*page, words-page)
			p.Do(t, "0", "get data %d", words-1)
			p.Do(t, "lost with node 2: byte 0 of later", "get later 0")
			p.Do(t, "lost with node 2: byte 0 of /open", "get /open 0")
		}
		second.Do(t, "lost with node 2: byte 0 of lent", "get lent 0")
		first.Do(t, "2", "get lent 0")
		if n := first.Ask(t, "counter pages_gone_back"); n == "0" || strings.Contains(n, "error") {
			t.Errorf("pages that have gone back, as the daemon counts them: %s", n)
		}
		c.Daemons[0].AwaitLog(t, "goes back to what it had in the last checkpoint")
		second.Do(t, "ok", "stamp data 4 0 %d", 8*page)
		first.Do(t, "ok", "same data 4 0 %d", 8*page)
		if said := first.Ask(t, "barrier"); !strings.Contains(said, "a node is lost: node 2") {
			t.Errorf("the barrier of all ranks ends with %q", said)
		}
	})
}
