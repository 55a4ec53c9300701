package tcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"dsmd/transport"
)

const (
	// A node that waits in Connect says for whom after firstWaitSaid, and then after pauses that
	// double up to longestWaitSaid: the nodes of one start say nothing, and one that waits for days
	// fills no disk.
	firstWaitSaid   = 2 * time.Second
	longestWaitSaid = time.Minute
	// longWait is how long a node has waited when the start of the others is no reason any more.
	longWait = 10 * time.Second
	// maxWaitSaid is how many missing peers a line of the log names.
	maxWaitSaid = 8
)

// await waits until Connect is over: the peers are connected, one has refused this node, or ctx has
// ended. It logs who is missing as long as somebody is.
func await(ctx context.Context, c *connecting) {
	began := time.Now()
	for pause := firstWaitSaid; ; pause = min(2*pause, longestWaitSaid) {
		select {
		case <-c.complete:
		case <-c.refused:
		case <-ctx.Done():
		case <-time.After(pause):
			if texts, _ := c.missingPeers(); len(texts) > 0 { // else the last one has come just now
				say := c.log
				if time.Since(began) >= longWait {
					say = c.longWait
				}
				say(waitLine(c.self, c.joining, texts))
			}
			continue
		}
		return
	}
}

// waitLine says that a node waits for others, or, if it joins, for one of them.
func waitLine(self transport.NodeID, joins bool, missing []string) string {
	oneOf, more := "", ""
	if joins {
		oneOf = "one of "
	}
	if n := len(missing) - maxWaitSaid; n > 0 {
		missing, more = missing[:maxWaitSaid], fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("tcp: node %d waits for %s%s%s", self, oneOf, strings.Join(missing, "; "), more)
}

// missingPeers are the peers that were never connected, with their addresses and why for people,
// and the reasons alone.
func (c *connecting) missingPeers() (texts []string, reasons []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range c.sessions {
		if s != nil && !s.met {
			texts = append(texts, fmt.Sprintf("node %d at %s: %v", i, c.addresses[i], s.reason))
			reasons = append(reasons, s.reason)
		}
	}
	return texts, reasons
}
