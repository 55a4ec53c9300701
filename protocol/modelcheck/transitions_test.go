package modelcheck

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

var updateTables = flag.Bool("tables", false, "write the tables of transitions into docs/protocol.md")

// page is at home on node 3, which has no programs.
const page = protocol.ObjectID(3)

// TestTransitionTables compares the tables of transitions in docs/protocol.md with what the
// explorer sees: every way in which a part of a node goes from one state to another.
func TestTransitionTables(t *testing.T) {
	seen := map[string]changes{"requester": {}, "holder": {}, "directory": {}}
	mortal := Short.base(4)
	mortal.Crash, mortal.Pages = []protocol.NodeID{1}, 8
	replicated := mortal
	replicated.Replicas = 1
	anew := mortal
	anew.Anew = []protocol.NodeID{0}
	many := Short.base(4)
	many.TreeFrom, many.TreeArity, many.ManyReaders = 2, 2, 1
	for _, c := range []*model.Config{
		threads(Short.base(4), "write 3; read 3", "read 3; write 3"),
		threads(Short.base(4), "write 3", "read 3", "read 3"),
		threads(many, "write 3", "read 3", "read 3"),
		threads(mortal, "read 3", "write 3"),
		threads(anew, "read 3", "write 3"),
		threads(replicated, "write 3; commit; write 3", "read 3"),
		threads(Short.base(4), "write 3; evict 3", "read 3; evict 3"),
	} {
		x := newExplorer(c)
		x.watch = func(before, after *model.Node, a *model.Action, out *model.Outcome) {
			note(seen, before.States(page), after.States(page), a, out)
		}
		if r := x.explore(1 << 20); !r.Complete {
			t.Fatalf("not all was explored: %+v", r)
		}
	}
	text, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- tables of transitions: go test ./protocol/modelcheck -run Tables -tables -->\n", "<!-- end of tables -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	old, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("docs/protocol.md has no place for the tables")
	}
	tables := tablesOf(seen)
	if old == tables {
		return
	}
	if !*updateTables {
		t.Fatalf("docs/protocol.md has other tables; if these are right, run with -tables:\n%s", tables)
	}
	if err := os.WriteFile("../../docs/protocol.md", []byte(head+begin+tables+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// changes are from which state to which one a part goes and why, and what is sent then.
type changes map[string][]string

// note enters by part what has changed, and the messages that were sent.
func note(seen map[string]changes, before, after protocol.States, a *model.Action, out *model.Outcome) {
	var does []string
	for i := range out.Effects {
		switch f := &out.Effects[i]; f.Kind {
		case protocol.EffectSend:
			if f.Message.Kind.HasObject() && f.Message.Object == page {
				does = append(does, fmt.Sprintf("`%v`", f.Message.Kind))
			}
		case protocol.EffectReject:
			return
		}
	}
	does = slices.Compact(does)
	for part, states := range map[string][2]string{
		"requester": {before.Requester, after.Requester}, "holder": {before.Holder, after.Holder}, "directory": {before.Directory, after.Directory},
	} {
		if states[0] == states[1] || states[1] == "" { // nothing, or a crash
			continue
		}
		row := fmt.Sprintf("| %s | %s | %s", states[0], stimulus(a), states[1])
		if sends := strings.Join(does, ", "); !slices.Contains(seen[part][row], sends) {
			seen[part][row] = append(seen[part][row], sends)
		}
	}
}

// stimulus is what an action is to the engine.
func stimulus(a *model.Action) string {
	switch a.Kind {
	case model.ActDeliver:
		return fmt.Sprintf("`%v`", a.Flight.Message.Kind)
	case model.ActEpoch:
		return "the next epoch"
	case model.ActComplete:
		return "the page table is done"
	case model.ActAccess:
		return "fault: " + strings.Fields(a.Op.String())[0]
	case model.ActCall:
		if a.Op.Kind == model.OpEvict {
			return "no room"
		}
	}
	return a.Kind.String()
}

// tablesOf writes a table for each part.
func tablesOf(seen map[string]changes) string {
	var b strings.Builder
	for _, part := range []string{"requester", "holder", "directory"} {
		fmt.Fprintf(&b, "\n| %s | hears of | becomes | the node sends |\n|---|---|---|---|\n", part)
		for _, row := range slices.Sorted(maps.Keys(seen[part])) {
			sends := slices.Sorted(slices.Values(seen[part][row]))
			if len(sends) > 1 && sends[0] == "" {
				sends[0] = "nothing"
			}
			fmt.Fprintf(&b, "%s | %s |\n", row, strings.Join(sends, "; or "))
		}
	}
	return b.String() + "\n"
}
