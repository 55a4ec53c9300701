package torture

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"
)

const (
	// mostProcs is up to what GOMAXPROCS is raised.
	mostProcs = 16
	// restingProcs is what it is at rest.
	restingProcs = 4
	// forkPause lies between two child processes.
	forkPause = 200 * time.Millisecond
	// profileSpan is how long a profile is taken before the next is begun.
	profileSpan = 300 * time.Millisecond
)

// unrest is what a program's runtime does to itself beside its work. Each runs until over is set.
var unrest = []func(over *atomic.Bool) error{collect, litter, resize, profile, stumble}

// collect keeps the collector running.
func collect(over *atomic.Bool) error {
	for !over.Load() {
		runtime.GC()
	}
	return nil
}

// litter gives the collector something to do.
func litter(over *atomic.Bool) error {
	type node struct {
		next *node
		rest []byte
	}
	var list *node
	for n := 0; !over.Load(); n++ {
		list = &node{list, make([]byte, 1<<(n%12))}
		if n%500 == 0 {
			list = nil
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// resize changes GOMAXPROCS, for which the world stops.
func resize(over *atomic.Bool) error {
	defer runtime.GOMAXPROCS(restingProcs)
	for !over.Load() {
		runtime.GOMAXPROCS(1 + rand.IntN(mostProcs))
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
	}
	return nil
}

// profile has SIGPROF fire.
func profile(over *atomic.Bool) error {
	for !over.Load() {
		if err := pprof.StartCPUProfile(io.Discard); err != nil {
			return err
		}
		for end := time.Now().Add(profileSpan); !over.Load() && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		pprof.StopCPUProfile()
	}
	return nil
}

// stumble has segmentation faults of its own, which must stay Go's.
func stumble(over *atomic.Bool) error {
	for !over.Load() {
		if err := dereference(nil); err == nil {
			return errors.New("a nil pointer was dereferenced, and nothing came of it")
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

func dereference(p *int) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	*p++
	return nil
}

// fork starts child processes while pages move.
func fork(over *atomic.Bool) error {
	for !over.Load() {
		if err := exec.Command("true").Run(); err != nil {
			return fmt.Errorf("a child process: %w", err)
		}
		time.Sleep(forkPause)
	}
	return nil
}
