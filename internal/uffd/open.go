package uffd

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Mode is a way to open a userfaultfd.
type Mode uint8

const (
	// ModeSyscall is the plain system call. It needs CAP_SYS_PTRACE, or the sysctl
	// vm.unprivileged_userfaultfd set to 1, and traps faults taken in user mode and inside system
	// calls.
	ModeSyscall Mode = iota + 1
	// ModeDevice is /dev/userfaultfd (Linux 6.1): whoever may open the device gets the same as
	// ModeSyscall.
	ModeDevice
	// ModeUserOnly is the system call with UFFD_USER_MODE_ONLY (Linux 5.11), open to everyone. A
	// system call that meets a page which is not there then fails with EFAULT instead of waiting
	// for it.
	ModeUserOnly
)

// DeviceRequest is the number of the ioctl that ModeDevice needs, for those who filter system
// calls.
const DeviceRequest = cmdDeviceNew

// AllModes are all ways to open a userfaultfd, the most capable first.
var AllModes = []Mode{ModeSyscall, ModeDevice, ModeUserOnly}

func (m Mode) String() string {
	switch m {
	case ModeSyscall:
		return "userfaultfd system call"
	case ModeDevice:
		return "/dev/userfaultfd"
	case ModeUserOnly:
		return "userfaultfd system call, user-mode faults only"
	}
	return fmt.Sprintf("uffd.Mode(%d)", uint8(m))
}

// KernelFaults reports whether faults taken inside system calls trap too.
func (m Mode) KernelFaults() bool { return m == ModeSyscall || m == ModeDevice }

// ErrUnavailable is wrapped by every error of Open: no way to open a usable userfaultfd worked.
var ErrUnavailable = errors.New("userfaultfd is not available")

// ErrFeatures is wrapped by the error of an attempt that got a descriptor without the needed
// features.
var ErrFeatures = errors.New("this kernel's userfaultfd lacks features")

// Attempt says how one way to open a userfaultfd went.
type Attempt struct {
	Mode Mode
	// Err is nil if it worked.
	Err error
	// Remedy says what to change so that it works; empty if it did.
	Remedy string
}

// OpenError is the error of Open: every way that was tried, and why it failed.
type OpenError struct{ Attempts []Attempt }

func (e *OpenError) Error() string {
	var b strings.Builder
	b.WriteString(ErrUnavailable.Error())
	for _, a := range e.Attempts {
		fmt.Fprintf(&b, "; %s: %v (%s)", a.Mode, a.Err, a.Remedy)
	}
	return b.String()
}

// Unwrap makes errors.Is find ErrUnavailable and the errors of the attempts.
func (e *OpenError) Unwrap() []error {
	errs := []error{ErrUnavailable}
	for _, a := range e.Attempts {
		errs = append(errs, a.Err)
	}
	return errs
}

// Open opens a userfaultfd for the address space of the calling process, nonblocking and
// close-on-exec, in the first of modes that works (none given: AllModes), and enables the Needed
// features and those of Wanted that the kernel has. The error is an *OpenError.
//
// The process must keep the descriptor open for as long as it may touch what it registers, also
// when it has passed it on: when the last descriptor is closed, the kernel quietly unregisters
// everything, and later loads read whatever the memory file holds, coherent or not.
func Open(modes ...Mode) (*FD, error) {
	if len(modes) == 0 {
		modes = AllModes
	}
	var failed []Attempt
	for _, m := range modes {
		fd, err := openAndAgree(m)
		if err == nil {
			fd.failed = failed
			return fd, nil
		}
		failed = append(failed, Attempt{Mode: m, Err: err, Remedy: remedy(m, err)})
	}
	return nil, &OpenError{Attempts: failed}
}

// openAndAgree opens a descriptor and enables features on it. UFFDIO_API can be called once per
// descriptor and fails as a whole when asked for a feature that the kernel lacks, so a first,
// throw-away descriptor asks what there is.
func openAndAgree(m Mode) (*FD, error) {
	has, err := probeFeatures(m)
	if err != nil {
		return nil, err
	}
	if missing := Needed &^ has; missing != 0 {
		return nil, fmt.Errorf("%w: %v (Linux %s has them)", ErrFeatures, missing, missing.since())
	}
	n, err := openRaw(m)
	if err != nil {
		return nil, err
	}
	use := Needed | Wanted&has
	if _, err := agree(n, use); err != nil {
		unix.Close(n)
		return nil, fmt.Errorf("enable %v: %w", use, err)
	}
	return &FD{fd: n, mode: m, features: use}, nil
}

// probeFeatures asks the kernel which features it has, on a descriptor of its own.
func probeFeatures(m Mode) (Features, error) {
	n, err := openRaw(m)
	if err != nil {
		return 0, err
	}
	defer unix.Close(n)
	has, err := agree(n, 0)
	if err != nil {
		return 0, fmt.Errorf("ask for the features: %w", err)
	}
	return has, nil
}

// openRaw gets a descriptor on which UFFDIO_API has not been called yet.
func openRaw(m Mode) (int, error) {
	const flags = unix.O_CLOEXEC | unix.O_NONBLOCK
	switch m {
	case ModeSyscall, ModeUserOnly:
		f := uintptr(flags)
		if m == ModeUserOnly {
			f |= userModeOnly
		}
		n, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, f, 0, 0)
		if errno != 0 {
			return -1, os.NewSyscallError("userfaultfd", errno)
		}
		return int(n), nil
	case ModeDevice:
		dev, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: "/dev/userfaultfd", Err: err}
		}
		defer unix.Close(dev)
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(dev), cmdDeviceNew, flags)
		if errno != 0 {
			return -1, os.NewSyscallError("USERFAULTFD_IOC_NEW on /dev/userfaultfd", errno)
		}
		return int(n), nil
	}
	return -1, fmt.Errorf("%v: %w", m, unix.EINVAL)
}

// remedy tells the user what would make mode m work, given how it failed.
func remedy(m Mode, err error) string {
	switch {
	case errors.Is(err, ErrFeatures):
		return "use a newer kernel, or --trap sigsegv"
	case errors.Is(err, unix.ENOSYS):
		return "this kernel has no userfaultfd (CONFIG_USERFAULTFD), or a seccomp filter hides it: in a container run with a " +
			"seccomp profile that allows the userfaultfd system call; else use --trap sigsegv"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "too many open files: raise the limit (ulimit -n)"
	}
	switch m {
	case ModeSyscall:
		if errors.Is(err, unix.EPERM) {
			return "set the sysctl: sysctl -w vm.unprivileged_userfaultfd=1; or give the program CAP_SYS_PTRACE; " +
				"in a container also allow the userfaultfd system call in the seccomp profile"
		}
	case ModeDevice:
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
			return "needs Linux 6.1; in a container pass the device in (--device /dev/userfaultfd)"
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return "permit this user to open the device: chgrp GROUP /dev/userfaultfd; chmod g+rw /dev/userfaultfd " +
				"(in a container also allow it in the device cgroup)"
		}
	case ModeUserOnly:
		switch {
		case errors.Is(err, unix.EPERM):
			return "every user may do this, so a seccomp filter or security module forbids it: in a container run with a " +
				"seccomp profile that allows the userfaultfd system call; else use --trap sigsegv"
		case errors.Is(err, unix.EINVAL):
			return "needs Linux 5.11; or set the sysctl: sysctl -w vm.unprivileged_userfaultfd=1"
		}
	}
	return "unexpected: see dmesg and docs/kernel.md"
}
