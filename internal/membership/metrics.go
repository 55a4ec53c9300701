package membership

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are what happened to the nodes, as this node saw it.
type counters struct {
	suspicions, deaths, departures, refusals prometheus.Counter
	nodes                                    prometheus.GaugeFunc
}

func newCounters(to prometheus.Registerer, alive func() float64) (*counters, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "dsmd", Subsystem: "membership", Name: name, Help: help})
	}
	c := &counters{
		suspicions: counter("suspicions_total", "Times that a node did not answer this node, and nobody whom this node asked."),
		deaths:     counter("deaths_total", "Nodes that were taken for dead."),
		departures: counter("departures_total", "Nodes that said that they were told to end."),
		refusals:   counter("refusals_total", "Times that a node was refused, or could not be understood."),
		nodes: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "dsmd", Subsystem: "membership", Name: "nodes",
			Help: "Nodes that are known and not gone, this one included."}, alive),
	}
	if to == nil {
		return c, nil
	}
	for _, one := range c.all() {
		if err := to.Register(one); err != nil {
			c.unregister(to)
			return nil, fmt.Errorf("membership: register metrics: %w", err)
		}
	}
	return c, nil
}

func (c *counters) all() []prometheus.Collector {
	return []prometheus.Collector{c.suspicions, c.deaths, c.departures, c.refusals, c.nodes}
}

func (c *counters) unregister(from prometheus.Registerer) {
	if from == nil {
		return
	}
	for _, one := range c.all() {
		from.Unregister(one)
	}
}
