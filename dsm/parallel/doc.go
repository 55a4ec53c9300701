// Package parallel runs loops and tasks on all ranks of a job, and on all processors of each.
//
//	team, err := parallel.New(ctx, c, "sweep")
//	...
//	reads := parallel.Reads(func(lo, hi int) []float64 { return previous[max(lo-1, 0):min(hi+1, n)] })
//	err = team.Touching(reads).For(ctx, n, func(i int) error {
//		next[i] = f(previous, i)
//		return nil
//	})
//
// Every rank makes the team and calls its loops, in the same order. A loop is a barrier: what any
// rank stored before, all items see; and what items store, every rank sees after.
//
// # Who does what
//
// A loop begins with equal parts, Team.Block: rank 0 has the first items, and so on. So a rank
// gets the same items in each loop of the same length, and their pages stay. Goroutines of the
// rank take them from the front, in chunks that take some 100 µs if items take as long as those
// before, and are at most a quarter of what the goroutine would get of the rest. A rank that is
// ready waits for the others, for an eighth of the time that its part has taken (1 to 10 ms).
// Then it takes half of what another has left, from the end: of a rank on its own node if there is
// one, else of the nearest number. It leaves alone what the other will have done in 4 ms. While
// there is nothing to take it looks again, after twice the time and at most 100 ms. So a loop of
// equal items sends what one sends that was divided by hand.
//
// # Tasks
//
// A task is a small value, for which a body is called. It may Fork other tasks, and Join them,
// which waits for their ends:
//
//	err := parallel.Tasks(ctx, team, first, func(t *parallel.Task[part]) error {
//		if left, right, large := t.Value.halves(); large {
//			t.Fork(left)
//			t.Fork(right)
//			return t.Join()
//		}
//		...
//	})
//
// A goroutine runs the newest task that it has forked, so that few wait. If it has none it takes
// the older half of another's in its rank. If the rank has none it takes the older half of what
// another offers: of a rank on its own node, else of the nearest number. The older a task is, the
// more comes of it, mostly. A rank offers half of the longest list that a goroutine of it has, 64
// tasks at most, as soon as others have taken all that it had offered before.
//
// # What travels
//
// Who looks at what a rank has left takes a page from it, for which that rank waits at its next
// chunk. Items touch memory as everything does, and miss pages one at a time. Reads and Writes say
// what some items are going to touch. That is fetched at once before they begin: for a rank's own
// part, and again for each part that it takes from others. What the part needs should fit into the
// memory of a node.
//
// Who takes tasks from a rank takes the page on which these lie, and another when they have ended.
// With nothing to do, it looks at what the others offer every 2 ms, which sends nothing while they
// offer nothing. A Fork sends nothing. The end of all is found in a meeting of the ranks, or few.
//
// # Failures
//
// An error of an item, or a panic, ends the loop on all ranks. Items that have begun end. Then
// none begins any more on that rank; on others goroutines end the chunks that they have. Every
// rank gets an *Error, which names the item and the rank. If several fail, that is the first item
// of those that have. With tasks it is the same: the Error names one that has failed.
//
// # Loss
//
// When a node is lost (--survive), or a program, the loop, or Tasks, returns an error that wraps
// dsm.ErrNodeLost to those that are left; a rank for which the loop had ended may have its result.
// Which items were done is not known then: those of the lost rank, and those that it had taken from
// others, may have been or not, and what they stored may be lost. Nothing is done twice. Survivors
// make a team of their own, and repeat the loop from what they have saved. An item that touches a
// lost page is an *Error that wraps dsm.ErrPageLost on the rank that has run it, where the meeting
// does not say dsm.ErrNodeLost first.
package parallel
