package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
)

// TestStatusNamesWhatIsFoughtFor: under the table stand the allocations that are falsely shared,
// the worst of each daemon first. One of which few pages are taken, for all that is waited for, is
// none of them: nodes that ask ahead take a page too many now and then.
func TestStatusNamesWhatIsFoughtFor(t *testing.T) {
	none := usageStatus{Allocations: []allocationStatus{}}
	list := []daemonStatus{
		{Socket: "@dsmd-j-0", Node: 0, usageStatus: none, Counters: map[string]uint64{"contended_pages": 13, attach.ContendedIn + "few": 1, attach.ContendedIn + "radix/keys0": 6,
			attach.WaitsIn + "radix/keys0": 23, attach.ContendedIn + "grid": 6, attach.WaitsIn + "grid": 24}},
		{Socket: "@dsmd-j-1", Node: 1, usageStatus: none, Counters: map[string]uint64{"contended_pages": 0}},
	}
	var out strings.Builder
	if err := printStatus(&out, list); err != nil {
		t.Fatal(err)
	}
	_, lines, found := strings.Cut(out.String(), "@dsmd-j-1\n")
	const want = `node 0: pages of "radix/keys0" were taken 6 times by other nodes that write beside this one (false sharing)
node 0: pages of "few" were taken 1 times by other nodes that write beside this one (false sharing)
`
	if !found || lines != want {
		t.Errorf("got:\n%s\nwant, under the table:\n%s", out.String(), want)
	}
}

// TestStatusSaysWhoHasNoQuorum: that nothing is granted at a node is no matter of a counter that
// the table has not.
func TestStatusSaysWhoHasNoQuorum(t *testing.T) {
	var out strings.Builder
	if err := printStatus(&out, []daemonStatus{
		{Socket: "/run/a", Node: 0, Counters: map[string]uint64{"members": 3}},
		{Socket: "/run/b", Node: 1, Counters: map[string]uint64{"members": 3, "no_quorum": 1}},
	}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "no quorum") != 1 || !strings.Contains(got, "/run/b\nnode 1: it has no quorum: of the 3 members it reaches too few, and its programs wait. ") || !strings.Contains(got, "--rejoin") {
		t.Errorf("got:\n%s", got)
	}
}

// TestStatusSaysHowMuchIsUsed: of what a node may have for pages, if there is a limit.
func TestStatusSaysHowMuchIsUsed(t *testing.T) {
	var out strings.Builder
	if err := printStatus(&out, []daemonStatus{
		{Socket: "@dsmd-j-0", PageBytes: 4096, Counters: map[string]uint64{"pages": 257, "pages_room": 1024}},
		{Socket: "@dsmd-j-1", PageBytes: 4096, Counters: map[string]uint64{"pages": 0, "pages_room": 0}},
	}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if !strings.Contains(lines[1], "  1028KiB of 4MiB  ") || !strings.Contains(lines[2], "  unlimited  ") {
		t.Errorf("got:\n%s", out.String())
	}
}

// TestStatusIsPrintable: a daemon may be anybody's, and root asks it. What it says, and the name of
// its socket, do nothing to the terminal.
func TestStatusIsPrintable(t *testing.T) {
	const evil = "\x1b[2J\u009b2J\x7f"
	socket := filepath.Join(t.TempDir(), "s"+evil)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	welcome := attach.AppendWelcome(nil, &attach.Welcome{Nodes: 1, Size: 1, RegionBase: 4096, RegionBytes: 4096, PageBytes: 4096, HomeStripe: 1, Reactors: 1, StripePages: 1, Trap: evil, Transport: evil, Priority: evil})
	counters := attach.AppendReply(welcome, &attach.Reply{Ticket: 1, Payload: attach.AppendCounters(nil, []attach.Counter{{Name: attach.ContendedIn + evil, Value: 1}})})
	programs := attach.AppendReply(counters, &attach.Reply{Ticket: 2, Payload: attach.AppendPrograms(nil, &attach.Programs{Attached: []attach.Attached{{Job: evil, Program: evil}}})})
	usage := attach.AppendUsage(nil, &attach.Usage{Largest: []attach.AllocationUsage{{Job: evil, Name: evil}}})
	for _, test := range []struct {
		name  string
		says  []byte
		fails bool
	}{
		{"counters", attach.AppendReply(programs, &attach.Reply{Ticket: 3, Payload: usage}), false},
		{"refusal", attach.AppendRefuse(nil, &attach.Refuse{Reason: evil}), true},
		{"loss", attach.AppendLost(nil, evil), true},
		{"silence", nil, true},
	} {
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Write(test.says)
			if !test.fails {
				_, _ = io.Copy(io.Discard, c) // until the other has read it
			}
		}()
		d := askOrExplain(socket, os.Geteuid())
		if (d.Error != "") != test.fails {
			t.Errorf("%s: error %q", test.name, d.Error)
		}
		for _, asJSON := range []bool{false, true} {
			var out strings.Builder
			err := status(&out, &out, []daemonStatus{d}, asJSON)
			if text := fmt.Sprint(out.String(), err); strings.ContainsAny(text, "\x1b\u009b\x7f") {
				t.Errorf("%s, as JSON %v: %q", test.name, asJSON, text)
			}
		}
	}
}

// TestStatusShowsAllocations: under the table stand the largest allocations of each daemon that has
// some, those of the same name apart.
func TestStatusShowsAllocations(t *testing.T) {
	const mib = 256 // pages
	many := attach.Usage{More: 3, Rest: attach.Held{Pages: 30, Owned: 20, Copies: 1, Spilled: 2}}
	for i := range uint64(12) {
		many.Largest = append(many.Largest, attach.AllocationUsage{Name: fmt.Sprint("a", i), First: 100 * i, Held: attach.Held{Pages: 20 - i, Owned: i, Copies: 1}})
	}
	list := []daemonStatus{
		{Socket: "@dsmd-j-0", Node: 0, Nodes: 3, usageStatus: newUsageStatus(&attach.Usage{Largest: []attach.AllocationUsage{
			{Name: "grid", First: 0, Held: attach.Held{Pages: 1 << 32, Owned: 3 * mib / 2, Copies: 1, Spilled: mib}},
			{Name: "grid", Job: "night", First: 1 << 32, Held: attach.Held{Pages: 7}},
		}, Foreign: attach.Held{Pages: 3 * mib, Owned: 2 * mib, Copies: mib}}, 4096)},
		{Socket: "@dsmd-j-1", Node: 1, Nodes: 3, usageStatus: newUsageStatus(&many, 4096)},
		{Socket: "@dsmd-j-2", Node: 2, Nodes: 3, usageStatus: newUsageStatus(&attach.Usage{}, 4096)},
		{Socket: "@dsmd-j-3", Error: "gone"},
	}
	var out strings.Builder
	if err := printStatus(&out, list); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(out.String(), "@dsmd-j-3\n\n")
	const begin = `  NODE      SIZE     OWNED   COPIES  SPILLED  ALLOCATION
   0/3   16.0TiB    1.5MiB   4.0KiB   1.0MiB  "grid"
   0/3   28.0KiB         0        0        0  "grid" of job "night"
   0/3    3.0MiB    2.0MiB   1.0MiB        0  (memory that no program of this node has asked for)
   1/3   80.0KiB         0   4.0KiB        0  "a0"
`
	// a10 and a11 have 19 pages, and own 21; to them come the three that the daemon left out.
	const end = `
   1/3   44.0KiB   36.0KiB   4.0KiB        0  "a9"
   1/3  196.0KiB  164.0KiB  12.0KiB   8.0KiB  and 5 more
`
	if !strings.HasPrefix(table, begin) || !strings.HasSuffix(table, end) || strings.Count(table, "\n") != 15 {
		t.Errorf("got:\n%s\nwant 15 lines under the first table, which begin with\n%sand end with%s", out.String(), begin, end)
	}

	out.Reset()
	if err := status(&out, io.Discard, list[:3], true); err != nil {
		t.Fatal(err)
	}
	var back []map[string]any
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil {
		t.Fatal(err)
	}
	for what, got := range map[string]struct{ got, want any }{
		"the second allocation": {back[0]["allocations"].([]any)[1], map[string]any{"name": "grid", "job": "night", "first_page": float64(1 << 32), "bytes": float64(7 * 4096), "owned_bytes": 0.0, "copy_bytes": 0.0, "spilled_bytes": 0.0}},
		"what others asked for": {back[0]["foreign"], map[string]any{"bytes": float64(3 << 20), "owned_bytes": float64(2 << 20), "copy_bytes": float64(1 << 20), "spilled_bytes": 0.0}},
		"the rest":              {back[1]["more_allocations"], map[string]any{"count": 3.0, "bytes": float64(30 * 4096), "owned_bytes": float64(20 * 4096), "copy_bytes": 4096.0, "spilled_bytes": 8192.0}},
		"no rest":               {back[0]["more_allocations"], nil},
		"how many":              {len(back[1]["allocations"].([]any)), 12},
		"none":                  {back[2]["allocations"], []any{}},
	} {
		if !reflect.DeepEqual(got.got, got.want) {
			t.Errorf("%s: %v, want %v", what, got.got, got.want)
		}
	}
}

// TestStatusOfABusyDaemon: one that has not counted its pages in time has said everything else.
func TestStatusOfABusyDaemon(t *testing.T) {
	askWithin(t, 300*time.Millisecond)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	says := attach.AppendWelcome(nil, &attach.Welcome{Nodes: 1, Size: 1, RegionBase: 4096, RegionBytes: 4096, PageBytes: 4096, HomeStripe: 1, Reactors: 1, StripePages: 1, Trap: "uffd", Transport: "tcp"})
	says = attach.AppendReply(says, &attach.Reply{Ticket: 1, Payload: attach.AppendCounters(nil, []attach.Counter{{Name: "programs", Value: 1}})})
	says = attach.AppendReply(says, &attach.Reply{Ticket: 2, Payload: attach.AppendPrograms(nil, &attach.Programs{})})
	go func() {
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			_, _ = c.Write(says)
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	d := askOrExplain(socket, os.Geteuid())
	var out strings.Builder
	if err := status(&out, io.Discard, []daemonStatus{d}, false); err != nil || d.Counters["programs"] != 1 || !strings.Contains(out.String(), "node 0: it has not counted its pages within 300ms\n") {
		t.Errorf("%+v, %v:\n%s", d, err, out.String())
	}
}

// TestStatusTellsJobsApart: the daemons of a job stand together, with the programs of each, and who
// does not answer takes nothing from the others.
func TestStatusTellsJobsApart(t *testing.T) {
	counted := usageStatus{Allocations: []allocationStatus{}}
	many := attach.Programs{PID: 20, Age: 90 * time.Second, More: 2}
	for i := range uint32(mostShown + 1) {
		many.Attached = append(many.Attached, attach.Attached{PID: 100 + i, Rank: i, Size: 11, Age: 75 * time.Second, Program: "fft"})
	}
	list := []daemonStatus{
		{Socket: "@dsmd-aa-0", Nodes: 2, usageStatus: counted, programsStatus: newProgramsStatus(&attach.Programs{PID: 10, Age: 1500 * time.Millisecond, Attached: []attach.Attached{{PID: 12, Size: 2, Program: "sor", Job: "night"}}})},
		{Socket: "@dsmd-b-0", Nodes: 1, usageStatus: counted, programsStatus: newProgramsStatus(&many)},
		{Socket: "@dsmd-aa-1", Node: 1, Nodes: 2, Error: "gone"},
	}
	var out, warnings strings.Builder
	if err := status(&out, &warnings, list, false); err != nil || warnings.String() != "dsmd: the daemon at @dsmd-aa-1: gone\n" {
		t.Errorf("%v, and %q", err, warnings.String())
	}
	clusters := strings.Split(out.String(), "  NODE  PID")
	if len(clusters) != 3 {
		t.Fatalf("%d tables of daemons, want 2:\n%s", len(clusters)-1, out.String())
	}
	for i, all := range [][]string{
		{"@dsmd-aa-0\n", "@dsmd-aa-1\n", "   0/2   10   1s", "   0/2   0/2   12   0s  sor of job \"night\"\n"},
		{"@dsmd-b-0\n", "   0/1   20  1m30s", "   0/1  9/11  109  1m15s  fft\n", "  and 3 more\n"},
	} {
		for _, want := range all {
			if !strings.Contains(clusters[i+1], want) {
				t.Errorf("cluster %d lacks %q:\n%s", i, want, clusters[i+1])
			}
		}
	}
	out.Reset()
	if err := status(&out, io.Discard, list[2:], false); err == nil || out.Len() > 0 {
		t.Errorf("nobody answers, and it shows %q, %v", out.String(), err)
	}
}

func TestRounded(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0", 1023: "1023", 1 << 10: "1.0KiB", 1<<20 - 1: "1024.0KiB", 1 << 20: "1.0MiB", 5 << 29: "2.5GiB", 1 << 44: "16.0TiB", 1<<64 - 1: "16.0EiB"} {
		if got := rounded(bytes); got != want {
			t.Errorf("%d bytes are %s, want %s", bytes, got, want)
		}
	}
}
