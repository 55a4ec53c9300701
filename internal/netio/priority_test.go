package netio

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/internal/require"
)

// onThread runs f on a thread of its own, which ends with it: with its priority and capabilities.
func onThread(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		require.Missing(t, "root", "%v: %s", err, PriorityRemedy)
	} else if err != nil {
		t.Error(err)
	}
}

// scheduled checks how a thread is scheduled; 0: the calling one.
func scheduled(thread int, policy uint32, nice int32) error {
	got, err := unix.SchedGetAttr(thread, 0)
	if err == nil && (got.Policy != policy || got.Nice != nice) {
		err = fmt.Errorf("policy %d, nice value %d; want %d and %d", got.Policy, got.Nice, policy, nice)
	}
	return err
}

func TestPriorityComesAndGoes(t *testing.T) {
	for _, p := range []Priority{Normal, Nice, RealTime} {
		t.Run(p.String(), func(t *testing.T) {
			onThread(t, func() error {
				before, err := unix.SchedGetAttr(0, 0)
				if err != nil {
					return err
				}
				s, err := NewScheduling(p)
				if err != nil {
					return err
				}
				want := int32(mostNice)
				if p == Normal {
					want = before.Nice
				}
				return errors.Join(scheduled(0, before.Policy, before.Nice), s.Raise(), scheduled(0, before.Policy, want),
					s.Lower(), scheduled(0, before.Policy, before.Nice))
			})
		})
	}
}

// TestRealTimeIsForSleep: a thread is in real time while it waits, and never when it comes back,
// whether the wait ends by an event or by time.
func TestRealTimeIsForSleep(t *testing.T) {
	poller, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer poller.Close()
	bell, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	if err := poller.Add(bell.FD(), 1); err != nil {
		t.Fatal(err)
	}
	onThread(t, func() error {
		s, err := NewScheduling(RealTime)
		if err != nil {
			return err
		}
		asleep := make(chan error, 1)
		go ringInRealTime(unix.Gettid(), bell, asleep)
		began, ready := time.Now(), 0
		for ready == 0 && err == nil && time.Since(began) < patience.Or(20*time.Second) {
			ready, err = poller.WaitRealTime(Forever, s) // none, if a signal has woken it
			err = errors.Join(err, scheduled(0, unix.SCHED_NORMAL, mostNice))
		}
		if err = errors.Join(err, <-asleep); err != nil || ready != 1 {
			return errors.Join(err, fmt.Errorf("%d descriptors are ready, want 1", ready))
		}
		bell.Clear()
		if ready, err = poller.WaitRealTime(time.Microsecond, s); err == nil && ready != 0 {
			err = fmt.Errorf("%d descriptors are ready after nothing has happened", ready)
		}
		return errors.Join(err, scheduled(0, unix.SCHED_NORMAL, mostNice), s.Lower(), scheduled(0, unix.SCHED_NORMAL, s.normal.Nice))
	})
}

// ringInRealTime rings when it has seen the thread in real time.
func ringInRealTime(thread int, bell *Event, seen chan<- error) {
	defer bell.Signal()
	err := errors.New("never")
	for began := time.Now(); err != nil && time.Since(began) < patience.Or(20*time.Second)/2; time.Sleep(time.Millisecond) {
		err = scheduled(thread, unix.SCHED_FIFO, 0)
	}
	seen <- err
}

// TestPriorityWithoutPrivilege: who may not is told so, and is scheduled as before.
func TestPriorityWithoutPrivilege(t *testing.T) {
	for _, kind := range []int{unix.RLIMIT_NICE, unix.RLIMIT_RTPRIO} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(kind, &limit); err != nil {
			t.Fatal(err)
		}
		if limit.Cur > 0 {
			t.Skipf("every user may here: limit %d is %d", kind, limit.Cur)
		}
	}
	for _, p := range []Priority{Nice, RealTime} {
		onThread(t, func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			if err := unix.Capset(&header, &none[0]); err != nil {
				return err
			}
			before, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				return err
			}
			if _, err := NewScheduling(p); !errors.Is(err, unix.EPERM) {
				return fmt.Errorf("%v without privileges: %v", p, err)
			}
			return scheduled(0, before.Policy, before.Nice)
		})
	}
}
