package dsm

import (
	"fmt"
	"os"
	"runtime"
	"sync"
)

// procsPerProcessor is by how much Join raises GOMAXPROCS: how many goroutines may be in a fault or
// run, for each processor. A goroutine in a fault keeps its P, as the runtime does not know that it
// waits. docs/kernel.md, "A waiting goroutine keeps its P", has the measurements: with four,
// goroutines that all miss pages get more than half of what any number gives, and a goroutine alone
// is as fast as before.
const procsPerProcessor = 4

// WithProcs sets GOMAXPROCS, the number of goroutines that may run or wait for a page at a time,
// when the program has joined. 0 leaves it as it is.
//
// Without this option Join sets it to four times the number that Go has chosen, which is that of
// the processors that the program may use, unless the environment variable GOMAXPROCS is set or the
// program has set it before. Go then no longer follows later changes of that number. A program
// whose goroutines allocate much and share little may want fewer, since the collector takes a
// quarter of them while it runs; one with many goroutines that wait for pages may want as many as
// those are. Close does not take it back.
func WithProcs(n int) Option {
	return func(j *joining) error {
		if n < 0 {
			return fmt.Errorf("WithProcs(%d): the number is negative", n)
		}
		j.procs = &n
		return nil
	}
}

// procsTurn keeps two Joins from taking each other's setting for the program's.
var procsTurn sync.Mutex

// setProcs does what WithProcs, or its absence, says.
func setProcs(chosen *int) {
	procsTurn.Lock()
	defer procsTurn.Unlock()
	switch {
	case chosen != nil:
		runtime.GOMAXPROCS(*chosen) // which does nothing for 0
		return
	case os.Getenv("GOMAXPROCS") != "":
		return
	}
	// There is no other way to learn what Go chooses here than to let it.
	before := runtime.GOMAXPROCS(0)
	runtime.SetDefaultGOMAXPROCS()
	if usual := runtime.GOMAXPROCS(0); before == usual {
		runtime.GOMAXPROCS(procsPerProcessor * usual)
	} else {
		runtime.GOMAXPROCS(before)
	}
}
