package membership

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// Node is a node of a complete cluster.
type Node struct {
	ID   int
	Data string // where it takes data connections, HOST:PORT
	name string // with its incarnation
	// reactors is how many it can have
	reactors uint32
}

// Table is all nodes of a complete cluster, by id. It is the same on all of them.
type Table struct {
	Nodes  []Node
	digest digest
}

// Digest names the table, and with it this very set of running daemons, in 32 hexadecimal digits.
func (t *Table) Digest() string { return t.digest.String() }

// Reactors is how many each node of the cluster has: as many as all of them can have.
func (t *Table) Reactors() int {
	least := slices.MinFunc(t.Nodes, func(a, b Node) int { return cmp.Compare(a.reactors, b.reactors) })
	return max(1, int(least.reactors))
}

// newTable makes a table of nodes in the order of ids.
func newTable(cluster string, nodes []Node) *Table {
	h := sha256.New()
	write := func(s string) {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(s))))
		h.Write([]byte(s))
	}
	write(cluster)
	for _, n := range nodes {
		write(n.name)
		write(n.Data)
		h.Write(binary.LittleEndian.AppendUint32(nil, n.reactors))
	}
	t := &Table{Nodes: nodes}
	copy(t.digest[:], h.Sum(nil))
	return t
}

// find is the node that memberlist knows by name, or nil.
func (t *Table) find(name string) *Node {
	if i := slices.IndexFunc(t.Nodes, func(n Node) bool { return n.name == name }); i >= 0 {
		return &t.Nodes[i]
	}
	return nil
}

// at is the node that takes data at an address, or did in an earlier incarnation, or nil.
func (t *Table) at(data string) *Node {
	if i := slices.IndexFunc(t.Nodes, func(n Node) bool { return n.Data == data }); i >= 0 {
		return &t.Nodes[i]
	}
	return nil
}

func (m *member) node(id int) Node {
	return Node{ID: id, Data: m.data, name: m.name(), reactors: m.reactors}
}

// assign gives each of the members a number. Those that must have a certain one get it, and the
// others what is left, in the order of their addresses. Preconditions: the numbers that members
// must have are different, and below len(members).
func assign(cluster string, members []member) *Table {
	nodes := make([]Node, len(members))
	var free []member
	for _, m := range members {
		if m.id == Auto {
			free = append(free, m)
			continue
		}
		nodes[m.id] = m.node(m.id)
	}
	slices.SortFunc(free, func(a, b member) int { return compareAddress(&a, &b) })
	for id := range nodes {
		if nodes[id].name == "" {
			nodes[id] = free[0].node(id)
			free = free[1:]
		}
	}
	return newTable(cluster, nodes)
}

// choose picks the nodes of a cluster from all that are known: the ones that were started first,
// without those whose number or address an earlier one has. For the latter turnedDown has the
// reason, by name.
func choose(known map[string]member, nodes int) (chosen []member, turnedDown map[string]string) {
	order := make([]member, 0, len(known))
	for _, m := range known {
		order = append(order, m)
	}
	slices.SortFunc(order, func(a, b member) int {
		if a.earlier(&b) {
			return -1
		}
		return 1
	})
	turnedDown = map[string]string{}
	byID, byData := map[int]string{}, map[string]string{}
	for _, m := range order {
		switch other, taken := byID[m.id]; {
		case m.id >= nodes:
			turnedDown[m.name()] = fmt.Sprintf("id %d in a cluster of %d nodes: ids are 0 to %d", m.id, nodes, nodes-1)
			continue
		case m.id != Auto && taken:
			turnedDown[m.name()] = fmt.Sprintf("id %d is that of the node at %s, which was started before", m.id, other)
			continue
		case byData[m.data] != "":
			turnedDown[m.name()] = fmt.Sprintf("the address %s is that of a node that was started before and has not ended yet, as far as the others know", m.data)
			continue
		}
		byID[m.id], byData[m.data] = m.data, m.name()
		if len(chosen) < nodes {
			chosen = append(chosen, m)
		}
	}
	return chosen, turnedDown
}
