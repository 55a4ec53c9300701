package top

import (
	"math"
	"strings"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/certs"
)

// Job is the programs that know each other: those of a cluster that name the same job.
type Job struct{ Cluster, Name string }

// String is the job for people.
func (j Job) String() string {
	if j.Name == "" {
		return j.Cluster
	}
	return j.Cluster + "/" + j.Name
}

// short is the job in a table: the number of a cluster has a few digits there.
func (j Job) short() string {
	const digits = 8
	if !strings.ContainsAny(j.Cluster, "/@") {
		j.Cluster = j.Cluster[:min(len(j.Cluster), digits)]
	}
	return j.String()
}

// rank is what a program has done. Shares are of the time of one thread: a program whose two
// threads wait has a share of 2.
type rank struct {
	job             Job
	node            uint32
	rank, size, pid uint32
	program         string
	waits           [attach.WaitKinds]float64 // shares
	computing       float64                   // share; negative: not known
}

// cost is the share of all its waits.
func (r *rank) cost() (sum float64) {
	for _, share := range r.waits {
		sum += share
	}
	return sum
}

// thing is an allocation, lock, barrier, reduction or commit that threads have waited for.
type thing struct {
	job   Job
	kind  attach.WaitKind
	name  string
	other bool // it is all of its kind that daemons do not name
}

// toll is what a thing has cost.
type toll struct {
	thing
	node   uint32
	waited attach.Cost
	share  float64 // of one thread's time
	waits  float64 // a second
	taken  float64 // pages a second
}

// add adds what the thing has cost on another node.
func (t *toll) add(x *toll) {
	t.waited.Add(x.waited)
	t.share += x.share
	t.waits += x.waits
	t.taken += x.taken
}

// each is how long one wait takes; 0: none has begun.
func (t *toll) each() time.Duration {
	if t.waited.Count == 0 {
		return 0
	}
	return t.waited.Time / time.Duration(min(t.waited.Count, math.MaxInt64))
}

// node is what a node has done, a second, and what it has.
type node struct {
	job                  Job
	node, nodes          uint32
	read, write, upgrade float64 // faults
	in, out              float64 // bytes
	used, limit          uint64  // bytes of memory; limit 0: there is none, and used is not known
	noQuorum             bool    // its programs wait, because too few nodes are left
}

// Rates is what has happened between two samples.
type Rates struct {
	Over   time.Duration // the time between them; the longest where daemons differ
	Silent []string      // daemons that have not answered, and why
	ranks  []rank
	tolls  []toll
	nodes  []node
}

// Between is what has happened between two samples of the same daemons. What is only in the second
// one counts from its beginning.
func Between(before, after []Sample) *Rates {
	r := &Rates{}
	for i := range after {
		now := &after[i]
		if now.Error != "" {
			r.Silent = append(r.Silent, certs.Printable(now.Socket+": "+now.Error))
			continue
		}
		was, over := formerOf(before, now)
		r.Over = max(r.Over, over)
		r.addNode(was, now, over)
		r.addRanks(was, now, over)
		r.addTolls(was, now, over)
	}
	return r
}

// formerOf is an earlier sample of the same daemon, or one of its beginning.
func formerOf(before []Sample, now *Sample) (was *Sample, over time.Duration) {
	for i := range before {
		was := &before[i]
		if was.Error == "" && was.Socket == now.Socket && was.Programs.PID == now.Programs.PID && was.At.Before(now.At) {
			return was, now.At.Sub(was.At)
		}
	}
	return &Sample{}, max(now.Programs.Age, time.Millisecond)
}

// grown is by how much a counter has grown. One that has shrunk is another's.
func grown(was, now uint64) uint64 { return now - min(was, now) }

func perSecond(n uint64, over time.Duration) float64 { return float64(n) / over.Seconds() }

// share is a time as a share of another. A daemon may say anything.
func share(was, now, over time.Duration) float64 {
	return float64(max(now-was, 0)) / float64(over)
}

func (s *Sample) job(name string) Job {
	return Job{certs.Printable(s.Cluster), certs.Printable(strings.Trim(name, "\x00"))}
}

func (r *Rates) addNode(was, now *Sample, over time.Duration) {
	rate := func(counter string) float64 {
		return perSecond(grown(was.Counters[counter], now.Counters[counter]), over)
	}
	bytes := func(counter string) uint64 { return now.Counters[counter] * uint64(now.PageBytes) }
	r.nodes = append(r.nodes, node{
		job: now.job(""), node: now.Node, nodes: now.Nodes, read: rate("faults_read"), write: rate("faults_write"), upgrade: rate("faults_upgrade"),
		in: rate("bytes_received"), out: rate("bytes_sent"), used: bytes("pages"), limit: bytes("pages_room"),
		noQuorum: now.Counters["no_quorum"] > 0,
	})
}

func (r *Rates) addRanks(was, now *Sample, over time.Duration) {
	for _, p := range now.Programs.Attached {
		x := rank{job: now.job(p.Job), node: now.Node, rank: p.Rank, size: p.Size, pid: p.PID, program: certs.Printable(p.Program), computing: -1}
		// A program that is new counts from its beginning.
		former, over := attach.Attached{}, max(min(p.Age, over), time.Millisecond)
		for _, q := range was.Programs.Attached {
			if q.PID == p.PID && q.Rank == p.Rank && q.Job == p.Job && q.Age <= p.Age {
				former, over = q, max(p.Age-q.Age, time.Millisecond)
			}
		}
		for kind := range x.waits {
			x.waits[kind] = share(former.Waits[kind].Time, p.Waits[kind].Time, over)
		}
		used, known := now.Used[p.PID]
		if before, was := was.Used[p.PID]; was && known {
			x.computing = share(before, used, over)
		}
		r.ranks = append(r.ranks, x)
	}
}

func (r *Rates) addTolls(was, now *Sample, over time.Duration) {
	before := newFormerWaits(&was.Waits)
	others := now.Waits.All
	for i := range others {
		others[i] = less(others[i], was.Waits.All[i])
	}
	for i := range now.Waits.List {
		x := &now.Waits.List[i]
		former := before.of(x)
		cost := less(x.Cost, former.Cost)
		others[x.Kind] = less(others[x.Kind], cost)
		r.tolls = append(r.tolls, toll{
			thing: thing{job: now.job(x.Job), kind: x.Kind, name: x.Name}, node: now.Node, waited: cost,
			share: share(0, cost.Time, over), waits: perSecond(cost.Count, over), taken: perSecond(grown(former.Taken, x.Taken), over),
		})
	}
	for kind, cost := range others {
		if cost.Time > 0 {
			r.tolls = append(r.tolls, toll{
				thing: thing{job: now.job(""), kind: attach.WaitKind(kind), other: true}, node: now.Node, waited: cost,
				share: share(0, cost.Time, over), waits: perSecond(cost.Count, over),
			})
		}
	}
}

// less is what is left of a cost.
func less(c, x attach.Cost) attach.Cost {
	return attach.Cost{Count: grown(x.Count, c.Count), Time: max(c.Time-x.Time, 0)}
}

// key is by what a daemon knows a thing.
type key struct {
	kind      attach.WaitKind
	job, name string
}

// formerWaits are what a daemon has said before.
type formerWaits struct {
	by     map[key]attach.Awaited
	listed [attach.WaitKinds]int
	last   [attach.WaitKinds]attach.Awaited
}

func newFormerWaits(w *attach.Waits) formerWaits {
	f := formerWaits{by: map[key]attach.Awaited{}}
	for _, x := range w.List {
		f.by[key{x.Kind, x.Job, x.Name}] = x
		f.listed[x.Kind]++
		f.last[x.Kind] = x
	}
	return f
}

// of is what a thing had cost by then. One that was not listed had cost nothing, or, in a full
// list, no more than the last of it.
func (f *formerWaits) of(x *attach.Awaited) attach.Awaited {
	if was, listed := f.by[key{x.Kind, x.Job, x.Name}]; listed {
		return was
	}
	if f.listed[x.Kind] >= attach.MaxAwaited {
		return f.last[x.Kind]
	}
	return attach.Awaited{}
}
