package node

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/transport/sim"
)

var (
	anythingRuns = flag.Int("anything.runs", 4, "how many clusters TestAnything does anything to")
	anythingSeed = flag.Uint64("anything.seed", 0, "the seed of the first of them; 0: any")
)

// anything is a cluster whose nodes have all that a node can have at once, in any combination:
// little room or not, a spill file or not; memory that is replicated or not, and begins in files or
// with zeros. Anything is done there, and what its pages must hold is known.
type anything struct {
	*tight
	t      *testing.T
	rng    *rand.Rand
	bind   attach.Call
	what   attach.Contents // zero: the pages begin with zeros
	files  []*os.File
	first  pagetable.Page
	progs  []*prog
	stored []uint64 // what was stored to each page last; 0: nothing
	value  uint64
	saves  byte // how many checkpoints there were
}

// TestAnything finds out whether what works alone works together.
func TestAnything(t *testing.T) {
	seed := *anythingSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	for i := range uint64(*anythingRuns) {
		t.Run(fmt.Sprint(seed+i), func(t *testing.T) {
			t.Parallel()
			x := newAnything(t, rand.New(rand.NewPCG(seed+i, 1)))
			for range 60 {
				x.do()
			}
			x.read(x.rng.IntN(len(x.progs)), 0, len(x.stored))
			x.quiet()
		})
	}
}

func newAnything(t *testing.T, rng *rand.Rand) *anything {
	const nodes = 4
	x := &anything{t: t, rng: rng, files: make([]*os.File, nodes), stored: make([]uint64, 3*leastRoom/2)}
	s := surviving(nodes, sim.Options{})
	s.pages, s.async, s.spill = uint64(len(x.stored))+HomeStripe, rng.IntN(2) == 0, rng.IntN(2) == 0
	var little []int
	for i := 1; i < nodes; i++ { // node 0 has room for all that the others have not
		if rng.IntN(3) > 0 {
			little = append(little, i)
		}
	}
	replicas := uint8(rng.IntN(3))
	origin := rng.IntN(4)
	t.Logf("page tables that finish later %t, spill files %t, little room at %v, %d replicas, contents %d", s.async, s.spill, little, replicas, origin)
	x.tight = startTight(t, s, little...)
	x.lossy = true
	size := int64(len(x.stored)) * 4096
	switch x.what.Bytes = uint64(size); origin {
	case 0:
		x.what.Bytes = 0
	case 1: // each node has the file
		for i := range x.files {
			x.files[i] = laid(t, size, same)
		}
	case 2:
		x.what.Readers = []uint16{0}
		x.files[0] = laid(t, size, same)
	case 3:
		x.what.Readers, x.what.Stripe, x.what.Bytes = []uint16{0, 1}, 8, x.what.Bytes/2
		for turn := range uint64(2) {
			x.files[turn] = laid(t, size/2, func(p uint64) uint64 { return (p/8*2+turn)*8 + p%8 })
		}
	}
	x.bind = replicatedCall("x", uint64(len(x.stored)), replicas)
	x.progs = make([]*prog, nodes)
	for i := range x.progs {
		x.join(i)
	}
	if replicas > 0 { // what was never committed is lost with a node, also if nobody has touched it
		for i := range x.stored {
			x.read(rng.IntN(nodes), i, 1)
		}
	}
	return x
}

// join has a program of a node share the memory.
func (x *anything) join(i int) {
	p := x.members[i].join()
	x.first, x.progs[i] = p.bindAs(x.bind), p
	if x.what.Bytes > 0 {
		p.ok(p.beginsCall(x.first, uint64(len(x.stored)), x.what, x.files[i]))
	}
}

// want is what a page must hold.
func (x *anything) want(i int) []byte {
	b := make([]byte, 4096)
	if x.what.Bytes > 0 {
		b = pageOf(uint64(i))
	}
	if v := x.stored[i]; v != 0 {
		binary.NativeEndian.PutUint64(b, v)
	}
	return b
}

// some is a run of pages, most of the time a short one.
func (x *anything) some() (first, count int) {
	first = x.rng.IntN(len(x.stored))
	count = 1 + x.rng.IntN(16)
	if x.rng.IntN(8) == 0 {
		count = 1 + x.rng.IntN(len(x.stored))
	}
	return first, min(count, len(x.stored)-first)
}

func (x *anything) do() {
	first, count := x.some()
	by := x.rng.IntN(len(x.progs))
	op := x.rng.IntN(12)
	x.t.Logf("op %d by node %d, %d pages from %d on", op, by, count, first)
	switch op {
	case 0, 1:
		x.read(by, first, count)
	case 2:
		x.progs[by].walk(4, x.first+pagetable.Page(first), count, true, func(i int, b []byte) {
			x.value++
			x.stored[first+i] = x.value
			binary.NativeEndian.PutUint64(b, x.value)
		})
	case 3, 4, 5, 6:
		x.burst()
	case 7:
		access := attach.Read + attach.Access(x.rng.IntN(2))
		_, answer := x.progs[by].prefetch(x.first+pagetable.Page(first), uint64(count), access)
		x.burst()
		x.progs[by].answer(answer)
	case 8:
		x.progs[by].ok(attach.Call{Op: attach.OpCommit})
	case 9:
		x.save()
	case 10:
		x.leave()
	case 11:
		x.lose()
	}
}

func (x *anything) read(by, first, count int) {
	x.progs[by].wantPages(x.first+pagetable.Page(first), count, func(i int) []byte { return x.want(first + i) })
}

// access is one that is under way.
type access struct {
	of, to int
	value  uint64 // that is stored; 0: it is a load
	done   chan error
	got    []byte
}

// burst is accesses of many programs to as many pages, all at once.
func (x *anything) burst() {
	for _, a := range x.begin() {
		x.progs[a.of].settled(a.done)
		x.check(a)
	}
}

// begin begins a burst.
func (x *anything) begin() (all []*access) {
	for _, page := range x.rng.Perm(len(x.stored))[:1+x.rng.IntN(60)] {
		a := &access{of: x.rng.IntN(len(x.progs)), to: page}
		do := func(b []byte) { a.got = append(a.got, b...) }
		if x.rng.IntN(2) == 0 {
			x.value++
			a.value = x.value
			do = func(b []byte) { binary.NativeEndian.PutUint64(b, a.value) }
		}
		a.done = x.progs[a.of].access(x.first+pagetable.Page(page), a.value != 0, do)
		all = append(all, a)
	}
	return all
}

// check checks what an access has found, or notes what it has stored.
func (x *anything) check(a *access) {
	if a.value != 0 {
		x.stored[a.to] = a.value
	} else if want := x.want(a.to); string(a.got) != string(want) {
		x.t.Errorf("node %d reads page %d as %x, want %x", a.of, a.to, a.got[:16], want[:16])
	}
}

// save takes a checkpoint, while programs go on.
func (x *anything) save() {
	x.saves++
	var all []*save
	for _, p := range x.progs {
		all = append(all, p.save(x.saves, 0, x.first, uint64(len(x.stored))))
	}
	for round, missing := 0, 1; missing > 0; round++ { // as the library does
		bits := make([]byte, (len(x.stored)+7)/8)
		for _, s := range all {
			s.ok(s.call(round > 0 || x.rng.IntN(2) == 0, round == 0))
			for i, is := range s.covered() {
				if is {
					bits[i/8] |= 1 << (i % 8)
				}
			}
		}
		missing = 0
		for i := range x.stored {
			if bits[i/8]&(1<<(i%8)) == 0 {
				missing++
				x.read(x.rng.IntN(len(x.progs)), i, 1)
			}
		}
		for _, s := range all {
			if _, err := s.memo.WriteAt(bits, s.order.BitsAt()); err != nil {
				x.t.Fatal(err)
			}
		}
		if round == 5 {
			x.t.Fatalf("%d pages are saved by nobody", missing)
		}
	}
	had := append([]uint64(nil), x.stored...)
	x.burst()
	written := map[uint64]uint64{}
	for _, s := range all {
		maps.Copy(written, s.finish())
	}
	now := x.stored
	x.stored = had
	for i := range x.stored {
		want := binary.NativeEndian.Uint64(x.want(i))
		if v, is := written[uint64(i)]; is && v != want || !is && x.stored[i] != 0 {
			x.t.Errorf("page %d was saved, %t, as %x, and held %x", i, is, v, want)
		}
	}
	x.stored = now
}

// awaits waits until so many nodes are members, and keep what they have to.
func (x *anything) awaits(members int) {
	for _, m := range x.members {
		select {
		case <-m.done:
			continue
		default:
		}
		eventually(x.t, fmt.Sprintf("node %d sees %d members, and has handed over", m.node.cfg.Self, members), func() bool {
			s := m.ask()
			return s["members"] == uint64(members) && s["epoch_handed_over"] == s["epoch"]
		})
	}
}

// mayGo is a node that has no file which others need.
func (x *anything) mayGo() int { return 2 + x.rng.IntN(len(x.members)-2) }

// leave has a node leave, and another come in its place. None does whose pages begin in files.
func (x *anything) leave() {
	if x.what.Bytes > 0 {
		return
	}
	i := x.mayGo()
	m := x.members[i]
	x.progs[i].leave()
	eventually(x.t, "the program has left", func() bool { return m.counter("programs") == 0 })
	x.drainNode(m)
	x.comesBack(i)
}

// lose has a node lost that has no page which is not at others, too, and another come in its place.
// What programs do meanwhile takes effect, but for that of the node.
func (x *anything) lose() {
	if x.bind.Replicas == 0 {
		return
	}
	for _, p := range x.progs {
		p.ok(attach.Call{Op: attach.OpCommit})
	}
	i := x.mayGo()
	all := x.begin()
	x.sever(i)
	for _, a := range all {
		if a.of != i {
			x.progs[a.of].settled(a.done)
			x.check(a)
		}
	}
	x.members[i].cancel()
	x.members[i].ended()
	x.awaits(len(x.members) - 1)
	for _, a := range all {
		if a.of != i {
			continue
		}
		if err := <-a.done; err == nil && a.value == 0 {
			x.check(a)
		}
		if a.value != 0 && x.progs[0].load(x.first+pagetable.Page(a.to), 0) == a.value {
			x.check(a)
		}
	}
	x.comesBack(i)
}

func (x *anything) comesBack(i int) {
	x.awaits(len(x.members) - 1)
	if x.rng.IntN(2) == 0 { // others go on meanwhile
		gone := x.progs[i]
		x.progs[i] = x.progs[0]
		x.burst()
		x.progs[i] = gone
	}
	x.comeBack(i, x.setup)
	x.awaits(len(x.members))
	x.join(i)
}
