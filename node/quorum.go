package node

import "time"

// NoQuorumPolicies are what Config.NoQuorum can be.
var NoQuorumPolicies = []string{noQuorumBlock, noQuorumEnd}

const (
	noQuorumBlock = "block" // programs wait
	noQuorumEnd   = "end"   // they are ended
)

// quorum is whether the nodes that this one can reach are enough to go on. While they are not,
// nothing is granted. Programs go on with the pages and locks that they have, and wait with the
// next fault or call.
type quorum struct {
	state quorumState
	until time.Duration // quorumDeciding: how long
}

type quorumState uint8

const (
	quorumHas quorumState = iota
	quorumLost
	// quorumDeciding: it is lost, and this node, which has just come, waits for what the others
	// decide.
	quorumDeciding
)

func (q *quorum) lost() bool { return q.state != quorumHas }
