package modelcheck

import (
	"encoding/binary"
	"strings"
	"testing"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// TestBlurredNodesAreFound: the explorer notices that an encoding lacks something, and shows the
// ways to two nodes that it took for one. Without that it would find nothing here: what it visits
// is sound.
func TestBlurredNodesAreFound(t *testing.T) {
	// threadBytes is what a thread has in the encoding of a node, behind the engine's part, which
	// begins with its length. The third byte is how often a fault may be repeated.
	const threadBytes, repeats = 6, 2
	threadsOf := func(b []byte) []byte { return b[binary.LittleEndian.Uint32(b):] }
	for name, test := range map[string]struct {
		blur func(n *model.Node, b []byte)
		want string
	}{
		"what is possible": {
			func(_ *model.Node, b []byte) { threadsOf(b)[repeats] = 0 },
			"one of them can do",
		},
		"contents": {
			func(n *model.Node, b []byte) {
				const contents, size = 12, 4
				if pages := threadsOf(b)[threadBytes*n.Threads():]; len(pages) > 0 && pages[0] == 'p' {
					clear(pages[contents:][:size])
				}
			},
			"they differ in what",
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newExplorer(threads(Full.base(2), "read 0; write 0", "write 0"))
			x.encode = func(n *model.Node, b []byte) []byte {
				head := len(b)
				b = n.AppendState(b)
				test.blur(n, b[head:])
				return b
			}
			f := x.explore(1 << 20).Finding
			if f == nil || f.Violation.Rule != ruleTwins || f.Other == nil {
				t.Fatalf("finding %+v", f)
			}
			if !strings.Contains(f.Violation.Detail, test.want) {
				t.Errorf("they are said to differ so: %s; want %q", f.Violation.Detail, test.want)
			}
			if text := replayed(t, f); strings.Count(text, "\n---\n") != 2 {
				t.Errorf("not two ways:\n%s", text)
			}
		})
	}
}

// TestBlurredEnginesAreFound: the explorer names the field that the encoding of engines lacks, also
// where that of nodes tells them apart.
func TestBlurredEnginesAreFound(t *testing.T) {
	x := newExplorer(threads(Full.base(3), "", "write 0", "write 0"))
	x.encodeEngine = func(e *protocol.Engine, b []byte) []byte {
		head := len(b)
		b = e.AppendState(b)
		// of the first object, behind its number and its access: the owner and the copyset
		const owner, size = 2, 3
		if e.Objects() > 0 {
			clear(b[head+owner:][:size])
		}
		return b
	}
	f := x.explore(1 << 20).Finding
	if f == nil || f.Violation.Rule != ruleFields || f.Other == nil {
		t.Fatalf("finding %+v", f)
	}
	if want := "object.sharers"; !strings.Contains(f.Violation.Detail, want) {
		t.Errorf("they are said to differ so: %s; want %q", f.Violation.Detail, want)
	}
	replayed(t, f)
}
