package sim

import (
	"math/rand/v2"

	"dsmd/protocol/model"
)

// A Pattern is a way in which the nodes of a cluster share pages.
type Pattern string

const (
	// Private: each node writes pages that nobody else touches, which nobody has touched before.
	Private Pattern = "private"
	// ReadShared: all nodes read the same table, which one of them has written.
	ReadShared Pattern = "read-shared"
	// ProducerConsumer: each node writes its pages, its neighbour reads them, again and again with
	// a barrier between.
	ProducerConsumer Pattern = "producer-consumer"
	// Migratory: pages are read and then written by one node after another, under a lock.
	Migratory Pattern = "migratory"
	// FalseSharing: four nodes at a time write to different words of the same page.
	FalseSharing Pattern = "false sharing"
	// Random: each node accesses pages anywhere, a quarter of the time for writing.
	Random Pattern = "random"
)

// Patterns are all of them.
func Patterns() []Pattern {
	return []Pattern{Private, ReadShared, ProducerConsumer, Migratory, FalseSharing, Random}
}

const (
	// blockPages is how many pages each node has of its own; the region is that of all.
	blockPages = 16
	// tablePages is the size of the table that all nodes read.
	tablePages = 32
	// producerRounds is how often producers and consumers take turns, and producerPages how many
	// pages each node produces.
	producerRounds, producerPages = 4, 8
	// migrations is how many locked sections each node goes through.
	migrations = 16
	// falseSharers is how many nodes write to one page, and falseWrites how often each of them
	// does.
	falseSharers, falseWrites = 4, 16
	// randomAccesses is how many accesses each node makes, of which one in writeEvery is a write.
	randomAccesses, writeEvery = 32, 4
	// turnBarrier is the number of the barrier between turns. It is another than gateBarrier, at
	// which counting begins.
	turnBarrier = gateBarrier + 1
)

// author makes the programs of an experiment.
type author struct {
	random   *rand.Rand
	programs []model.Program
	// blocks are the places of the nodes' own pages. They have nothing to do with where the homes
	// are, as when programs allocate as they please.
	blocks []int
}

// patternExperiment makes the programs of a pattern on a number of nodes.
func patternExperiment(p Pattern, nodes int, random *rand.Rand) *experiment {
	a := &author{random: random, programs: make([]model.Program, nodes), blocks: random.Perm(nodes)}
	switch p {
	case Private:
		a.private()
	case ReadShared:
		a.readShared()
	case ProducerConsumer:
		a.producerConsumer()
	case Migratory:
		a.migratory()
	case FalseSharing:
		a.falseSharing()
	case Random:
		a.accessRandomly(randomAccesses, writeEvery)
	default:
		panic("sim: no pattern " + string(p))
	}
	return &experiment{programs: a.programs, pages: uint64(nodes * blockPages)}
}

func (a *author) add(node int, kind model.OpKind, number uint64) {
	a.programs[node] = append(a.programs[node], model.Op{Kind: kind, Number: number})
}

// all lets every node meet at a barrier.
func (a *author) all(barrier uint64) {
	for node := range a.programs {
		a.add(node, model.OpBarrier, barrier)
	}
}

// own is page i of a node's own pages.
func (a *author) own(node, i int) uint64 { return uint64(a.blocks[node]*blockPages + i) }

func (a *author) private() {
	for node := range a.programs {
		for _, kind := range []model.OpKind{model.OpWrite, model.OpRead} {
			for i := range blockPages {
				a.add(node, kind, a.own(node, i))
			}
		}
	}
}

func (a *author) readShared() {
	for i := range uint64(tablePages) {
		a.add(0, model.OpWrite, i)
	}
	a.all(gateBarrier)
	for node := range a.programs {
		for i := range uint64(tablePages) {
			a.add(node, model.OpRead, i)
		}
	}
}

func (a *author) producerConsumer() {
	for round := range 1 + producerRounds {
		for node := range a.programs {
			for i := range producerPages {
				a.add(node, model.OpWrite, a.own(node, i))
			}
		}
		a.all(turnBarrier)
		for node := range a.programs {
			for i := range producerPages {
				a.add(node, model.OpRead, a.own((node+1)%len(a.programs), i))
			}
		}
		if round == 0 {
			// the first round was not like the others: nobody had touched the pages
			a.all(gateBarrier)
		} else {
			a.all(turnBarrier)
		}
	}
}

// migratory has as many locks as nodes, each with a page. A node takes them in an order of its own,
// so there is little contention.
func (a *author) migratory() {
	n := len(a.programs)
	pages := a.random.Perm(n * blockPages)[:n]
	for node := range a.programs {
		a.add(node, model.OpWrite, uint64(pages[node]))
	}
	a.all(gateBarrier)
	for node := range a.programs {
		for range migrations {
			lock := a.random.IntN(n)
			a.add(node, model.OpLock, uint64(lock))
			a.add(node, model.OpRead, uint64(pages[lock]))
			a.add(node, model.OpWrite, uint64(pages[lock]))
			a.add(node, model.OpUnlock, uint64(lock))
		}
	}
}

func (a *author) falseSharing() {
	for node := range a.programs {
		a.add(node, model.OpWrite, uint64(node/falseSharers))
	}
	a.all(gateBarrier)
	for node := range a.programs {
		for range falseWrites {
			a.add(node, model.OpWrite, uint64(node/falseSharers))
		}
	}
}

// accessRandomly has each thread access pages anywhere, of which one in writes is written; 0: all
// are read.
func (a *author) accessRandomly(accesses, writes int) {
	for node := range a.programs {
		for i := range blockPages {
			a.add(node, model.OpWrite, a.own(node, i))
		}
	}
	a.all(gateBarrier)
	for node := range a.programs {
		for range accesses {
			kind := model.OpRead
			if writes > 0 && a.random.IntN(writes) == 0 {
				kind = model.OpWrite
			}
			a.add(node, kind, uint64(a.random.IntN(len(a.programs)*blockPages)))
		}
	}
}
