package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// mostBefore bounds the actions that settle has happen.
const mostBefore = 10_000

// begin has the operations of Config.Before happen. It returns the first violation.
func (c *Cluster) begin() *Violation {
	allowed := make([]int, len(c.Config.Threads))
	var out Outcome
	for _, t := range c.Config.Before {
		allowed[t]++
		if v := c.settle(allowed, func(a Action) *Violation { return c.Do(a, 0, &out) }); v != nil {
			return v
		}
	}
	return nil
}

// settle has all happen that follows, until only optional actions are left. Each thread goes on up
// to the operation at its place in allowed, and does not begin that one.
func (c *Cluster) settle(allowed []int, do func(Action) *Violation) *Violation {
	for range mostBefore {
		a, ok := c.next(allowed)
		if !ok {
			return nil
		}
		if v := do(a); v != nil {
			return v
		}
	}
	return violated(RuleNoProgress, "%d actions follow from the operations that were begun, and there are more", mostBefore)
}

// next is the first action that can happen now, is not optional, and is none of a thread that has
// done what it is allowed. It is false when there is none.
func (c *Cluster) next(allowed []int) (Action, bool) {
	for _, a := range c.Enabled() {
		if a.Kind.Optional() {
			continue
		}
		if a.ofThread() {
			if t := &c.Nodes[a.Node].threads[a.Thread]; t.pc >= allowed[t.index] {
				continue
			}
		}
		return a, true
	}
	return Action{}, false
}

// parseBefore reads the numbers of threads.
func (c *Config) parseBefore(value string) error {
	for _, word := range strings.Fields(value) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		c.Before = append(c.Before, n)
	}
	return nil
}

// validateBefore refuses operations that no thread has, and threads that are not there at first.
func (c *Config) validateBefore() error {
	count := make([]int, len(c.Threads))
	for _, t := range c.Before {
		if t < 0 || t >= len(c.Threads) || slices.Contains(c.Join, c.Threads[t].Node) {
			return fmt.Errorf("%w: thread %d does something beforehand: there are %d, and those on nodes %v are not there yet", ErrSyntax, t, len(c.Threads), c.Join)
		}
		if count[t]++; count[t] > len(c.Threads[t].Program) {
			return fmt.Errorf("%w: thread %d does %d operations beforehand, of %d", ErrSyntax, t, count[t], len(c.Threads[t].Program))
		}
	}
	return nil
}
