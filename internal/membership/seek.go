package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

const (
	// Between two rounds of asking the nodes to join, the pause doubles from firstPause to
	// longestPause.
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
	// resolveTimeout bounds one look-up of a name.
	resolveTimeout = 5 * time.Second
	// maxSeeds bounds the addresses that are asked in a round: those of a cluster of the largest
	// size.
	maxSeeds = maxTable
)

// seek asks the nodes to join until ctx ends or the formation has; then it returns nil. Its error
// is a refusal.
func (g *Group) seek(ctx context.Context) error {
	said := ""
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		seeds, unresolved := g.resolve(ctx)
		refusal, trouble := g.ask(ctx, seeds)
		if refusal != nil && g.alone() {
			return refusal
		}
		// Log it once for each change: a name that does not resolve yet, or a node that is not
		// there yet, is normal at first.
		if now := strings.Join(append(unresolved, trouble...), "; "); now != said && now != "" && ctx.Err() == nil {
			g.log.Info("not all nodes to join can be reached; they are tried again", zap.String("why", now))
			said = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-g.formed:
			return nil
		case <-time.After(pause):
		}
	}
}

// resolve looks up all addresses of the nodes to join. unresolved says for each name what is wrong
// with it.
func (g *Group) resolve(ctx context.Context) (seeds, unresolved []string) {
	for _, join := range g.cfg.Join {
		host, port, err := net.SplitHostPort(join)
		if err != nil {
			unresolved = append(unresolved, fmt.Sprintf("%s: %v", join, err))
			continue
		}
		addrs, err := g.lookUp(ctx, host)
		if err != nil {
			unresolved = append(unresolved, fmt.Sprintf("%s: %v", host, err))
			continue
		}
		for _, a := range addrs {
			seeds = append(seeds, net.JoinHostPort(a, port))
		}
	}
	slices.Sort(seeds)
	seeds = slices.Compact(seeds)
	return seeds[:min(len(seeds), maxSeeds)], unresolved
}

func (g *Group) lookUp(ctx context.Context, host string) ([]string, error) {
	if net.ParseIP(host) != nil {
		return []string{host}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := g.cfg.Resolve(ctx, host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("the name has no addresses")
	}
	return addrs, err
}

// ask exchanges what is known with every seed that is not known yet. refusal is why this node does
// not fit one of them, and trouble what else went wrong.
func (g *Group) ask(ctx context.Context, seeds []string) (refusal error, trouble []string) {
	for _, seed := range seeds {
		if ctx.Err() != nil {
			return nil, nil
		}
		if g.knows(seed) {
			continue
		}
		_, err := g.list.Join([]string{seed})
		if err == nil {
			continue
		}
		if why := g.refusedBy(err.Error()); why != "" {
			refusal = fmt.Errorf("%w by %s: %s", ErrRefused, seed, why)
			if _, complete := g.status(); complete {
				refusal = fmt.Errorf("%w (%w)", refusal, ErrComplete)
			}
			continue
		}
		trouble = append(trouble, fmt.Sprintf("%s does not answer", seed))
		g.log.Debug("a node to join does not answer", zap.String("address", seed), zap.Error(err))
	}
	return refusal, trouble
}

// refusedBy is what a failure to join means if it is for good. memberlist hands errors on as text
// only.
func (g *Group) refusedBy(text string) string {
	if aboutKeys(text) {
		return keyDiffers
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.refusals {
		if strings.Contains(text, r) {
			return r
		}
	}
	return ""
}

// knows reports whether the node that gossips at addr is known, or is this one.
func (g *Group) knows(addr string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.addresses {
		if a.Addr == addr {
			return true
		}
	}
	return false
}

// alone reports whether no other node is known.
func (g *Group) alone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.formation.known) == 1
}
