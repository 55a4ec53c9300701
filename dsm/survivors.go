package dsm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"dsmd/internal/attach"
)

// Group is who takes part in a barrier or in a reduction: all ranks of the job, which is what a
// *Cluster stands for, or those that are left when nodes were lost, a *Survivors.
type Group interface {
	// Size is the number of ranks that take part.
	Size() int
	// Barrier waits until each of them has called it.
	Barrier(ctx context.Context) error
	group() group
}

// Member returns the cluster of a group, and the place of this program in the group, from 0 to
// Size-1: its rank, if the group is the Cluster, or Survivors.Index.
func Member(among Group) (c *Cluster, index int) {
	if s, ok := among.(*Survivors); ok {
		return s.c, s.Index()
	}
	c = among.group().c
	return c, c.Rank()
}

// group is a Group in detail.
type group struct {
	c *Cluster
	// of the names of its barriers and reductions, so that those of other groups are others
	suffix string
	losses int // ranks that it does without
	rank   func(i int) int
}

func (c *Cluster) group() group { return group{c: c, rank: func(i int) int { return i }} }

// Lost returns the ranks of the job that were lost with their nodes since this program joined, in
// ascending order. A rank whose program ended while its node lived is not among them, as it may
// attach again, but in a job of `dsmd run --survive`, where it will not. Errors: ctx's, ErrClosed,
// ErrLost.
func (c *Cluster) Lost(ctx context.Context) ([]int, error) {
	lost, err := c.lostRanks(ctx)
	if err != nil {
		return nil, failure("Lost", err)
	}
	return lost, nil
}

func (c *Cluster) lostRanks(ctx context.Context) ([]int, error) {
	r, err := c.do(ctx, attach.Call{Op: attach.OpLostRanks})
	if err != nil {
		return nil, err
	}
	if r.Status != attach.StatusOK {
		return nil, fmt.Errorf("the daemon answered with %v", r.Status)
	}
	ranks, err := attach.DecodeRanks(r.Payload)
	if err != nil {
		return nil, err
	}
	var lost []int
	for _, rank := range ranks {
		if int(rank) >= c.Size() || int(rank) == c.Rank() {
			return nil, fmt.Errorf("the daemon says that rank %d of %d is lost, to rank %d: it is faulty", rank, c.Size(), c.Rank())
		}
		lost = append(lost, int(rank))
	}
	return lost, nil
}

// Survivors are the ranks of a job that were left at some time. Barriers and reductions among them
// work as those of all ranks did, with the same names if you like. When a call has returned
// ErrNodeLost, every rank asks for the Survivors and goes on with them. When another rank is lost,
// these calls end with ErrNodeLost, too; then ask again. It may be used by several goroutines.
type Survivors struct {
	c     *Cluster
	ranks []int
	g     group
}

// Survivors asks which ranks are left. That is all of them if none is lost. Different ranks may get
// different answers while nodes are being lost. Then those that know of fewer losses get
// ErrNodeLost at the next barrier. Errors: ctx's, ErrClosed, ErrLost.
func (c *Cluster) Survivors(ctx context.Context) (*Survivors, error) {
	lost, err := c.lostRanks(ctx)
	if err != nil {
		return nil, failure("Survivors", err)
	}
	s := &Survivors{c: c}
	for rank := range c.Size() {
		if !slices.Contains(lost, rank) {
			s.ranks = append(s.ranks, rank)
		}
	}
	s.g = group{c: c, losses: len(lost), rank: func(i int) int { return s.ranks[i] }}
	if len(lost) > 0 {
		s.g.suffix = jobMark + "without " + strings.Trim(fmt.Sprint(lost), "[]")
	}
	return s, nil
}

// Ranks are the ranks that are left, in ascending order.
func (s *Survivors) Ranks() []int { return slices.Clone(s.ranks) }

// Size is how many ranks are left.
func (s *Survivors) Size() int { return len(s.ranks) }

// Index is the place of this program among them, from 0 to Size-1: what Rank was, when work is
// divided anew.
func (s *Survivors) Index() int { return slices.Index(s.ranks, s.c.Rank()) }

func (s *Survivors) group() group { return s.g }

// Barrier waits until every rank that is left has called it. It is otherwise like Cluster.Barrier.
func (s *Survivors) Barrier(ctx context.Context) error { return meet(ctx, s) }
