package uffd

import "unsafe"

// The numbers below are the kernel's, from include/uapi/linux/userfaultfd.h. They are the same on
// every architecture that uses the generic ioctl encoding, amd64 and arm64 among them.

const (
	ioctlWrite = 1
	ioctlRead  = 2

	ioctlType = 0xAA // USERFAULTFD_IOC, and also UFFD_API, the version of the interface
)

const (
	cmdAPI          = (ioctlRead|ioctlWrite)<<30 | unsafe.Sizeof(apiArg{})<<16 | ioctlType<<8 | 0x3F
	cmdRegister     = (ioctlRead|ioctlWrite)<<30 | unsafe.Sizeof(registerArg{})<<16 | ioctlType<<8 | 0x00
	cmdUnregister   = ioctlRead<<30 | unsafe.Sizeof(rangeArg{})<<16 | ioctlType<<8 | 0x01
	cmdWake         = ioctlRead<<30 | unsafe.Sizeof(rangeArg{})<<16 | ioctlType<<8 | 0x02
	cmdCopy         = (ioctlRead|ioctlWrite)<<30 | unsafe.Sizeof(copyArg{})<<16 | ioctlType<<8 | 0x03
	cmdZeroPage     = (ioctlRead|ioctlWrite)<<30 | unsafe.Sizeof(progressArg{})<<16 | ioctlType<<8 | 0x04
	cmdWriteProtect = (ioctlRead|ioctlWrite)<<30 | unsafe.Sizeof(protectArg{})<<16 | ioctlType<<8 | 0x06
	cmdContinue     = (ioctlRead|ioctlWrite)<<30 | unsafe.Sizeof(progressArg{})<<16 | ioctlType<<8 | 0x07
	cmdPoison       = (ioctlRead|ioctlWrite)<<30 | unsafe.Sizeof(progressArg{})<<16 | ioctlType<<8 | 0x08

	cmdDeviceNew = ioctlType << 8 // USERFAULTFD_IOC_NEW, on /dev/userfaultfd
)

type apiArg struct{ api, features, ioctls uint64 }

type rangeArg struct{ start, len uint64 }

type registerArg struct {
	rangeArg
	mode, ioctls uint64
}

// copyArg's source is a pointer, not a number, so that the garbage collector and the stack mover
// know it for as long as the kernel may read through it.
type copyArg struct {
	dst       uint64
	src       unsafe.Pointer
	len, mode uint64
	copied    int64
}

// progressArg serves ZEROPAGE, CONTINUE and POISON: all take a range and a mode and report bytes
// done.
type progressArg struct {
	rangeArg
	mode uint64
	done int64
}

type protectArg struct {
	rangeArg
	mode uint64
}

// message is struct uffd_msg for a page fault, 32 bytes.
type message struct {
	event   uint8
	_       [7]byte
	flags   uint64
	address uint64
	thread  uint32
	_       uint32
}

const messageBytes = int(unsafe.Sizeof(message{}))

const (
	eventPageFault = 0x12
	eventFork      = 0x13

	registerMissing = 1 << 0
	registerWP      = 1 << 1
	registerMinor   = 1 << 2

	// userModeOnly is UFFD_USER_MODE_ONLY, a flag of the userfaultfd system call.
	userModeOnly = 1
)

// Mode bits of Copy, ZeroPage and Continue. ZeroPage knows only DontWake.
const (
	// DontWake leaves the threads that wait for the range asleep.
	DontWake uint64 = 1 << 0
	// WriteProtected maps the pages so that stores fault. In Continue it needs Linux 6.4 (else
	// EINVAL).
	WriteProtected uint64 = 1 << 1
)

const (
	protectOn       = 1 << 0
	protectDontWake = 1 << 1
)
