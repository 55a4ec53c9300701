package fabric

import (
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"dsmd/bench/chart"
)

// Sizes of drawings.
const (
	panelWidth    = vg.Length(290)
	drawingHeight = vg.Length(340)
)

// drawings are the plots of the sections that were measured.
func (r Result) drawings() []chart.Drawing {
	var all []chart.Drawing
	add := func(name, title string, panels []chart.Panel) {
		if len(panels) > 0 {
			all = append(all, chart.Drawing{Name: name, Title: title, Width: panelWidth * vg.Length(max(2, len(panels))), Height: drawingHeight,
				About: "Both axes are logarithmic.",
				Draw:  func(c draw.Canvas) error { return chart.DrawPanels(c, title, panels) }})
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

// panelsOf makes a panel like the given one for each kind of connection, with a curve for each operation.
func panelsOf(some []Point, like chart.Panel, x, y func(Point) float64) []chart.Panel {
	var panels []chart.Panel
	for _, p := range some {
		i := slices.IndexFunc(panels, func(q chart.Panel) bool { return q.Title == string(p.Kind) })
		if i < 0 {
			i, panels = len(panels), append(panels, like)
			panels[i].Title = string(p.Kind)
		}
		curves := &panels[i].Curves
		j := slices.IndexFunc(*curves, func(c chart.Curve) bool { return c.Name == string(p.Operation) })
		if j < 0 {
			j, *curves = len(*curves), append(*curves, chart.Curve{Name: string(p.Operation)})
		}
		(*curves)[j].Points = append((*curves)[j].Points, plotter.XY{X: x(p), Y: y(p)})
	}
	return panels
}

// registrationPanels has a panel for each size of pages.
func registrationPanels(all []Registration) []chart.Panel {
	var panels []chart.Panel
	for _, huge := range []bool{false, true} {
		title := map[bool]string{false: "pages of 4 KiB", true: "pages of 2 MiB"}[huge]
		register, deregister := chart.Curve{Name: "register"}, chart.Curve{Name: "deregister"}
		for _, r := range all {
			if r.Huge == huge {
				register.Points = append(register.Points, plotter.XY{X: float64(r.Bytes), Y: r.Register})
				deregister.Points = append(deregister.Points, plotter.XY{X: float64(r.Bytes), Y: r.Deregister})
			}
		}
		if len(register.Points) > 0 {
			panels = append(panels, chart.Panel{Title: title, X: "bytes", Y: "µs", Curves: []chart.Curve{register, deregister}})
		}
	}
	return panels
}
