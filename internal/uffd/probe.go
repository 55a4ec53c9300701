package uffd

import (
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Answer is the result of asking the kernel for something by trying it.
type Answer uint8

const (
	Unknown Answer = iota // could not tell
	No
	Yes
)

func (a Answer) String() string { return [...]string{"could not tell", "no", "yes"}[a] }

// Report is what Probe found out about this kernel and this user's permissions.
type Report struct {
	// Attempts has one entry for each of AllModes, in order, whether it worked or not.
	Attempts []Attempt
	// Features are those of the kernel; 0 when no mode works.
	Features Features
	// ContinueWP: pages can be mapped read-only from the file in one step (Linux 6.4). Without it,
	// a second program on a node that reads a shared page takes the mapping away from the first.
	ContinueWP Answer
	// ContinueWPErr says why ContinueWP is Unknown.
	ContinueWPErr error
}

// Usable reports whether Open would succeed.
func (r Report) Usable() bool {
	return slices.ContainsFunc(r.Attempts, func(a Attempt) bool { return a.Err == nil })
}

// Probe tries every way to open a userfaultfd, and the operations whose presence no feature bit
// tells. It leaves nothing open.
func Probe() Report {
	var r Report
	for _, m := range AllModes {
		a := Attempt{Mode: m}
		fd, err := openAndAgree(m)
		if err != nil {
			a.Err, a.Remedy = err, remedy(m, err)
			r.Attempts = append(r.Attempts, a)
			continue
		}
		r.Attempts = append(r.Attempts, a)
		if r.Features == 0 {
			r.Features, _ = probeFeatures(m) // it has just worked; 0 says that it no longer does
			r.ContinueWP, r.ContinueWPErr = probeContinueWP(fd)
		}
		fd.Close()
	}
	return r
}

// probeContinueWP maps one page of a scratch file write-protected. Nobody ever touches the mapping,
// so no fault is taken in this process, which nobody would serve.
func probeContinueWP(fd *FD) (Answer, error) {
	size := os.Getpagesize()
	file, err := unix.MemfdCreate("uffd-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return Unknown, fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(file)
	if _, err := unix.Pwrite(file, make([]byte, size), 0); err != nil {
		return Unknown, fmt.Errorf("write a page of a memfd: %w", err)
	}
	addr, err := unix.MmapPtr(file, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return Unknown, fmt.Errorf("map a page of a memfd: %w", err)
	}
	defer unix.MunmapPtr(unsafe.Pointer(addr), uintptr(size))
	if err := fd.Register(uintptr(addr), uintptr(size)); err != nil {
		return Unknown, err
	}
	switch _, errno := fd.Continue(uintptr(addr), uintptr(size), WriteProtected); errno {
	case 0:
		return Yes, nil
	case unix.EINVAL:
		return No, nil
	default:
		return Unknown, fmt.Errorf("UFFDIO_CONTINUE write-protected: %w", errno)
	}
}
