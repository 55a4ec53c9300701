package membership

import (
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// How often nodes talk with each other depends on how long ago something happened: a node was
// found, has changed, is suspected or gone, or has sent a message. A node that starts waits for
// what others tell it, and one that is suspected must be heard in time. But when nothing happens a
// daemon must not be woken for nothing.
const (
	// newsInterval is how often a node tells newsNodes others what is new, and newsTime for how
	// long after it came.
	newsInterval = 100 * time.Millisecond
	newsTime     = 3 * time.Second
	newsNodes    = 3
	// calmInterval is how often nodes gossip at any time. What is new goes with probes, too.
	calmInterval = 5 * time.Second
	// firstExchanges is how often a node exchanges all that it knows with another until the cluster
	// is complete. From then on that is exchanges times within Config.DeadAfter, for as long after
	// something happened.
	firstExchanges = time.Second
	exchanges      = 6
)

// loop handles what happens, until close.
func (g *Group) loop() {
	beat := time.NewTicker(newsInterval)
	defer beat.Stop()
	var beats int
	news, exchanged := time.Now(), time.Now()
	calm, decided := false, false
	for {
		tick := false
		select {
		case <-g.closing:
			return
		case <-g.wake:
			news = time.Now()
			if calm {
				beat.Reset(newsInterval)
				calm = false
			}
		case now := <-beat.C:
			beats++
			tick = beats%beatsPerTick == 0
			g.askDoubtful()
			if now.Sub(news) < newsTime {
				g.tellNews()
			}
			if now.Sub(exchanged) >= g.exchangeInterval() {
				exchanged = now
				g.exchange()
			}
			if calm = now.Sub(news) > g.cfg.DeadAfter && g.settled(); calm {
				beat.Stop()
			}
		}
		g.handle(tick, &decided)
	}
}

// exchangeInterval is how often a node exchanges all that it knows with another.
func (g *Group) exchangeInterval() time.Duration {
	if g.Table() == nil {
		return firstExchanges
	}
	return g.cfg.DeadAfter / exchanges
}

// settled reports whether nothing has to be repeated or waited for.
func (g *Group) settled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.formation.settled() && len(g.doubtful) == 0
}

// tellNews has some other nodes told what is new, and tell what is new to them: memberlist adds
// that to any message, also to a question whether somebody is alive and to the answer.
func (g *Group) tellNews() {
	others := g.others()
	// Where answers take long, nodes have too much to do, and more pings would make it worse.
	most := max(newsNodes-int(g.unanswered.Load()), 0)
	for _, i := range rand.Perm(len(others))[:min(len(others), most)] {
		g.unanswered.Add(1)
		// Leave does not wait for this: whom it was told may have ended, and the answer takes
		// probeTimeout not to come.
		go func() {
			defer g.unanswered.Add(-1)
			ping(g.list, others[i])
		}()
	}
}

// ping asks a node whether it is alive, and reports whether it has answered within probeTimeout.
func ping(list *memberlist.Memberlist, a memberlist.Address) bool {
	to := nodeAt(a)
	_, err := list.Ping(to.Name, &net.UDPAddr{IP: to.Addr, Port: int(to.Port)})
	return err == nil
}

// exchange exchanges all that is known with one other node after another, suspected or not.
//
// What is new is gossiped a few times and then never again, and may be lost. A suspicion ends when
// the suspected node says something newer. That may be lost in the same trouble of the network that
// made others suspicious. And a node that hears of an older suspicion does not object. So what was
// lost has to come in another way before the suspicion comes true, or, while the cluster is formed,
// before somebody waits for it. memberlist's own exchanges are half a minute apart and leave out
// who is suspected. (TestLostObjection in internal/systemtest/e2e, TestFormWithoutGossip)
func (g *Group) exchange() {
	others := g.others()
	if len(others) == 0 {
		return
	}
	next := slices.IndexFunc(others, func(a memberlist.Address) bool { return a.Name > g.exchanged })
	to := others[max(next, 0)]
	g.exchanged = to.Name
	g.exchangeWith(to)
}

func (g *Group) exchangeWith(to memberlist.Address) {
	g.beside(func() {
		if _, err := g.list.Join([]string{to.Addr}); err != nil {
			g.log.Debug("states were not exchanged", zap.String("with", to.Addr), zap.Error(err))
		}
	})
}

// others are the addresses of the other nodes that are known, in the order of their names.
func (g *Group) others() []memberlist.Address {
	g.mu.Lock()
	defer g.mu.Unlock()
	var others []memberlist.Address
	for name, a := range g.addresses {
		if name != g.self.name() {
			others = append(others, a)
		}
	}
	slices.SortFunc(others, func(a, b memberlist.Address) int { return strings.Compare(a.Name, b.Name) })
	return others
}

// beside does something beside the loop, which a node that does not answer must not hold up, unless
// too much is being done so; it comes again. When this node leaves nothing begins any more.
func (g *Group) beside(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	select {
	case g.sends <- struct{}{}:
	default:
		return
	}
	g.work.Go(func() {
		defer func() { <-g.sends }()
		do()
	})
}
