package doctor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/memlimit"
)

const (
	// regionBase and regionBytes are the defaults of the shared region: where programs reserve
	// addresses for it, and how many.
	regionBase  = 0x4000_0000_0000
	regionBytes = 64 << 30

	// wantFiles is the limit of open files that suffices for a cluster of 64 nodes on one machine,
	// whose supervisor has the most: some ten for each node. It is also what most systems give.
	wantFiles = 1024

	// wantMaps is the number of mappings a program may have that suffices: each allocation is one.
	wantMaps = 4096

	// wantMemory is what a daemon needs to be of use, and the daemon itself takes some tens of MiB.
	wantMemory = 256 << 20

	// loopbackTimeout bounds the round trip to this very machine.
	loopbackTimeout = 10 * time.Second
)

// disk says how files are read and written: err is why not by io_uring.
func disk(err error) Finding {
	if err != nil {
		return Finding{Name: "io_uring", Verdict: Missing, Detail: err.Error(),
			Consequence: "files that are mapped, spill files and checkpoints are read and written by threads, which takes more processor time",
			Remedy:      "sysctl -w kernel.io_uring_disabled=0 (in a container: allow it in the seccomp profile)"}
	}
	return Finding{Name: "io_uring", Verdict: OK, Detail: "files are read and written by it"}
}

// memfd tries what the daemon does with the file behind the shared memory.
func memfd() Finding {
	f := Finding{Name: "memfd", Required: true, Verdict: Missing, Consequence: "the daemon has nowhere to keep pages"}
	fd, err := unix.MemfdCreate("dsmd-doctor", unix.MFD_CLOEXEC)
	if err != nil {
		f.Detail = "memfd_create: " + err.Error()
		f.Remedy = "allow the memfd_create system call (in a container: the seccomp profile)"
		return f
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, regionBytes); err != nil {
		f.Detail = fmt.Sprintf("a sparse memfd of %d GiB: %v", regionBytes>>30, err)
		f.Remedy = "ulimit -f unlimited, or a smaller region (--region)"
		return f
	}
	page := make([]byte, os.Getpagesize())
	if _, err := unix.Pwrite(fd, page, regionBytes/2); err != nil {
		f.Detail = "writing a page: " + err.Error()
		f.Remedy = "more memory, or a higher memory limit of the container"
		return f
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, regionBytes/2, int64(len(page))); err != nil {
		f.Detail = "punching a hole: " + err.Error()
		f.Remedy = "allow the fallocate system call (in a container: the seccomp profile)"
		return f
	}
	return Finding{Name: f.Name, Required: true, Verdict: OK, Detail: fmt.Sprintf("%d GiB sparse, holes can be punched", regionBytes>>30)}
}

// region tries to reserve addresses as programs do, at the address that is the same everywhere.
func region() Finding {
	f := Finding{Name: "region of addresses", Required: true, Verdict: OK, Detail: fmt.Sprintf("%d GiB at %#x are free", regionBytes>>30, uint64(regionBase))}
	if err := reserve(regionBase, regionBytes); err != nil {
		f.Verdict, f.Detail = Missing, fmt.Sprintf("%d GiB at %#x: %v", regionBytes>>30, uint64(regionBase), err)
		f.Consequence = "programs cannot map the shared region"
		f.Remedy = "ulimit -v unlimited, or a smaller region (--region)"
	}
	return f
}

// descriptors tries to pass a descriptor over a Unix socket, which is how programs and daemons
// exchange theirs.
func descriptors() Finding {
	f := Finding{Name: "passing descriptors", Required: true, Verdict: OK, Detail: "SCM_RIGHTS over a Unix socket works"}
	if err := passDescriptor(); err != nil {
		f.Verdict, f.Detail = Missing, err.Error()
		f.Consequence = "programs cannot attach to their daemon"
		f.Remedy = "allow Unix sockets and sendmsg (in a container: the seccomp profile or security module)"
	}
	return f
}

func passDescriptor() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := unix.Sendmsg(pair[0], []byte{1}, unix.UnixRights(pair[0]), nil, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("recvmsg", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return errors.New("the descriptor was lost on the way")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	for _, fd := range fds {
		unix.Close(fd)
	}
	return err
}

func openFiles() Finding {
	f := Finding{Name: "open files", Verdict: OK}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		f.Verdict, f.Detail = Unknown, err.Error()
		return f
	}
	// The hard limit counts: Go raises the soft one to it.
	f.Detail = fmt.Sprintf("at most %d", limit.Max)
	if limit.Max < wantFiles {
		f.Verdict = Missing
		f.Consequence = "clusters of many nodes on this machine fail with \"too many open files\""
		f.Remedy = fmt.Sprintf("ulimit -n %d (LimitNOFILE= in a systemd unit)", wantFiles)
	}
	return f
}

func mapCount(files fs.FS) Finding {
	f := Finding{Name: "mappings of a program", Verdict: OK}
	text, err := readText(files, "proc/sys/vm/max_map_count")
	n, errNumber := strconv.Atoi(text)
	if err := errors.Join(err, errNumber); err != nil {
		f.Verdict, f.Detail = Unknown, err.Error()
		return f
	}
	f.Detail = fmt.Sprintf("at most %d (vm.max_map_count)", n)
	if n < wantMaps {
		f.Verdict = Missing
		f.Consequence = "a program with many allocations fails with \"cannot allocate memory\""
		f.Remedy = "sysctl -w vm.max_map_count=65530"
	}
	return f
}

// memory reports what shared pages may take: the machine's available memory, or the container's
// limit.
func memory(files fs.FS) Finding {
	f := Finding{Name: "memory", Verdict: OK}
	left, err := memlimit.LeftIn(files)
	if err != nil {
		f.Verdict, f.Detail = Unknown, err.Error()
		return f
	}
	available := left.Bytes
	f.Detail = fmt.Sprintf("%.1f GiB available", float64(available)/(1<<30))
	limit, err := memlimit.In(files)
	if err != nil {
		f.Verdict, f.Detail = Unknown, err.Error()
		return f
	}
	if limit.Bytes < available {
		available = limit.Bytes
		f.Detail += fmt.Sprintf(", of which the control group allows %.1f GiB", float64(limit.Bytes)/(1<<30))
	}
	f.Detail += fmt.Sprintf("; a node takes at most %.1f GiB for pages, unless it is told another limit (--memory)", float64(limit.ForPages(1))/(1<<30))
	if available < wantMemory {
		f.Verdict = Missing
		f.Consequence = "shared pages may not fit, and the kernel kills the daemon then"
		f.Remedy = "more memory, or a higher limit (memory.max of the control group, docker run --memory)"
	}
	return f
}

func cores() Finding {
	f := Finding{Name: "cores", Verdict: OK, Detail: fmt.Sprintf("%d", runtime.NumCPU())}
	if runtime.NumCPU() == 1 {
		f.Verdict = Missing
		f.Detail = "1"
		f.Consequence = "program and daemon take turns on it: page faults take several times as long"
		f.Remedy = "give this machine or container a second core"
	}
	return f
}

// hugePages looks at whether the kernel makes a memfd of huge pages.
func hugePages(files fs.FS) Finding {
	const path = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
	f := Finding{Name: "small pages in memfds", Verdict: OK}
	text, err := readText(files, path)
	if errors.Is(err, fs.ErrNotExist) {
		f.Detail = "this kernel has no huge pages for shared memory"
		return f
	}
	if err != nil {
		f.Verdict, f.Detail = Unknown, err.Error()
		return f
	}
	_, rest, _ := strings.Cut(text, "[")
	setting, _, ok := strings.Cut(rest, "]")
	switch {
	case !ok:
		f.Verdict, f.Detail = Unknown, fmt.Sprintf("/%s: %q", path, text)
	case setting == "always" || setting == "within_size" || setting == "force":
		f.Verdict = Missing
		f.Detail = "huge pages are made for shared memory (" + setting + ")"
		f.Consequence = "the kernel splits a huge page whenever a small page of it goes to another node: slower, and takes more memory"
		f.Remedy = "echo advise > /" + path
	default:
		f.Detail = "shmem_enabled is " + setting
	}
	return f
}

// loopback tries a round trip by TCP to this machine.
func loopback() Finding {
	f := Finding{Name: "TCP on loopback", Required: true, Verdict: OK}
	took, err := roundTrip()
	if err != nil {
		f.Verdict, f.Detail = Missing, err.Error()
		f.Consequence = "the daemons of this machine cannot reach one another"
		if f.Remedy = "ip link set lo up"; errors.Is(err, unix.EADDRNOTAVAIL) {
			f.Remedy = "ip addr add 127.0.0.1/8 dev lo && ip link set lo up"
		}
		return f
	}
	f.Detail = fmt.Sprintf("round trip in %d µs", took.Microseconds())
	return f
}

// roundTrip returns the shortest of some round trips of one byte.
func roundTrip() (time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(loopbackTimeout))
		_, _ = io.Copy(c, c)
	}()
	c, err := net.DialTimeout("tcp", l.Addr().String(), loopbackTimeout)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(loopbackTimeout)); err != nil {
		return 0, err
	}
	const trips = 20
	best := time.Duration(math.MaxInt64)
	var b [1]byte
	for range trips {
		start := time.Now()
		if _, err := c.Write(b[:]); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return 0, err
		}
		best = min(best, time.Since(start))
	}
	return best, nil
}
