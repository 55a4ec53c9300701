package simulator

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"dsmd/protocol"
)

// ErrNotLinearizable is wrapped when the history of a page has no explanation as a single register.
var ErrNotLinearizable = errors.New("simulator: the accesses to a page are not linearizable")

// errUndecided is wrapped when the search took too long, which is an error too, because nothing was
// checked.
var errUndecided = fmt.Errorf("%w, or so it may be", ErrNotLinearizable)

// register is a page as porcupine sees it: reads return the version that the last write made, and a
// write makes the next version of the one that it found.
var register = porcupine.Model{
	Init: func() any { return uint32(0) },
	Step: func(state, input, output any) (bool, any) {
		if input.(bool) { // a write
			return output == state.(uint32)+1, output
		}
		return output == state, state
	},
	DescribeOperation: func(input, output any) string {
		if input.(bool) {
			return fmt.Sprintf("write version %d", output)
		}
		return fmt.Sprintf("read version %d", output)
	},
}

// CheckLinearizable checks the history of each page with an algorithm that knows nothing of the
// protocol, or of the order in which the simulator saw accesses retire: each access may have
// happened at any instant between its call and its return. (Wing and Gong, "Testing and verifying
// concurrent objects", 1993; Lowe, "Testing for linearizability", 2017.) limit bounds the time for
// one page.
func CheckLinearizable(history []Access, limit time.Duration) error {
	type page struct {
		id    protocol.ObjectID
		begun int
	}
	byPage := map[page][]Access{}
	var pages []page
	for _, a := range history {
		p := page{a.Page, a.Begun}
		if byPage[p] == nil {
			pages = append(pages, p)
		}
		byPage[p] = append(byPage[p], a)
	}
	slices.SortFunc(pages, func(a, b page) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.begun, b.begun)) })
	for _, p := range pages {
		var operations []porcupine.Operation
		for _, a := range decisive(byPage[p]) {
			operations = append(operations, porcupine.Operation{
				ClientId: a.Thread, Input: a.Write, Output: a.Version, Call: a.Call, Return: a.Return,
			})
		}
		switch porcupine.CheckOperationsTimeout(register, operations, limit) {
		case porcupine.Illegal:
			return fmt.Errorf("%w: %v, %d accesses", ErrNotLinearizable, p.id, len(byPage[p]))
		case porcupine.Unknown:
			return fmt.Errorf("%w: %v, %d accesses could not be checked in %v", errUndecided, p.id, len(byPage[p]), limit)
		}
	}
	return nil
}

// decisive returns what decides whether the history of a page is linearizable: all writes, and of
// the reads of each version the one that returned first and the one that was called last. When
// these two have an instant while the page has their version, the others have one too, between the
// instants of the two. Without this the search tries the subsets of all reads that overlap, for
// minutes when many threads read one page.
func decisive(history []Access) []Access {
	type bounds struct{ first, last Access }
	reads := map[uint32]bounds{}
	var kept []Access
	for _, a := range history {
		if a.Write {
			kept = append(kept, a)
			continue
		}
		b, known := reads[a.Version]
		if !known || a.Return < b.first.Return {
			b.first = a
		}
		if !known || a.Call > b.last.Call {
			b.last = a
		}
		reads[a.Version] = b
	}
	for _, v := range slices.Sorted(maps.Keys(reads)) {
		b := reads[v]
		kept = append(kept, b.first)
		if b.last != b.first {
			kept = append(kept, b.last)
		}
	}
	return kept
}
