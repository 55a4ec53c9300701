package node

import (
	"cmp"
	"slices"
	"strings"

	"dsmd/internal/attach"

	"github.com/prometheus/client_golang/prometheus"
)

// mostSeries bounds the names of each kind that a scrape has. All others are one, othersName.
const mostSeries = 32

// othersName stands for what has no name of its own in a scrape.
const othersName = "(other)"

var (
	// Not "job": Prometheus itself has a label of that name.
	awaitedLabels   = []string{"kind", "dsm_job", "name"}
	waitSecondsDesc = prometheus.NewDesc("dsmd_wait_seconds_total", "How long threads of this node have waited for pages of an allocation, a lock, a barrier, a reduction or a commit, summed over threads. A wait counts when it is over.", awaitedLabels, nil)
	waitsDesc       = prometheus.NewDesc("dsmd_waits_total", "How often threads of this node have waited for pages of an allocation, a lock, a barrier, a reduction or a commit. What a program takes without its daemon is no wait.", awaitedLabels, nil)
	pagesTakenDesc  = prometheus.NewDesc("dsmd_pages_taken_total", "Pages of an allocation that a writer on another node took before any program here had synchronised: false sharing.", awaitedLabels[1:], nil)
)

// Describe implements prometheus.Collector.
func (l *ledger) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{waitSecondsDesc, waitsDesc, pagesTakenDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector. Scrapes may overlap.
func (l *ledger) Collect(to chan<- prometheus.Metric) {
	all := l.series()
	for _, o := range l.others {
		for x, c := range o.series() {
			all[x] = all[x].plus(c)
		}
	}
	for x, c := range all {
		send := func(d *prometheus.Desc, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
		}
		send(waitSecondsDesc, float64(c.nanos)/1e9, x.kind.String(), x.job, x.name)
		send(waitsDesc, float64(c.waits), x.kind.String(), x.job, x.name)
		if x.kind == attach.WaitMemory {
			send(pagesTakenDesc, float64(c.taken), x.job, x.name)
		}
	}
}

// series is the labels of one.
type series struct {
	kind      attach.WaitKind
	job, name string
}

func seriesOf(what awaited) series {
	job, name := divide(what.name)
	return series{what.kind, strings.ToValidUTF8(job, "?"), strings.ToValidUTF8(name, "?")}
}

// series are what a scrape has. Each only grows, as Prometheus wants it, and what has happened
// since the last scrape is in exactly one of them: when another name comes to be shown, what it has
// cost before stays among the others.
func (l *ledger) series() map[series]costs {
	l.mu.Lock()
	defer l.mu.Unlock()
	type value struct {
		what awaited
		*entry
		sum costs
	}
	var all []value
	for what, e := range l.entries {
		all = append(all, value{what, e, e.now()})
	}
	slices.SortFunc(all, func(a, b value) int {
		return cmp.Or(cmp.Compare(b.sum.nanos, a.sum.nanos), cmp.Compare(b.sum.taken, a.sum.taken), cmp.Compare(a.what.name, b.what.name))
	})
	list := map[series]costs{}
	var shown [attach.WaitKinds]int
	for _, v := range all {
		since := v.sum.minus(v.seen)
		v.seen = v.sum
		if shown[v.what.kind]++; shown[v.what.kind] > mostSeries {
			l.hidden[v.what.kind] = l.hidden[v.what.kind].plus(since)
			v.hidden = v.hidden.plus(since)
			continue
		}
		x := seriesOf(v.what) // names that differ where they are no text are one
		list[x] = list[x].plus(v.sum.minus(v.hidden))
	}
	for kind, c := range l.hidden {
		x := series{kind: attach.WaitKind(kind), name: othersName}
		list[x] = list[x].plus(c).plus(l.nameless[kind].now())
	}
	return list
}
