package simulator

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"dsmd/protocol"
)

// ErrNotLinearizable is wrapped when the history of a page has no explanation as a single register.
var ErrNotLinearizable = errors.New("simulator: the accesses to a page are not linearizable")

// register is a page as porcupine sees it: reads return the version that the last write made.
var register = porcupine.Model{
	Init: func() any { return uint32(0) },
	Step: func(state, input, output any) (bool, any) {
		if input.(bool) { // a write
			return true, output
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
// protocol, or of the order in which the simulator saw accesses retire: each access may have happened at any instant between its
// call and its return. (Wing and Gong, "Testing and verifying concurrent objects", 1993; Lowe, "Testing for linearizability",
// 2017.) limit bounds the time for one page; when it is not enough, that is an error too, because nothing was checked.
func CheckLinearizable(history []Access, limit time.Duration) error {
	byPage := map[protocol.ObjectID][]porcupine.Operation{}
	var pages []protocol.ObjectID
	for _, a := range history {
		if byPage[a.Page] == nil {
			pages = append(pages, a.Page)
		}
		byPage[a.Page] = append(byPage[a.Page], porcupine.Operation{
			ClientId: a.Thread, Input: a.Write, Output: a.Version, Call: a.Call, Return: a.Return,
		})
	}
	slices.Sort(pages)
	for _, p := range pages {
		switch porcupine.CheckOperationsTimeout(register, byPage[p], limit) {
		case porcupine.Illegal:
			return fmt.Errorf("%w: %v, %d accesses", ErrNotLinearizable, p, len(byPage[p]))
		case porcupine.Unknown:
			return fmt.Errorf("%w, or so it may be: %v, %d accesses could not be checked in %v", ErrNotLinearizable, p, len(byPage[p]), limit)
		}
	}
	return nil
}
