package dashboard

// matrix counts pages that went between groups of nodes. The row is the node that had to wait.
type matrix struct {
	nodes  groups
	counts [][]uint64
}

func newMatrix(nodes groups) matrix {
	m := matrix{nodes: nodes, counts: make([][]uint64, nodes.count())}
	for i := range m.counts {
		m.counts[i] = make([]uint64, nodes.count())
	}
	return m
}

// add counts a page, unless other is no node of the job (faultlog.NoNode).
func (m *matrix) add(node, other uint32) {
	if m.nodes.has(int(other)) {
		m.counts[m.nodes.of(int(node))][m.nodes.of(int(other))]++
	}
}
