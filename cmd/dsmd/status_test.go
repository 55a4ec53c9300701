package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dsmd/internal/attach"
)

// TestStatusNamesWhatIsFoughtFor: under the table stand the allocations that are falsely shared,
// the worst of each daemon first.
func TestStatusNamesWhatIsFoughtFor(t *testing.T) {
	list := []daemonStatus{
		{Socket: "@a", Node: 0, Counters: map[string]uint64{"contended_pages": 7, attach.ContendedIn + "few": 1, attach.ContendedIn + "radix/keys0": 6}},
		{Socket: "@b", Node: 1, Counters: map[string]uint64{"contended_pages": 0}},
	}
	var out strings.Builder
	if err := printStatus(&out, list); err != nil {
		t.Fatal(err)
	}
	_, lines, found := strings.Cut(out.String(), "@b\n")
	const want = `node 0: pages of "radix/keys0" were taken 6 times by other nodes that write beside this one (false sharing)
node 0: pages of "few" were taken 1 times by other nodes that write beside this one (false sharing)
`
	if !found || lines != want {
		t.Errorf("got:\n%s\nwant, under the table:\n%s", out.String(), want)
	}
}

// TestStatusSaysHowMuchIsUsed: of what a node may have for pages, if there is a limit.
func TestStatusSaysHowMuchIsUsed(t *testing.T) {
	var out strings.Builder
	if err := printStatus(&out, []daemonStatus{
		{PageBytes: 4096, Counters: map[string]uint64{"pages": 257, "pages_room": 1024}},
		{PageBytes: 4096, Counters: map[string]uint64{"pages": 0, "pages_room": 0}},
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
	welcome := attach.AppendWelcome(nil, &attach.Welcome{Nodes: 1, Size: 1, RegionBase: 4096, RegionBytes: 4096, PageBytes: 4096, HomeStripe: 1, Trap: evil, Transport: evil})
	counters := attach.AppendCounters(nil, []attach.Counter{{Name: attach.ContendedIn + evil, Value: 1}})
	for _, test := range []struct {
		name  string
		says  []byte
		fails bool
	}{
		{"counters", attach.AppendReply(welcome, &attach.Reply{Ticket: 1, Payload: counters}), false},
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
			err := status(&out, []daemonStatus{d}, asJSON)
			if text := fmt.Sprint(out.String(), err); strings.ContainsAny(text, "\x1b\u009b\x7f") {
				t.Errorf("%s, as JSON %v: %q", test.name, asJSON, text)
			}
		}
	}
}
