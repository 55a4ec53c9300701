package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

// port describes a port as the kernel does.
func port(device, state, layer string, gids ...string) fstest.MapFS {
	at := "sys/class/infiniband/" + device + "/ports/1/"
	m := files(at+"state", state+"\n", at+"phys_state", "5: LinkUp\n", at+"link_layer", layer+"\n", at+"rate", "2.5 Gb/sec (1X SDR)\n",
		at+"gid_attrs/ndevs/0", "eth7\n",
		"sys/class/infiniband_verbs/uverbs0/ibdev", device+"\n", "sys/class/infiniband_verbs/abi_version", "6\n",
		"proc/self/status", "Name: x\nCapEff:\t000001ffffffffff\n")
	for i, g := range append(gids, "0000:0000:0000:0000:0000:0000:0000:0000") {
		m[fmt.Sprintf("%sgids/%d", at, i)] = &fstest.MapFile{Data: []byte(g + "\n")}
	}
	for i := range gids {
		m[fmt.Sprintf("%sgid_attrs/types/%d", at, i)] = &fstest.MapFile{Data: []byte("RoCE v2\n")}
	}
	return m
}

func opens(string) error { return nil }

const (
	linkLocal = "fe80:0000:0000:0000:540d:f2ff:fe03:4715"
	overIPv4  = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
)

// Each problem of a port has a remedy of its own.
func TestRDMAPorts(t *testing.T) {
	for _, test := range []struct {
		name    string
		files   fstest.MapFS
		verdict Verdict
		detail  string
		remedy  string
	}{
		{"usable", port("rxe0", "4: ACTIVE", "Ethernet", linkLocal, overIPv4), OK, "1: 10.77.0.1 (RoCE v2)", ""},
		{"usable, InfiniBand", port("rxe0", "4: ACTIVE", "InfiniBand", linkLocal), OK, "active (LinkUp), InfiniBand, 2.5 Gb/sec (1X SDR); GIDs 0: fe80::", ""},
		{"many addresses", port("rxe0", "4: ACTIVE", "Ethernet", overIPv4, overIPv4, overIPv4, overIPv4, overIPv4, overIPv4), OK, "and 2 more", ""},
		{"down", port("rxe0", "1: DOWN", "Ethernet", overIPv4), Missing, "down (LinkUp)", "ip link set eth7 up"},
		{"no address", port("rxe0", "4: ACTIVE", "Ethernet", linkLocal), Missing, "no address", "ip addr add ADDRESS/LENGTH dev eth7"},
		{"no subnet manager", port("rxe0", "2: INIT", "InfiniBand", linkLocal), Missing, "init", "opensm"},
		{"no link", port("rxe0", "1: DOWN", "InfiniBand", linkLocal), Missing, "down", "ibstat"},
		{"unreadable", files("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE"), Unknown, "phys_state", ""},
	} {
		f := find(t, rdmaFindings(test.files, opens), "rxe0 port 1")
		if f.Verdict != test.verdict || !strings.Contains(f.Detail, test.detail) || !strings.Contains(f.Remedy, test.remedy) || (f.Remedy == "") != (test.remedy == "") {
			t.Errorf("%s: %+v, want %s, %q and the remedy %q", test.name, f, test.verdict, test.detail, test.remedy)
		}
		if strings.Contains(f.Detail, "::,") || f.Required {
			t.Errorf("%s: %+v", test.name, f)
		}
	}
}

// One port that works suffices; what auto chooses depends on the build.
func TestRDMAWhole(t *testing.T) {
	good := port("rxe0", "4: ACTIVE", "Ethernet", overIPv4)
	for name, file := range port("rxe1", "1: DOWN", "Ethernet") {
		good[name] = file
	}
	findings := rdmaFindings(good, opens)
	whole, transport := find(t, findings, rdmaName), summarize(findings).Transport
	if rdmaBuilt && (whole.Verdict != OK || whole.Detail != "by rxe0 port 1" || transport != "rdma") {
		t.Errorf("%+v, transport %s", whole, transport)
	}
	if !rdmaBuilt && (whole.Verdict != Missing || !strings.Contains(whole.Detail, "rxe0 port 1, rxe1 port 1, but this build has no RDMA") ||
		!strings.Contains(whole.Remedy, "-tags rdma") || transport != "tcp") {
		t.Errorf("%+v, transport %s", whole, transport)
	}
	for _, test := range []struct {
		name  string
		files fs.FS
	}{
		{"no device", files()},
		{"no port", files("sys/class/infiniband/rxe0/x", "")},
		{"no usable port", port("rxe0", "1: DOWN", "Ethernet")},
	} {
		findings := rdmaFindings(test.files, opens)
		if f := findings[0]; f.Name != rdmaName || f.Verdict != Missing || f.Detail == "" || f.Remedy == "" || f.Consequence == "" || summarize(findings).Transport != "tcp" {
			t.Errorf("%s: %+v", test.name, f)
		}
	}
	if f := rdmaFindings(files(), opens)[0]; strings.Contains(f.Detail, "-tags rdma") == rdmaBuilt {
		t.Errorf("a build with RDMA: %t, says %+v", rdmaBuilt, f)
	}
}

func TestRDMADeviceFiles(t *testing.T) {
	denied := func(bad string, err error) func(string) error {
		return func(name string) error {
			if strings.Contains(name, bad) {
				return &fs.PathError{Op: "open", Path: name, Err: err}
			}
			return nil
		}
	}
	device := port("rxe0", "4: ACTIVE", "Ethernet", overIPv4)
	for _, test := range []struct {
		name   string
		files  fs.FS
		try    func(string) error
		remedy string
	}{
		{"all there", device, opens, ""},
		{"no verbs", files(), opens, "modprobe ib_uverbs"},
		{"no connection manager", device, denied("rdma_cm", fs.ErrNotExist), "modprobe rdma_ucm"},
		{"not in this container", device, denied("uverbs0", fs.ErrNotExist), "--device /dev/infiniband"},
		{"another user's", device, denied("uverbs0", fs.ErrPermission), "group of /dev/infiniband/uverbs0"},
	} {
		f := deviceFiles(test.files, test.try)
		if (f.Verdict == OK) != (test.remedy == "") || !strings.Contains(f.Remedy, test.remedy) || f.Detail == "" || (f.Consequence == "") != (test.remedy == "") {
			t.Errorf("%s: %+v, want the remedy %q", test.name, f, test.remedy)
		}
	}
	if err := tryDevice("/dev/null"); err != nil {
		t.Error(err)
	}
	if err := tryDevice("/dev/infiniband/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestLockedMemory(t *testing.T) {
	for _, test := range []struct {
		name       string
		limit      unix.Rlimit
		privileged bool
		verdict    Verdict
		detail     string
	}{
		{"the usual limit", unix.Rlimit{Cur: 8 << 20, Max: 8 << 20}, false, Missing, "at most 8192 KiB"},
		{"one that can be raised", unix.Rlimit{Cur: 64 << 10, Max: unix.RLIM_INFINITY}, false, Missing, "raise it to any amount"},
		{"enough", unix.Rlimit{Cur: wantLocked, Max: wantLocked}, false, OK, "KiB"},
		{"none", unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, false, OK, "at most any amount"},
		{"root", unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}, true, OK, "CAP_IPC_LOCK"},
	} {
		f := lockedWithin(test.limit, test.privileged)
		if f.Verdict != test.verdict || !strings.Contains(f.Detail, test.detail) || (f.Remedy == "") != (f.Verdict == OK) {
			t.Errorf("%s: %+v, want %s with %q", test.name, f, test.verdict, test.detail)
		}
	}
	const status = "proc/self/status"
	for _, test := range []struct {
		files fs.FS
		want  bool
	}{
		{files(status, "CapPrm:\t0000000000004000\nCapEff:\t0000000000004000\n"), true},
		{files(status, "CapPrm:\t0000000000004000\nCapEff:\t0000000000000000\n"), false},
		{files(status, "CapEff:\tgarbled\n"), false},
		{files(), false},
	} {
		if got := hasCapability(test.files, capIPCLock); got != test.want {
			t.Errorf("%v: CAP_IPC_LOCK %t, want %t", test.files, got, test.want)
		}
	}
}
