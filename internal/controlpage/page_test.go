package controlpage

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is a page as the daemon and as a program have it.
func pair(t *testing.T) (daemon, user *Page) {
	t.Helper()
	daemon, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Close(); err != nil {
			t.Error(err)
		}
	})
	fd, err := unix.Dup(daemon.FD())
	if err != nil {
		t.Fatal(err)
	}
	if user, err = Map(fd); err != nil {
		t.Fatal(err)
	}
	return daemon, user
}

// TestLifeOfAWord: both sides see the same words, and each does its part.
func TestLifeOfAWord(t *testing.T) {
	daemon, user := pair(t)
	if user.Take(name) {
		t.Error("a lock is taken that was not published")
	}
	daemon.Publish(name)
	if user.Take(name ^ 1<<40) {
		t.Error("a lock is taken by another's word, which has the same place")
	}
	if !user.Take(name) || user.Take(name) {
		t.Error("a published lock is not taken once")
	}
	if lock, held := user.HeldIn(Slot(name)); lock != name || !held {
		t.Errorf("in its slot %#x is held: %v", lock, held)
	}
	if user.GiveBack(name^1<<40) != NotTaken {
		t.Error("another lock is given back")
	}
	if user.GiveBack(name) != Freed || user.GiveBack(name) != NotTaken {
		t.Error("the lock is not given back once")
	}
	if _, held := user.HeldIn(Slot(name)); held {
		t.Error("a lock that was given back is held")
	}
	if !user.Take(name) || daemon.Recall(name) != FoundHeld {
		t.Error("a lock that is held is not found held")
	}
	if user.GiveBack(name) != Recalled || user.Take(name) {
		t.Error("who gives back a lock that is wanted is not told so")
	}
	if daemon.Withdraw(name) {
		t.Error("a lock that was recalled is found published")
	}
	daemon.Publish(name)
	if daemon.Recall(name) != FoundFree || user.Take(name) {
		t.Error("a free lock is not gone when it is recalled")
	}
	daemon.Publish(name)
	if !daemon.Withdraw(name) || user.Take(name) {
		t.Error("a free lock is not gone when it is withdrawn")
	}
}

// TestRetired: goroutines go on using a page while it is retired, and from then on get nothing.
func TestRetired(t *testing.T) {
	daemon, user := pair(t)
	daemon.Publish(name)
	var all sync.WaitGroup
	var retired atomic.Bool
	for range 2 {
		all.Go(func() {
			for !retired.Load() {
				if user.Take(name) {
					user.GiveBack(name)
				}
			}
		})
	}
	for range 2 {
		if err := user.Retire(); err != nil {
			t.Fatal(err)
		}
	}
	retired.Store(true)
	all.Wait()
	daemon.Publish(name + 1)
	if user.Take(name) || user.Take(name+1) {
		t.Error("a retired page still has locks")
	}
}

// TestFile: the daemon's file can't be shortened, and no other is taken for one.
func TestFile(t *testing.T) {
	daemon, _ := pair(t)
	if err := unix.Ftruncate(daemon.FD(), 0); err != unix.EPERM {
		t.Errorf("shortening the file: %v, want %v", err, unix.EPERM)
	}
	fd, err := unix.MemfdCreate("short", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Map(fd); err == nil || !strings.Contains(err.Error(), "the daemon is faulty") {
		t.Errorf("a file without bytes: %v", err)
	}
}

func BenchmarkTakeAndGiveBack(b *testing.B) {
	daemon, err := Create()
	if err != nil {
		b.Fatal(err)
	}
	defer daemon.Close()
	daemon.Publish(name)
	for b.Loop() {
		if !daemon.Take(name) || daemon.GiveBack(name) != Freed {
			b.Fatal("the lock was not free")
		}
	}
}
