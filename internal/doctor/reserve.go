package doctor

import "golang.org/x/sys/unix"

// reserve takes the addresses and gives them back. The system calls are raw because the addresses
// are numbers here, which never become pointers: nothing is at them.
func reserve(base, bytes uintptr) error {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANON | unix.MAP_NORESERVE | unix.MAP_FIXED_NOREPLACE
	const noFile = ^uintptr(0)
	got, _, errno := unix.Syscall6(unix.SYS_MMAP, base, bytes, unix.PROT_NONE, flags, noFile, 0)
	if errno != 0 {
		return errno
	}
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, got, bytes, 0); errno != 0 {
		return errno
	}
	// A kernel older than 4.17 takes the address as a hint only.
	if got != base {
		return unix.EEXIST
	}
	return nil
}
