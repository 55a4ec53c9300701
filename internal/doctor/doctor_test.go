package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"dsmd/internal/sigsegv"
	"dsmd/internal/uffd"

	"golang.org/x/sys/unix"
)

// The machine that runs the tests can run dsmd, so all that is required must be found, by an
// ordinary user as well.
func TestExamineThisMachine(t *testing.T) {
	r := Examine()
	var text bytes.Buffer
	if err := r.Print(&text); err != nil {
		t.Fatal(err)
	}
	if !r.Usable || r.Trap != "uffd" && r.Trap != "sigsegv" || r.Transport != "tcp" {
		t.Errorf("usable %t, trap %q, transport %q:\n%s", r.Usable, r.Trap, r.Transport, text.String())
	}
	for _, f := range r.Findings {
		if f.Verdict != OK && f.Verdict != Missing && f.Verdict != Unknown || f.Name == "" || f.Detail == "" {
			t.Errorf("incomplete finding %+v", f)
		}
		if !strings.Contains(text.String(), f.Detail) {
			t.Errorf("%q was not printed:\n%s", f.Detail, text.String())
		}
	}
	encoded, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var decoded Report
	if err := json.Unmarshal(encoded, &decoded); err != nil || len(decoded.Findings) != len(r.Findings) {
		t.Errorf("%d findings came back of %d, %v", len(decoded.Findings), len(r.Findings), err)
	}
}

func attempt(mode uffd.Mode, err error) uffd.Attempt {
	a := uffd.Attempt{Mode: mode, Err: err}
	if err != nil {
		a.Remedy = "remedy for " + mode.String()
	}
	return a
}

func find(t *testing.T, findings []Finding, name string) Finding {
	t.Helper()
	for _, f := range findings {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no finding called %q in %+v", name, findings)
	return Finding{}
}

func TestTraps(t *testing.T) {
	denied := errors.New("denied")
	all := uffd.Needed | uffd.Wanted

	none := uffd.Report{Attempts: []uffd.Attempt{
		attempt(uffd.ModeSyscall, denied), attempt(uffd.ModeDevice, denied), attempt(uffd.ModeUserOnly, denied)}}
	tooFew := fmt.Errorf("%w: 64", sigsegv.ErrMaps)
	findings := traps(none, tooFew)
	if f := find(t, findings, trapName); f.Verdict != Missing || !f.Required || f.Remedy == "" {
		t.Errorf("nothing works: %+v", f)
	}
	if f := find(t, findings, uffd.ModeDevice.String()); f.Verdict != Missing || f.Remedy != "remedy for "+uffd.ModeDevice.String() {
		t.Errorf("nothing works, the device: %+v", f)
	}
	if r := summarize(findings); r.Usable || r.Trap != "" || !strings.Contains(r.conclusion(), trapName) {
		t.Errorf("nothing works: %+v: %s", r, r.conclusion())
	}
	for _, tried := range []error{nil, sigsegv.ErrNoCgo} {
		findings = traps(none, tried)
		if f := find(t, findings, trapName); f.Verdict != OK || !strings.Contains(f.Consequence, "cgo") || f.Remedy == "" {
			t.Errorf("only sigsegv works (%v): %+v", tried, f)
		}
		if f := find(t, findings, segvName); f.Verdict == Missing || !strings.Contains(f.Detail, "cgo") {
			t.Errorf("only sigsegv works (%v): %+v", tried, f)
		}
		if r := summarize(findings); !r.Usable || r.Trap != "sigsegv" {
			t.Errorf("only sigsegv works (%v): %+v", tried, r)
		}
	}

	user := uffd.Report{Features: all, ContinueWP: uffd.Yes, Attempts: []uffd.Attempt{
		attempt(uffd.ModeSyscall, denied), attempt(uffd.ModeDevice, denied), attempt(uffd.ModeUserOnly, nil)}}
	findings = traps(user, tooFew)
	if f := find(t, findings, trapName); f.Verdict != OK || !strings.Contains(f.Consequence, "Pin") || f.Remedy == "" {
		t.Errorf("user mode only: %+v", f)
	}
	if r := summarize(findings); !r.Usable || r.Trap != "uffd" {
		t.Errorf("user mode only: %+v", r)
	}

	device := uffd.Report{Features: uffd.Needed, ContinueWP: uffd.No, Attempts: []uffd.Attempt{
		attempt(uffd.ModeSyscall, denied), attempt(uffd.ModeDevice, nil), attempt(uffd.ModeUserOnly, nil)}}
	findings = traps(device, nil)
	if f := find(t, findings, trapName); f.Verdict != OK || f.Consequence != "" || !strings.Contains(f.Detail, "/dev/userfaultfd") {
		t.Errorf("by the device: %+v", f)
	}
	if f := find(t, findings, uffd.ModeSyscall.String()); f.Verdict != Missing || f.Remedy != "" {
		t.Errorf("by the device, the system call: %+v, want no remedy for what is not needed", f)
	}
	if f := find(t, findings, "userfaultfd features"); f.Verdict != Missing || !strings.Contains(f.Detail, "THREAD_ID") {
		t.Errorf("an older kernel: %+v", f)
	}
	if f := find(t, findings, "mapping a present page read-only"); f.Verdict != Missing {
		t.Errorf("an older kernel: %+v", f)
	}
	device.ContinueWP, device.ContinueWPErr = uffd.Unknown, denied
	if f := continueWP(device); f.Verdict != Unknown || f.Detail != "denied" {
		t.Errorf("a probe that failed: %+v", f)
	}
}

// TestSegvRemedy: what to do about the trap that does not work follows from what it lacks.
func TestSegvRemedy(t *testing.T) {
	for lacks, remedy := range map[error]string{
		sigsegv.ErrMaps: "max_map_count", unix.ENOMEM: "ulimit -v", unix.EMFILE: "ulimit -n", unix.EPERM: "seccomp profile", unix.ENOSYS: "seccomp profile",
	} {
		if f := segv(fmt.Errorf("sigsegv: %w", lacks)); f.Verdict != Missing || !strings.Contains(f.Remedy, remedy) {
			t.Errorf("%v: %+v, want a remedy with %q", lacks, f, remedy)
		}
	}
}

func files(pairs ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return m
}

func TestMemory(t *testing.T) {
	const info = "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n"
	for _, test := range []struct {
		name    string
		files   fstest.MapFS
		verdict Verdict
		detail  string
	}{
		{"no limit", files("proc/meminfo", info), OK, "4.0 GiB available; a node takes at most 6.0 GiB"},
		{"no /proc", files(), Unknown, "not exist"},
		{"version 2", files("proc/meminfo", info, "proc/self/cgroup", "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max", "max\n", "sys/fs/cgroup/a/memory.max", "1073741824\n"), OK, "allows 1.0 GiB"},
		{"version 2, in a container", files("proc/meminfo", info, "proc/self/cgroup", "0::/\n",
			"sys/fs/cgroup/memory.max", "67108864\n"), Missing, "allows 0.1 GiB"},
		{"version 1", files("proc/meminfo", info, "proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2147483648\n"), OK, "allows 2.0 GiB"},
	} {
		if f := memory(test.files); f.Verdict != test.verdict || !strings.Contains(f.Detail, test.detail) {
			t.Errorf("%s: %+v, want %s with %q", test.name, f, test.verdict, test.detail)
		}
	}
}

func TestSettings(t *testing.T) {
	const huge = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
	const maps = "proc/sys/vm/max_map_count"
	for _, test := range []struct {
		name    string
		finding Finding
		verdict Verdict
	}{
		{"io_uring", disk(nil), OK},
		{"no io_uring", disk(errors.New("operation not permitted")), Missing},
		{"huge pages never", hugePages(files(huge, "always within_size advise [never] deny force\n")), OK},
		{"huge pages always", hugePages(files(huge, "[always] within_size advise never deny force\n")), Missing},
		{"no huge pages", hugePages(files()), OK},
		{"huge pages garbled", hugePages(files(huge, "what")), Unknown},
		{"many mappings", mapCount(files(maps, "65530\n")), OK},
		{"few mappings", mapCount(files(maps, "100\n")), Missing},
		{"mappings unreadable", mapCount(files()), Unknown},
	} {
		if f := test.finding; f.Verdict != test.verdict || f.Detail == "" {
			t.Errorf("%s: %+v, want %s", test.name, f, test.verdict)
		}
		if f := test.finding; f.Verdict == Missing && (f.Consequence == "" || f.Remedy == "") {
			t.Errorf("%s: %+v says neither what follows nor what to do", test.name, f)
		}
	}
}
