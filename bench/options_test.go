package main

import "testing"

// TestBinding: nodes have processors of their own where there are two for each, unless a flag says
// otherwise.
func TestBinding(t *testing.T) {
	for _, c := range []struct {
		flag              string
		nodes, processors int
		want              string
	}{
		{"", 2, 3, ""}, {"", 2, 4, "core"}, {"", 8, 16, "core"}, {"", 8, 15, ""},
		{"", 1, 16, ""}, // all are its own
		{"none", 2, 16, "none"}, {"core", 2, 2, "core"},
	} {
		o := clusterOptions{nodes: c.nodes, bind: c.flag}
		if got := o.binding(c.processors); got != c.want {
			t.Errorf("--bind %q, %d nodes on %d processors: %q, want %q", c.flag, c.nodes, c.processors, got, c.want)
		}
	}
}
