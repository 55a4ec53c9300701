// Package seccomptest takes system calls away from a process, as a container engine's filter does,
// for tests of programs that have to do without them.
package seccomptest

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Refused is the answer to a call that a filter refuses: EPERM, as container engines have it.
const Refused = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)

// NumberAt is where a filter finds the number of the system call (struct seccomp_data).
const NumberAt = 0

// Forbid makes a system call fail for this process and all that it starts, for good.
func Forbid(call uint32) error {
	return Install([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: NumberAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: Refused},
	})
}

// Install sets a filter for all threads of this process and all that it starts, for good. It needs
// no privilege.
func Install(filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The filter may only be set by a thread without new privileges; TSYNC gives both to the other
	// threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if thread != 0 {
		return fmt.Errorf("seccomp: thread %d has another filter", thread)
	}
	return nil
}
