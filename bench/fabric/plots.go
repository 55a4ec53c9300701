package fabric

import (
	"slices"

	"dsmd/bench/chart"
)

// drawings are the plots of the sections that were measured.
func (r Result) drawings() []chart.Drawing {
	var all []chart.Drawing
	add := func(name, title string, panels []chart.Panel) {
		if len(panels) > 0 {
			all = append(all, chart.Side(name, title, "Both axes are logarithmic.", panels))
		}
	}
	bytes := func(p Point) float64 { return float64(p.Bytes) }
	add("latency", "Latency", panelsOf(r.of(Latencies), chart.Panel{X: "bytes", Y: "µs"}, bytes, func(p Point) float64 { return p.P50 }))
	rate := func(p Point) float64 { return p.MBPerSecond }
	add("bandwidth", "Bandwidth", panelsOf(r.of(Bandwidths), chart.Panel{X: "bytes", Y: "MB/s"}, bytes, rate))
	add("queues", "Bandwidth over many connections", panelsOf(r.of(Queues), chart.Panel{X: "connections", Y: "MB/s"},
		func(p Point) float64 { return float64(p.Connections) }, rate))
	add("registration", "Registering memory", registrationPanels(r.Registrations))
	return all
}

// panelsOf makes a panel like the given one for each kind of connection, with a curve for each
// operation.
func panelsOf(some []Point, like chart.Panel, x, y func(Point) float64) []chart.Panel {
	var panels []chart.Panel
	for _, p := range some {
		i := slices.IndexFunc(panels, func(q chart.Panel) bool { return q.Title == string(p.Kind) })
		if i < 0 {
			i, panels = len(panels), append(panels, like)
			panels[i].Title = string(p.Kind)
		}
		panels[i].Curves = chart.Put(panels[i].Curves, string(p.Operation), x(p), y(p))
	}
	return panels
}

// registrationPanels has a panel for each size of pages.
func registrationPanels(all []Registration) []chart.Panel {
	var panels []chart.Panel
	for _, huge := range []bool{false, true} {
		panel := chart.Panel{Title: map[bool]string{false: "pages of 4 KiB", true: "pages of 2 MiB"}[huge], X: "bytes", Y: "µs"}
		for _, r := range all {
			if r.Huge == huge {
				panel.Curves = chart.Put(panel.Curves, "register", float64(r.Bytes), r.Register)
				panel.Curves = chart.Put(panel.Curves, "deregister", float64(r.Bytes), r.Deregister)
			}
		}
		if len(panel.Curves) > 0 {
			panels = append(panels, panel)
		}
	}
	return panels
}
