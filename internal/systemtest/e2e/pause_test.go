package e2e

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
	"dsmd/node"
)

// What a partner's goroutines do, in the order in which it counts them.
const (
	alone = iota // store to pages that no other rank touches
	// take turns with another rank on a page whose home is one of three nodes: this lane and the
	// two after it
	withHome
	withAll = withHome + pausedNodes
	lanes   = withAll + 1
)

const (
	pausedNodes = 3
	// pausedNode is the one that is paused. Its rank takes no turns in the lanes of two.
	pausedNode = 2
	// pauseFor is for how long. It is far shorter than the time after which gossip takes a node for
	// dead in these tests.
	pauseFor      = time.Second
	pauseIsNoLoss = "30s"
	// pausesAtMost is how often a run of a whole program is paused: each of its daemons once.
	pausesAtMost = pausedNodes
)

// partner does all that is in the list above at once, until it is told to stop, and says on request
// how often it has done what. In the end all ranks compare what each has done with what is in the
// memory.
var partner = testcluster.Define("partner", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	// A collection would wait for whoever waits for a page of the paused node, and all for it.
	debug.SetGCPercent(-1)
	words, err := dsm.Alloc[uint64](s.Ctx, c, "words", ownStripe(c.Size())*node.HomeStripe*c.PageBytes()/8)
	if err != nil {
		return err
	}
	// Stripes of pages that lie behind each other have one home each in turn.
	stripe := func(i int) []uint64 {
		n := node.HomeStripe * c.PageBytes() / 8
		return words[i*n : (i+1)*n]
	}
	var done [lanes]atomic.Uint64
	var over atomic.Bool
	var all sync.WaitGroup
	own := stripe(ownStripe(c.Rank()))
	all.Go(func() {
		for !over.Load() {
			for page := range node.HomeStripe {
				own[page*c.PageBytes()/8]++
			}
			done[alone].Add(1)
			// the machine may have fewer processors than goroutines that count
			time.Sleep(100 * time.Microsecond)
		}
	})
	for lane := withHome; lane < lanes; lane++ {
		ranks := c.Size()
		if lane < withAll {
			ranks--
		}
		if c.Rank() < ranks {
			all.Go(func() { takeTurns(&stripe(lane)[0], uint64(c.Rank()), uint64(ranks), &done[lane], &over) })
		}
	}
	s.Say("begun")
	line, err := s.Next()
	for ; err == nil && line == "count"; line, err = s.Next() {
		var text []string
		for lane := range done {
			text = append(text, strconv.FormatUint(done[lane].Load(), 10))
		}
		s.Say("%s", strings.Join(text, " "))
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	over.Store(true)
	all.Wait()
	for lane := range lanes {
		sum, wrong := dsm.Reduce(s.Ctx, c, fmt.Sprint("done", lane), done[lane].Load(), dsm.Sum)
		var found uint64
		if lane == alone {
			for rank := range c.Size() {
				found += stripe(ownStripe(rank))[(node.HomeStripe-1)*c.PageBytes()/8]
			}
		} else {
			found = stripe(lane)[0]
		}
		if wrong == nil && found != sum {
			wrong = fmt.Errorf("lane %d: the ranks have counted %d, the memory has %d", lane, sum, found)
		}
		err = errors.Join(err, wrong)
	}
	return errors.Join(err, c.Barrier(s.Ctx), c.Close())
})

// ownStripe is where the pages lie that no other rank touches. Between them and all others are
// stripes that nobody touches: what is read ahead, by a thread that goes over the lanes or over its
// rank's own pages, ends there. A page taken that way would not be where it is needed when a node
// is paused.
func ownStripe(rank int) int { return lanes + 1 + 2*rank }

// takeTurns increments a word whenever it is this rank's turn, and so needs the other ranks for
// each step.
func takeTurns(word *uint64, rank, ranks uint64, done *atomic.Uint64, over *atomic.Bool) {
	for !over.Load() {
		if now := atomic.LoadUint64(word); now%ranks == rank {
			atomic.StoreUint64(word, now+1)
			done.Add(1)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// progress asks a partner how far it is.
func progress(t *testing.T, p *testcluster.Process) (done [lanes]uint64) {
	t.Helper()
	for lane, text := range strings.Fields(p.Ask(t, "count")) {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		done[lane] = n
	}
	return done
}

// pausable are the clusters in which a daemon is paused.
var pausable = map[string]func(t *testing.T) *testcluster.Cluster{
	"Peers": func(t *testing.T) *testcluster.Cluster { return testcluster.Serve(t, pausedNodes, pausedNodes) },
	"Gossip": func(t *testing.T) *testcluster.Cluster {
		return testcluster.NewLAN(pausedNodes).Serve(t, "--dead-after", pauseIsNoLoss)
	},
}

// TestPausedNode stops a daemon with SIGSTOP while programs of three nodes work. What needs that
// node waits: a page that its rank has, and a page whose home it is. Everything else goes on:
// stores to pages that are there, also on the paused node; and the exchange of pages that have
// other homes. When the daemon goes on, all does, and nothing is lost.
func TestPausedNode(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	const going = 10 // steps that nobody makes who waits
	for name, start := range pausable {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			var programs []*testcluster.Process
			for rank := range pausedNodes {
				programs = append(programs, c.Program(t, partner, rank, rank))
			}
			for _, p := range programs {
				p.Expect(t, "begun")
			}
			first := programs[0]
			goesOn := func(p *testcluster.Process, what string, wanted func(steps [lanes]uint64) bool) {
				t.Helper()
				before := progress(t, p)
				testcluster.Eventually(t, what, func() bool {
					steps := progress(t, p)
					for lane := range steps {
						steps[lane] -= before[lane]
					}
					return wanted(steps)
				})
			}
			allGoOn := func(steps [lanes]uint64) bool {
				for _, n := range steps {
					if n < going {
						return false
					}
				}
				return true
			}
			goesOn(first, "everything goes on at first", allGoOn)

			c.Daemons[pausedNode].Stop(t)
			atStop, stopped := progress(t, first), time.Now()
			for rank, p := range programs {
				goesOn(p, fmt.Sprintf("rank %d goes on in its own pages", rank), func(steps [lanes]uint64) bool { return steps[alone] >= going })
			}
			goesOn(first, "two nodes exchange pages of two homes", func(steps [lanes]uint64) bool { return len(moving(steps, going)) >= pausedNodes-1 })
			time.Sleep(time.Until(stopped.Add(pauseFor)))
			steps := progress(t, first)
			for lane := range steps {
				steps[lane] -= atStop[lane]
			}
			if on := moving(steps, going); len(on) != pausedNodes-1 {
				t.Errorf("of the lanes with one home each, %d go on while the home of one is paused: %v", on, steps)
			}
			if steps[withAll] > 1 { // one may have been under way
				t.Errorf("%d steps of all three while a node was paused", steps[withAll])
			}
			c.Daemons[pausedNode].Signal(syscall.SIGCONT)
			goesOn(first, "everything goes on again", allGoOn)

			for _, p := range programs {
				p.End()
			}
			for _, p := range programs {
				p.Succeed(t)
			}
		})
	}
}

// moving lists those of the lanes with one home each that have made so many steps.
func moving(steps [lanes]uint64, least uint64) (list []int) {
	for lane := withHome; lane < withAll; lane++ {
		if steps[lane] >= least {
			list = append(list, lane)
		}
	}
	return list
}

// TestPauses runs whole programs on three daemons while one of these after the other is paused: the
// results are exact.
func TestPauses(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for name, start := range pausable {
		for i, k := range kernels {
			if one := []string{"Peers", "Gossip"}[i]; name != one {
				continue
			}
			t.Run(name+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				c := start(t)
				pauses := 0
				compute(t, c, pausedNodes, k.name, k.size, func(over <-chan struct{}) {
					for ; pauses < pausesAtMost; pauses++ {
						select {
						case <-over:
							return
						case <-time.After(pauseFor / 20):
							// so that even a short run is paused in the middle
						}
						d := c.Daemons[pauses%pausedNodes]
						d.Signal(syscall.SIGSTOP)
						time.Sleep(pauseFor)
						d.Signal(syscall.SIGCONT)
					}
				})
				t.Logf("%d pauses", pauses)
				if pauses == 0 {
					t.Error("nothing was paused, so this has shown nothing")
				}
			})
		}
	}
}
