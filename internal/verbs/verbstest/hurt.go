package verbstest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A State is one into which queue pairs are brought from outside. The numbers are the kernel's
// (enum ib_qp_state).
type State uint8

const (
	// Draining: the queue pair answers its peer, but sends nothing more, and nobody is told.
	Draining State = 4
	// Failed: it neither sends nor answers, and whoever posts a request is told.
	Failed State = 6
)

// HurtQueuePairs brings all queue pairs of another process into a state, as far as they are in one
// from where that is possible, and returns how many that were. Neither the process nor its peers
// have a part in it: the queue pairs belong to open device files, and whoever may trace the process
// may have these as well. It is for Linux's Soft-RoCE; the kernel refuses it for other devices.
func HurtQueuePairs(pid int, to State) (hurt int, err error) {
	files, err := deviceFiles(pid)
	if err != nil {
		return 0, fmt.Errorf("verbstest: the device files of process %d: %w", pid, err)
	}
	for _, fd := range files {
		n, failed := hurtQueuePairs(fd, to)
		hurt += n
		err = errors.Join(err, failed, unix.Close(fd))
	}
	return hurt, err
}

// deviceFiles returns copies of a process's descriptors of RDMA devices. It may close some of them
// meanwhile.
func deviceFiles(pid int) (files []int, err error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(process)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if to, err := os.Readlink(dir + "/" + e.Name()); err != nil || !strings.HasPrefix(to, "/dev/infiniband/uverbs") {
			continue
		}
		var number int
		if _, err := fmt.Sscan(e.Name(), &number); err != nil {
			continue
		}
		if fd, err := unix.PidfdGetfd(process, number, 0); err == nil {
			files = append(files, fd)
		}
	}
	return files, nil
}

// What follows is the kernel's interface of RDMA (rdma/rdma_user_ioctl_cmds.h,
// ib_user_ioctl_cmds.h, ib_user_verbs.h). libibverbs has no call for queue pairs that it has not
// made.
const (
	requestIoctl = 0xc0181b01 // RDMA_VERBS_IOCTL
	driver       = 14         // RDMA_DRIVER_RXE
	mandatory    = 1          // UVERBS_ATTR_F_MANDATORY

	objectDevice    = 0 // UVERBS_OBJECT_DEVICE
	objectQueuePair = 4 // UVERBS_OBJECT_QP

	methodInvoke = 0 // UVERBS_METHOD_INVOKE_WRITE
	invokeIn     = 0 // UVERBS_ATTR_CORE_IN
	invokeWhat   = 2 // UVERBS_ATTR_WRITE_CMD
	modifyQP     = 26

	methodHandles = 1 // UVERBS_METHOD_INFO_HANDLES
	handlesOf     = 0 // UVERBS_ATTR_INFO_OBJECT_ID
	handlesTotal  = 1 // UVERBS_ATTR_INFO_TOTAL_HANDLES
	handlesList   = 2 // UVERBS_ATTR_INFO_HANDLES_LIST

	stateMask = 1 // IB_QP_STATE
	// maxQueuePairs is how many queue pairs a file may have; if it has more, the kernel refuses to
	// list them.
	maxQueuePairs = 256
)

// attribute is struct ib_uverbs_attr.
type attribute struct {
	id, bytes, flags, _ uint16
	data                uint64
}

// request is struct ib_uverbs_ioctl_hdr, with as many attributes as are needed here at most.
type request struct {
	bytes, object, method, attributes uint16
	_                                 uint64
	driver, _                         uint32
	list                              [3]attribute
}

// modification is struct ib_uverbs_modify_qp.
type modification struct {
	_            [64]byte // two addresses
	handle, mask uint32
	_            [24]byte
	state        State
	_            [15]byte
}

// constant is an attribute that is a number.
func constant(id uint16, value uint64) attribute {
	return attribute{id: id, bytes: 8, flags: mandatory, data: value}
}

// memory is an attribute that is the memory of a value, which pinned keeps where it is.
func memory[T any](pinned *runtime.Pinner, id uint16, value *T) attribute {
	pinned.Pin(value)
	return attribute{id: id, bytes: uint16(unsafe.Sizeof(*value)), flags: mandatory, data: uint64(uintptr(unsafe.Pointer(value)))}
}

// ask calls a method of the device that a file is of.
func ask(fd int, method uint16, list ...attribute) error {
	r := request{object: objectDevice, method: method, attributes: uint16(len(list)), driver: driver}
	r.bytes = uint16(unsafe.Sizeof(r) - uintptr(len(r.list)-len(list))*unsafe.Sizeof(attribute{}))
	copy(r.list[:], list)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), requestIoctl, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return errno
	}
	return nil
}

func hurtQueuePairs(fd int, to State) (hurt int, err error) {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	var total uint32
	var handles [maxQueuePairs]uint32
	if err := ask(fd, methodHandles, constant(handlesOf, objectQueuePair), memory(&pinned, handlesTotal, &total), memory(&pinned, handlesList, &handles)); err != nil {
		return 0, fmt.Errorf("verbstest: list queue pairs: %w", err)
	}
	for _, handle := range handles[:min(int(total), maxQueuePairs)] {
		m := modification{handle: handle, mask: stateMask, state: to}
		switch err := ask(fd, methodInvoke, memory(&pinned, invokeIn, &m), constant(invokeWhat, modifyQP)); {
		case err == nil:
			hurt++
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			// It is in another state, or has been closed meanwhile.
		default:
			return hurt, fmt.Errorf("verbstest: bring a queue pair into state %d: %w", to, err)
		}
	}
	return hurt, nil
}
