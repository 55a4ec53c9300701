// Package memfile makes the memory files that daemons and programs share: for pages, for the state
// of a trap, and for synchronisation. None of those who have one can shorten it.
package memfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Create makes a sparse file of so many zeros. Its size is sealed: to touch what a shortened file
// no longer has would end whoever shares it. The name shows in /proc.
func Create(name string, bytes uint64) (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// Where vm.memfd_noexec demands it, the file must say that it is not executable; kernels before
	// 6.3 don't know that.
	fd, err = unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("create the memory file %s: %w", name, Explain(os.NewSyscallError("memfd_create", err)))
	}
	if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make the memory file %s %d bytes long: %w (is the limit on file size, ulimit -f, lower?)", name, bytes, os.NewSyscallError("ftruncate", err))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("seal the size of the memory file %s: %w", name, os.NewSyscallError("F_ADD_SEALS", err))
	}
	return fd, nil
}

// Explain adds advice to an error of memfd_create, which some filters of containers forbid.
func Explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: a filter forbids this system call; the seccomp profile of the container, or SystemCallFilter= of the service, has to allow it", err)
	}
	return err
}
