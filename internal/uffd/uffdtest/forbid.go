package uffdtest

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// Forbid makes userfaultfd impossible for this process and all that it starts, for good, as a
// container engine's seccomp filter does: the system call fails with EPERM, and so does the request
// to /dev/userfaultfd.
func Forbid() error {
	const (
		numberAt = 0 // struct seccomp_data: the number of the system call
		// the lower half of its second argument: these machines are little-endian
		requestAt = 16 + 1*8
		refuse    = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: numberAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_USERFAULTFD, Jt: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IOCTL, Jf: 2},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: requestAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uffd.DeviceRequest, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: refuse},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// the filter may only be set by a thread without new privileges; TSYNC gives both to the other
	// threads
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}
