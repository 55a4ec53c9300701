package attach

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watch is a running death watch.
type Watch struct {
	area   *watchArea
	socket int // a duplicate, so that the number can't be reused under the thread
	stop   int // an eventfd
	once   sync.Once
}

// watchArea is the only memory that the thread uses: its orders, and its stack at the end. It is
// mapped for it, so no collector moves or frees it. The offsets are known to watch_linux_amd64.s.
type watchArea struct {
	socket, stop unix.PollFd   // 0, 8
	grace        unix.Timespec // 16
	textBytes    uint64        // 32
	status       uint64        // 40
	// 48: the kernel clears it and wakes its waiters when the thread has ended
	alive atomic.Uint32
	_     uint32
	text  [MaxText]byte // 56
	stack [2048]byte    // nothing is ever pushed: the thread only makes system calls
}

// spawnWatch starts the thread on area, with stack growing down from stackTop. It returns the
// thread's id or a negative errno.
//
//go:noescape
func spawnWatch(area *watchArea, stackTop uintptr) int64

func startWatch(socket int, grace time.Duration, status int, text string) (*Watch, error) {
	dup, err := unix.FcntlInt(uintptr(socket), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("F_DUPFD_CLOEXEC", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(dup)
		return nil, os.NewSyscallError("eventfd", err)
	}
	p, err := unix.MmapPtr(-1, 0, nil, unsafe.Sizeof(watchArea{}), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		unix.Close(dup)
		unix.Close(stop)
		return nil, os.NewSyscallError("mmap", err)
	}
	w := &Watch{area: (*watchArea)(p), socket: dup, stop: stop}
	a := w.area
	// POLLHUP is reported unasked; POLLRDHUP is what a peer that closes causes first. Arriving data
	// is neither.
	a.socket = unix.PollFd{Fd: int32(dup), Events: unix.POLLRDHUP}
	a.stop = unix.PollFd{Fd: int32(stop), Events: unix.POLLIN}
	a.grace = unix.NsecToTimespec(max(grace, 0).Nanoseconds())
	a.textBytes = uint64(copy(a.text[:], text))
	a.status = uint64(status)
	a.alive.Store(1)
	if err := w.spawn(); err != nil {
		w.free()
		return nil, err
	}
	return w, nil
}

// spawn starts the thread with all signals blocked, which it inherits: a signal delivered to it
// would run Go's handler on a thread that Go does not know, which ends the process.
func (w *Watch) spawn() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return os.NewSyscallError("rt_sigprocmask", err)
	}
	top := uintptr(unsafe.Pointer(w.area)) + unsafe.Sizeof(watchArea{})
	tid := spawnWatch(w.area, top&^15)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		// This thread would be deaf from here on, to preemption too.
		panic(os.NewSyscallError("rt_sigprocmask", err))
	}
	if tid < 0 {
		return os.NewSyscallError("clone", unix.Errno(-tid))
	}
	return nil
}

// Stop ends the watch and waits until its thread is gone. It may be called more than once.
func (w *Watch) Stop() {
	w.once.Do(func() {
		one := [8]byte{1}
		if _, err := unix.Write(w.stop, one[:]); err != nil {
			panic(os.NewSyscallError("write to an eventfd", err))
		}
		for w.area.alive.Load() != 0 {
			// FUTEX_WAIT returns at once if the word is no longer 1; not private, because the
			// kernel's wake isn't.
			unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&w.area.alive)), 0, 1, 0, 0, 0)
		}
		w.free()
	})
}

func (w *Watch) free() {
	unix.Close(w.socket)
	unix.Close(w.stop)
	unix.MunmapPtr(unsafe.Pointer(w.area), unsafe.Sizeof(watchArea{}))
	w.area = nil
}
