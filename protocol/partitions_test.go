package protocol

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// partitionedNode is a node of several partitions as a host has it: events of its own come at any
// time, and what an effect asks for is done at any later time.
type partitionedNode struct {
	partitions []*Engine
	due        []func() // what is to be done, in any order
	// tells are, by partition, what that was told by partition 0, and has told it, each in order.
	told, tells [][]func()
	// parts are how many have not done their part of a phase, by run and epoch.
	parts   map[[2]uint64]int
	resumed int // partitions that have recovered
	dead    bool
}

// queues are all of what the partitions of a node have told each other.
func (n *partitionedNode) queues() (all []*[]func()) {
	for s := range n.told {
		all = append(all, &n.told[s], &n.tells[s])
	}
	return all
}

// partitionedCluster is nodes of several partitions each. What a partition says to the same
// partition of another node arrives in order, and that of different partitions in any.
type partitionedCluster struct {
	t      *testing.T
	random *rand.Rand
	nodes  []*partitionedNode
	wires  map[[3]int][]Message // from, to, partition
	keys   [][3]int
	done   map[Ticket]Status
	bound  map[Ticket][]byte
	now    Time
	// replicas is of how many losses the memory survives. noLoss: no page of it may be lost.
	replicas uint8
	noLoss   bool
}

const (
	partitionNodes, partitions3 = 3, 3
	partitionPages              = 24 // of the region; page p is partition p mod 3's
)

func newPartitionedCluster(t *testing.T, seed uint64) *partitionedCluster {
	c := &partitionedCluster{t: t, random: rand.New(rand.NewPCG(seed, 0)), wires: map[[3]int][]Message{}, done: map[Ticket]Status{}, bound: map[Ticket][]byte{}}
	for i := range partitionNodes {
		n := &partitionedNode{told: make([][]func(), partitions3), tells: make([][]func(), partitions3), parts: map[[2]uint64]int{}}
		for s := range partitions3 {
			n.partitions = append(n.partitions, New(Config{Self: NodeID(i), Nodes: partitionNodes, Pages: partitionPages, HomeStripe: 1, Partition: s, Partitions: partitions3}))
		}
		c.nodes = append(c.nodes, n)
	}
	for a := range partitionNodes {
		for b := range partitionNodes {
			for s := range partitions3 {
				c.keys = append(c.keys, [3]int{a, b, s})
			}
		}
	}
	return c
}

// step lets an event happen at a partition and notes what follows.
func (c *partitionedCluster) step(node, partition int, ev Event) {
	n := c.nodes[node]
	ev.Now = c.now
	for _, f := range n.partitions[partition].Step(ev, nil) {
		c.effect(node, partition, f)
	}
}

func (c *partitionedCluster) effect(node, partition int, f Effect) {
	n := c.nodes[node]
	later := func(ev Event) { n.due = append(n.due, func() { c.step(node, partition, ev) }) }
	switch f.Kind {
	case EffectSend:
		k := [3]int{node, int(f.Message.To), partition}
		c.wires[k] = append(c.wires[k], f.Message)
	case EffectLost:
		if c.noLoss {
			c.t.Fatalf("partition %d of node %d takes %v for lost, which is new", partition, node, f.Object)
		}
		later(Event{Kind: EventCompleted, Effect: f.Kind, Object: f.Object, Access: f.Access})
	case EffectInstall, EffectMap, EffectMakeWritable, EffectDowngrade, EffectRevoke:
		later(Event{Kind: EventCompleted, Effect: f.Kind, Object: f.Object})
	case EffectHold:
		later(Event{Kind: EventHoldOver, Object: f.Object})
	case EffectFree:
		later(Event{Kind: EventFreed, Object: f.Object})
	case EffectFreePhase:
		ev := Event{Kind: EventFreePhase, Object: f.Object, Count: f.Count, Phase: f.Phase, Epoch: f.Epoch}
		of := [2]uint64{uint64(f.Object), uint64(f.Epoch)}
		if partition > 0 {
			n.tells[partition] = append(n.tells[partition], func() {
				if n.parts[of]--; n.parts[of] == 0 {
					c.step(node, 0, ev)
				}
			})
			return
		}
		if n.parts[of] != 0 {
			c.t.Fatalf("node %d begins a phase while another is under way", node)
		}
		n.parts[of] = partitions3 - 1
		c.tellOthers(node, ev)
	case EffectInUse:
		c.tellOthers(node, Event{Kind: EventInUse, Epoch: f.Epoch, Payload: f.Payload})
	case EffectResumed:
		n.resumed++
	case EffectComplete:
		c.completed(node, f)
	case EffectStash, EffectOffered, EffectDeclined, EffectBackup, EffectHandedOver:
	case EffectReject:
		c.t.Fatalf("partition %d of node %d refuses %+v: %s", partition, node, f.Message, f.Reason)
	default:
		c.t.Fatalf("partition %d of node %d wants %+v", partition, node, f)
	}
}

// tellOthers has an event happen at the other partitions of a node.
func (c *partitionedCluster) tellOthers(node int, ev Event) {
	n := c.nodes[node]
	for s := 1; s < partitions3; s++ {
		n.told[s] = append(n.told[s], func() { c.step(node, s, ev) })
	}
}

// completed notes the answer to a call. That memory is bound the other partitions know before the
// program does.
func (c *partitionedCluster) completed(node int, f Effect) {
	first, count, err := DecodeRun(f.Payload)
	if f.Status != StatusOK || err != nil {
		c.done[f.Ticket] = f.Status
		return
	}
	n, missing := c.nodes[node], partitions3-1
	c.tellOthers(node, Event{Kind: EventBound, Object: PageObject(first), Count: count, Replicas: c.replicas})
	for s := 1; s < partitions3; s++ {
		n.told[s] = append(n.told[s], func() {
			if missing--; missing == 0 {
				c.done[f.Ticket], c.bound[f.Ticket] = f.Status, f.Payload
			}
		})
	}
}

// lose ends a node. The others hear of it at any later time, and what it has sent may still come.
func (c *partitionedCluster) lose(lost int) {
	c.nodes[lost].dead = true
	ev := Event{Kind: EventEpoch, Epoch: 1}
	for i := range c.nodes {
		if i != lost {
			ev.Members = append(ev.Members, NodeID(i))
		}
	}
	for _, i := range ev.Members {
		c.nodes[i].due = append(c.nodes[i].due, func() {
			c.step(int(i), 0, ev)
			c.tellOthers(int(i), ev)
		})
	}
}

// recovered is whether all partitions of all that are left have.
func (c *partitionedCluster) recovered() bool {
	for _, n := range c.nodes {
		if !n.dead && n.resumed < partitions3 {
			return false
		}
	}
	return true
}

// act does one thing that is to be done, and returns whether there was any.
func (c *partitionedCluster) act() bool {
	c.now++
	var ways []func()
	for _, n := range c.nodes {
		if n.dead {
			continue
		}
		for _, q := range n.queues() {
			if len(*q) > 0 {
				ways = append(ways, func() {
					f := (*q)[0]
					*q = (*q)[1:]
					f()
				})
			}
		}
		if len(n.due) > 0 {
			ways = append(ways, func() {
				i := c.random.IntN(len(n.due))
				f := n.due[i]
				n.due = append(n.due[:i], n.due[i+1:]...)
				f()
			})
		}
	}
	for _, k := range c.keys {
		if len(c.wires[k]) > 0 && !c.nodes[k[1]].dead {
			ways = append(ways, func() {
				m := c.wires[k][0]
				c.wires[k] = c.wires[k][1:]
				c.step(k[1], k[2], Event{Kind: EventMessage, Message: &m})
			})
		}
	}
	if len(ways) == 0 {
		return false
	}
	ways[c.random.IntN(len(ways))]()
	return true
}

// call makes a call about a name, and does things until it is answered; others fault meanwhile.
func (c *partitionedCluster) call(node int, ticket Ticket, call NameCall) []byte {
	c.step(node, 0, Event{Kind: EventName, Client: 1, Ticket: ticket, Payload: call.Append(nil)})
	for {
		if status, answered := c.done[ticket]; answered {
			if status != StatusOK {
				c.t.Fatalf("call %d of node %d was answered with %d", ticket, node, status)
			}
			return c.bound[ticket]
		}
		if !c.act() {
			c.t.Fatalf("call %d of node %d is not answered, and nothing is under way", ticket, node)
		}
	}
}

// TestPartitionsFree: memory is freed on all partitions of all nodes before it is given out again,
// whatever the order of what they do. A fault that is reported late brings no page back.
func TestPartitionsFree(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newPartitionedCluster(t, seed)
			// Who still faults on memory that is free for its node gets it anew.
			late := seed%2 == 1
			ticket := Ticket(0)
			for range 4 {
				ticket++
				const pages = 15
				first, count, err := DecodeRun(c.call(0, ticket, NameCall{Op: Bind, Client: 1, Pages: pages, Name: "a"}))
				if err != nil || count != pages {
					t.Fatalf("bound %d pages from page %d on: %v", count, first, err)
				}
				for page := first; page < first+count; page++ {
					for i, n := range c.nodes {
						for s, e := range n.partitions {
							if has := e.Access(PageObject(page)); has != None && !late {
								t.Fatalf("page %d was given out again, and partition %d of node %d has it for %v", page, s, i, has)
							}
						}
					}
				}
				fault := func() {
					page := first + c.random.Uint64N(count)
					access := []Access{Read, Write}[c.random.IntN(2)]
					c.step(c.random.IntN(partitionNodes), int(page%partitions3), Event{Kind: EventFault, Object: PageObject(page), Access: access, Client: 1, Thread: 1})
				}
				for range 60 {
					if fault(); c.random.IntN(2) == 0 {
						c.act()
					}
				}
				ticket++
				unbind := NameCall{Op: Unbind, Client: 1, Name: "a"}
				c.step(0, 0, Event{Kind: EventName, Client: 1, Ticket: ticket, Payload: unbind.Append(nil)})
				for {
					if _, answered := c.done[ticket]; answered {
						break
					}
					if late && c.random.IntN(8) == 0 {
						fault() // of a thread that has not noticed
					}
					if !c.act() {
						t.Fatal("memory is not free, and nothing is under way")
					}
				}
			}
			for c.act() {
			}
			for page := range uint64(partitionPages) {
				copies, writers := 0, 0
				for _, n := range c.nodes {
					switch n.partitions[page%partitions3].Access(PageObject(page)) {
					case Read:
						copies++
					case Write:
						writers++
					}
				}
				if writers > 1 || writers == 1 && copies > 0 {
					t.Errorf("page %d has %d writers and %d other copies", page, writers, copies)
				}
			}
			for i, n := range c.nodes {
				for s, e := range n.partitions {
					if err := e.Check(); err != nil || e.Unfinished() != "" {
						t.Errorf("partition %d of node %d: %v, %s", s, i, err, e.Unfinished())
					}
				}
			}
		})
	}
}

// TestPartitionsRecover: when a node is lost, perhaps the allocator, while memory is bound, used
// and freed, each partition of the others recovers by itself, and what was being freed is. What is
// bound after that is new in all partitions.
func TestPartitionsRecover(t *testing.T) {
	for seed := range uint64(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newPartitionedCluster(t, seed)
			lost, replicas := []int{0, 2}[seed%2], uint8(seed/2%2)
			c.replicas = replicas
			at := 1 + c.random.IntN(300) // of the acts before the loss
			act := func() bool {
				if at--; at == 0 {
					c.lose(lost)
				}
				return c.act()
			}
			ticket := Ticket(0)
			// call makes a call of node 1, which stays.
			call := func(op NameOp) []byte {
				ticket++
				name := NameCall{Op: op, Client: 1, Name: "a"}
				if op == Bind {
					name.Pages, name.Replicas = 15, replicas
				}
				c.step(1, 0, Event{Kind: EventName, Client: 1, Ticket: ticket, Payload: name.Append(nil)})
				for {
					if status, answered := c.done[ticket]; answered && status == StatusOK {
						return c.bound[ticket]
					} else if answered {
						t.Fatalf("%v is answered with %d", op, status)
					}
					if !act() && at <= 0 {
						t.Fatalf("%v is not answered, and nothing is under way; recovered: %t", op, c.recovered())
					}
				}
			}
			for range 6 {
				c.noLoss = false
				fresh := at <= 0 && c.recovered()
				first, count, err := DecodeRun(call(Bind))
				if err != nil {
					t.Fatal(err)
				}
				c.noLoss = fresh
				for range 60 {
					node, page := c.random.IntN(partitionNodes), first+c.random.Uint64N(count)
					if !c.nodes[node].dead {
						access := []Access{Read, Write}[c.random.IntN(2)]
						c.step(node, int(page%partitions3), Event{Kind: EventFault, Object: PageObject(page), Access: access, Client: 1, Thread: 1})
					}
					act()
				}
				call(Unbind)
			}
			for act() || at > 0 {
			}
			if !c.recovered() {
				t.Fatal("nothing is under way, and not all have recovered")
			}
			for i, n := range c.nodes {
				for s, e := range n.partitions {
					if n.dead {
						continue
					}
					if err := e.Check(); err != nil || e.Unfinished() != "" {
						t.Errorf("partition %d of node %d: %v, %s", s, i, err, e.Unfinished())
					}
				}
			}
		})
	}
}
