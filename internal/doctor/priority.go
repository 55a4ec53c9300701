package doctor

import (
	"errors"
	"runtime"

	"dsmd/internal/netio"
)

// priority is about how the daemon gets a core while programs compute.
func priority(try func(netio.Priority) error) Finding {
	f := Finding{Name: "priority", Verdict: OK, Detail: "nice and realtime are allowed; --priority auto is nice"}
	nice, realTime := try(netio.Nice), try(netio.RealTime)
	if err := errors.Join(nice, realTime); err == nil {
		return f
	}
	f.Remedy = netio.PriorityRemedy
	switch {
	case nice == nil:
		f.Detail = "nice is allowed, and is what --priority auto is; realtime is not: " + realTime.Error()
		f.Consequence = "none, but where daemon and programs are in different control groups or sessions, only realtime counts"
	case realTime == nil:
		f.Verdict = Missing
		f.Detail = "realtime is allowed (--priority realtime); nice is not: " + nice.Error()
		f.Consequence = "--priority auto is normal: while all cores compute, some faults wait for a slice of a program, 3 ms"
	default:
		f.Verdict = Missing
		f.Detail = nice.Error()
		f.Consequence = "while all cores compute, some faults wait for a slice of a program, 3 ms"
	}
	return f
}

// tryPriority tries one on a thread that ends with it.
func tryPriority(p netio.Priority) error {
	tried := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		_, err := netio.NewScheduling(p)
		tried <- err
	}()
	return <-tried
}
