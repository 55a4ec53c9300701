package uffdtest

import (
	"golang.org/x/sys/unix"

	"dsmd/internal/seccomptest"
	"dsmd/internal/uffd"
)

// Forbid makes userfaultfd impossible for this process and all that it starts, for good, as a
// container engine's seccomp filter does: the system call fails with EPERM, and so does the request
// to /dev/userfaultfd.
func Forbid() error {
	// the lower half of its second argument: these machines are little-endian
	const requestAt = 16 + 1*8
	return seccomptest.Install([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: seccomptest.NumberAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_USERFAULTFD, Jt: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IOCTL, Jf: 2},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: requestAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uffd.DeviceRequest, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: seccomptest.Refused},
	})
}
