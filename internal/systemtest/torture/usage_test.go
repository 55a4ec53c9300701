package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/prometheus/procfs"

	"dsmd/internal/systemtest/testcluster"
)

// usage is what a process holds of the system's resources.
type usage struct {
	descriptors, threads int
	privateKiB           int // anonymous memory that is resident
}

// By how much a process at rest may hold more than at the first rest. It must have been shown to
// leak, not merely to have been luckier before: Go keeps every thread that it ever needed at a
// time, and its heap follows what the collector happens to find.
const (
	moreThreads    = 2 * mostProcs
	morePrivateKiB = 16 << 10
)

// used reads what a process holds.
func used(pid int) (u usage, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return u, err
	}
	descriptors, err := p.FileDescriptorsLen()
	stat, err2 := p.Stat()
	status, err3 := p.NewStatus()
	return usage{descriptors, stat.NumThreads, int(status.RssAnon / 1024)}, errors.Join(err, err2, err3)
}

// leaks says what a process holds too much of, compared with before.
func (u usage) leaks(before usage) (list []string) {
	if u.descriptors > before.descriptors {
		list = append(list, fmt.Sprintf("%d descriptors, before %d", u.descriptors, before.descriptors))
	}
	if u.threads > before.threads+moreThreads {
		list = append(list, fmt.Sprintf("%d threads, before %d", u.threads, before.threads))
	}
	// Under the race detector most of it is a shadow of whatever was touched, which only grows.
	if !testcluster.RaceDetector && u.privateKiB > before.privateKiB+morePrivateKiB {
		list = append(list, fmt.Sprintf("%d KiB of private memory, before %d", u.privateKiB, before.privateKiB))
	}
	return list
}

// daemonCounters asks a daemon for its counters, from outside.
func daemonCounters(t *testing.T, socket string) map[string]uint64 {
	t.Helper()
	out, err := exec.Command(testcluster.Dsmd(t), "status", "--json", "--socket", socket).Output()
	if err != nil {
		t.Fatalf("dsmd status of %s: %v", socket, err)
	}
	var list []struct{ Counters map[string]uint64 }
	if err := json.Unmarshal(out, &list); err != nil || len(list) != 1 {
		t.Fatalf("dsmd status of %s printed %q (%v)", socket, out, err)
	}
	return list[0].Counters
}

// TestUsage checks that what a process opens is seen.
func TestUsage(t *testing.T) {
	before, err := used(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if before.descriptors < 3 || before.threads < 1 || before.privateKiB < 100 {
		t.Errorf("this process uses %+v", before)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	after, err := used(os.Getpid())
	if err != nil || after.descriptors != before.descriptors+1 || len(after.leaks(before)) != 1 {
		t.Errorf("with one more descriptor: %+v, before %+v; %v (%v)", after, before, after.leaks(before), err)
	}
	worse := usage{before.descriptors, before.threads + moreThreads + 1, before.privateKiB + morePrivateKiB + 1}
	wanted := 2
	if testcluster.RaceDetector {
		wanted = 1
	}
	if list := worse.leaks(before); len(list) != wanted {
		t.Errorf("of %+v after %+v only %q is noticed", worse, before, list)
	}
}
