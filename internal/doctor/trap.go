package doctor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"dsmd/internal/sigsegv"
	"dsmd/internal/uffd"
)

// trapName is the finding that decides whether page faults can be trapped at all.
const trapName = "page-fault trap"

func kernel() Finding {
	f := Finding{Name: "kernel"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.Verdict, f.Detail = Unknown, err.Error()
		return f
	}
	// Which version this is decides nothing: what it can do is tried below.
	f.Verdict = OK
	f.Detail = fmt.Sprintf("%s %s %s", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
	return f
}

// segvName is the finding about the trap that needs no userfaultfd.
const segvName = "sigsegv trap"

// probeSigsegv tries to set up the sigsegv trap on a small piece of address space that nobody
// touches.
func probeSigsegv() error {
	const page = 64 << 10 // a multiple of every page size
	at, err := unix.MmapPtr(-1, 0, nil, page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("reserve addresses: %w", err)
	}
	t, err := sigsegv.Open(sigsegv.Config{Base: uintptr(at), Bytes: page, PageBytes: page})
	if err == nil {
		err = t.Close()
	}
	return errors.Join(err, unix.MunmapPtr(at, page))
}

// segv reports whether the sigsegv trap can be had: err is how trying it went.
func segv(err error) Finding {
	f := Finding{Name: segvName, Verdict: OK, Detail: "works, in programs that are built with cgo"}
	switch {
	case errors.Is(err, sigsegv.ErrNoCgo):
		// It was not tried. What programs can do does not depend on how dsmd was built.
		f.Verdict, f.Detail = Unknown, "this dsmd was built without cgo and can't try it; programs that are built with cgo can have it"
	case err != nil:
		f.Verdict, f.Detail = Missing, err.Error()
		f.Consequence = "--trap sigsegv does not work"
		f.Remedy = segvRemedy(err)
	}
	return f
}

// segvRemedy is what to do about the sigsegv trap, by what it lacks.
func segvRemedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		return "allow the system call that is refused (in a container: the seccomp profile)"
	case errors.Is(err, unix.EMFILE):
		return "a higher limit of open files (ulimit -n)"
	case errors.Is(err, unix.ENOMEM):
		return "ulimit -v unlimited, and sysctl -w vm.max_map_count=65530"
	}
	return "sysctl -w vm.max_map_count=65530"
}

// traps reports the ways to trap page faults: whether there is any, each of them, and how well they
// work. sigsegv is how trying the way without userfaultfd went.
func traps(probe uffd.Report, sigsegv error) []Finding {
	other := segv(sigsegv)
	any := Finding{Name: trapName, Required: true, Verdict: OK}
	kernelFaults := false
	var ways []Finding
	for _, a := range probe.Attempts {
		f := Finding{Name: a.Mode.String(), Verdict: OK}
		switch {
		case a.Err == nil && any.Detail == "":
			any.Detail = "uffd, by the " + a.Mode.String()
			f.Detail = "works, and is used"
		case a.Err == nil:
			f.Detail = "works"
		default:
			f.Verdict, f.Detail, f.Remedy = Missing, a.Err.Error(), a.Remedy
		}
		if a.Err == nil && a.Mode.KernelFaults() {
			kernelFaults = true
		}
		ways = append(ways, f)
	}
	if !probe.Usable() {
		any.Remedy = "one of those below"
		if other.Verdict == Missing {
			any.Verdict, any.Detail = Missing, "no way to open a userfaultfd works, and the sigsegv trap does not either"
			any.Consequence = "dsmd cannot serve page faults"
		} else {
			any.Detail = "sigsegv, as no way to open a userfaultfd works"
			any.Consequence = "programs must be built with cgo, faults take longer, and a system call on a shared page that is not here fails with EFAULT: hold the page by Pin"
		}
		return append(append([]Finding{any}, ways...), other)
	}
	if kernelFaults {
		// One way that works suffices: no remedy for the others.
		for i := range ways {
			ways[i].Remedy = ""
		}
	} else {
		any.Consequence = "a system call on a shared page that is not here (read and write of a file, say) fails with EFAULT: hold the page by Pin"
		any.Remedy = "sysctl -w vm.unprivileged_userfaultfd=1, or see below"
	}
	return append(append([]Finding{any}, ways...), features(probe.Features), continueWP(probe), other)
}

func features(has uffd.Features) Finding {
	f := Finding{Name: "userfaultfd features", Verdict: OK, Detail: (has & (uffd.Needed | uffd.Wanted)).String()}
	if lacking := uffd.Wanted &^ has; lacking != 0 {
		f.Verdict = Missing
		f.Detail = "without " + lacking.String()
		f.Consequence = "faults are not told apart by thread or exact address as well as they could be; everything works"
		if lacking&uffd.FeaturePoison != 0 {
			f.Consequence += ", but that a program which touches a page that was lost with its node is ended, and can't catch it"
		}
		f.Remedy = "a newer kernel (Linux 6.6 has all)"
	}
	return f
}

func continueWP(probe uffd.Report) Finding {
	f := Finding{Name: "mapping a present page read-only"}
	switch probe.ContinueWP {
	case uffd.Yes:
		f.Verdict, f.Detail = OK, "UFFDIO_CONTINUE with write protection works"
	case uffd.No:
		f.Verdict, f.Detail = Missing, "UFFDIO_CONTINUE knows no write protection"
		f.Consequence = "several programs that share the pages of one node fault more often"
		f.Remedy = "Linux 6.4 or newer"
	default:
		f.Verdict, f.Detail = Unknown, fmt.Sprint(probe.ContinueWPErr)
	}
	return f
}
