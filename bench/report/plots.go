package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"dsmd/bench/chart"
	"dsmd/bench/table"
)

// drawings are the plots of a report: the speed-ups, and for each setup in which something
// succeeded, where the time went and what moved.
func drawings(all []row) []chart.Drawing {
	plots := []chart.Drawing{speedupDrawing(all)}
	for _, s := range distinct(all, row.setup) {
		some := where(all, func(r row) bool { return r.setup() == s })
		if slices.ContainsFunc(some, func(r row) bool { return len(r.good()) > 0 }) {
			plots = append(plots, timeDrawing(s, some), trafficDrawing(s, some))
		}
	}
	return plots
}

func nodes(r row) int { return r.Nodes }

func kernelName(r row) string { return r.Kernel }

// panelColumns is how many panels of speed-ups are beside each other.
const panelColumns = 4

func panelLines(panels int) int { return (panels + panelColumns - 1) / panelColumns }

func speedupDrawing(all []row) chart.Drawing {
	kernels := distinct(all, kernelName)
	return chart.Drawing{
		Name:  "speedup",
		Title: "Speed-up over the sequential version, against nodes",
		About: "One panel per kernel, both axes logarithmic. The grey line is the ideal, as many times as fast as there are threads; " +
			"open squares are as many goroutines on ordinary memory, which is what this machine's processors allow.",
		Width: 940, Height: 66 + 150*vg.Length(panelLines(len(kernels))),
		Draw: func(c draw.Canvas) error { return drawSpeedups(c, all, kernels) },
	}
}

func drawSpeedups(c draw.Canvas, all []row, kernels []string) error {
	low, high := 0.1, 1.0
	for _, r := range all {
		for _, result := range r.good() {
			threads := float64(r.Nodes * r.Threads)
			low, high = min(low, result.Speedup), max(high, threads, result.Speedup, goroutineSpeedup(result))
		}
	}
	low, high = math.Pow10(int(math.Floor(math.Log10(low)))), high*1.3
	panels := make([]*plot.Plot, len(kernels))
	var marks []chart.Mark
	for i, kernel := range kernels {
		p, shown, err := speedupPanel(kernel, where(all, func(r row) bool { return r.Kernel == kernel }))
		if err != nil {
			return err
		}
		p.Y.Min, p.Y.Max = low, high
		p.Y.Tick.Marker = chart.Decades(low, high, chart.Plain)
		if panels[i] = p; len(shown) > len(marks) {
			marks = shown
		}
	}
	c = chart.DrawTitle(c, "Speed-up over the sequential version, against nodes")
	chart.DrawLegend(c, marks)
	// The panels have the same labels, so their axes have the same length.
	tiles := draw.Tiles{Cols: panelColumns, Rows: panelLines(len(kernels)), PadX: 14, PadY: 12}
	for i, p := range panels {
		p.Draw(tiles.At(draw.Crop(c, 0, 0, 0, -26), i%panelColumns, i/panelColumns))
	}
	return nil
}

func goroutineSpeedup(r *Result) float64 { return r.SecondsSerial / r.SecondsGoroutines }

func speedupPanel(kernel string, some []row) (*plot.Plot, []chart.Mark, error) {
	p := chart.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = kernel, chart.LabelSize+1
	p.X.Label.Text, p.Y.Label.Text = "nodes", "speed-up"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	numbers := distinct(some, nodes)
	p.X.Min, p.X.Max = float64(numbers[0])/1.2, float64(numbers[0])*1.2
	var at chart.Ticks
	for _, n := range numbers {
		p.X.Min, p.X.Max = min(p.X.Min, float64(n)/1.2), max(p.X.Max, float64(n)*1.2)
		at = append(at, plot.Tick{Value: float64(n), Label: fmt.Sprint(n)})
	}
	p.X.Tick.Marker = at
	p.Add(chart.Grid(true, true))

	var threads plotter.XYs
	for _, n := range numbers {
		threads = append(threads, plotter.XY{X: float64(n), Y: float64(n * some[0].Threads)})
	}
	best, err := plotter.NewLine(threads)
	if err != nil {
		return nil, nil, err
	}
	best.LineStyle = draw.LineStyle{Color: chart.Ideal, Width: 1}
	p.Add(best)
	marks := []chart.Mark{{Name: "ideal", Thumbs: []plot.Thumbnailer{best}}}

	local := draw.GlyphStyle{Color: chart.Ink, Radius: 3.5, Shape: draw.SquareGlyph{}}
	first := where(some, func(r row) bool { return r.setup() == some[0].setup() })
	m, err := chart.AddLine(p, "goroutines", medians(first, goroutineSpeedup), draw.LineStyle{Color: chart.Ink, Width: 0.7}, local)
	if err != nil {
		return nil, nil, err
	}
	marks = append(marks, m...)
	for i, s := range distinct(some, row.setup) {
		its := where(some, func(r row) bool { return r.setup() == s })
		m, err := chart.AddLine(p, s.String(), medians(its, func(r *Result) float64 { return r.Speedup }), chart.Line(i), chart.Glyph(i))
		if err != nil {
			return nil, nil, err
		}
		marks = append(marks, m...)
	}
	return p, marks, nil
}

// medians are those of a figure against nodes. Rows without a result have no point.
func medians(some []row, figure func(*Result) float64) plotter.XYs {
	var points plotter.XYs
	for _, r := range some {
		if y, ok := r.median(figure); ok && y > 0 {
			points = append(points, plotter.XY{X: float64(r.Nodes), Y: y})
		}
	}
	return points
}

// parts are the parts of a bar, from the left. Their lightness differs by at least a fifth of the
// way from black to white.
var parts = []struct {
	name  string
	color color.Color
	share func(Shares) float64
}{
	{"computing and the rest", color.RGBA{R: 0xe6, G: 0xda, B: 0xb8, A: 0xff}, func(s Shares) float64 { return s.Computing }},
	{"page faults", color.RGBA{R: 0x12, G: 0x2f, B: 0x5e, A: 0xff}, func(s Shares) float64 { return s.Faults }},
	{"locks", color.RGBA{R: 0xc8, G: 0x5a, B: 0x1c, A: 0xff}, func(s Shares) float64 { return s.Locks }},
	{"barriers", color.RGBA{R: 0x7d, G: 0xb2, B: 0xd4, A: 0xff}, func(s Shares) float64 { return s.Barriers }},
}

const (
	barHeight = vg.Length(9)
	barPitch  = vg.Length(14)
)

func timeDrawing(s setup, some []row) chart.Drawing {
	slots := barSlots(some)
	title := fmt.Sprintf("Where the time goes (%v)", s)
	return chart.Drawing{
		Name:  fmt.Sprintf("time-%s-%s", s.trap, s.transport),
		Title: title,
		About: "Each bar is the time of a run, on the average of its threads. The seconds are beside it.",
		Width: 760, Height: 110 + barPitch*vg.Length(len(slots)),
		Draw: func(c draw.Canvas) error { return drawTimes(c, title, slots) },
	}
}

// barSlots are the rows from the top, with a gap (nil) between kernels.
func barSlots(some []row) []*row {
	var slots []*row
	for i := range some {
		if i > 0 && some[i].Kernel != some[i-1].Kernel {
			slots = append(slots, nil)
		}
		slots = append(slots, &some[i])
	}
	return slots
}

func drawTimes(c draw.Canvas, title string, slots []*row) error {
	p := chart.New()
	p.X.Label.Text = "% of the time"
	p.X.Tick.Marker = chart.Ticks{{Value: 0, Label: "0"}, {Value: 25, Label: "25"}, {Value: 50, Label: "50"}, {Value: 75, Label: "75"}, {Value: 100, Label: "100"}}
	var marks []chart.Mark
	var below *plotter.BarChart
	for _, part := range parts {
		values := make(plotter.Values, len(slots))
		for i, r := range slots {
			if r != nil {
				values[len(slots)-1-i] = 100 * part.share(medianShares(r))
			}
		}
		bars, err := plotter.NewBarChart(values, barHeight)
		if err != nil {
			return err
		}
		bars.Horizontal, bars.Color, bars.LineStyle = true, part.color, draw.LineStyle{}
		if below != nil {
			bars.StackOn(below)
		}
		p.Add(bars)
		marks, below = append(marks, chart.Mark{Name: part.name, Thumbs: []plot.Thumbnailer{bars}}), bars
	}
	if err := labelBars(p, slots); err != nil {
		return err
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, 112, -0.7, float64(len(slots))-0.3
	p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width = 0, 0
	c = chart.DrawTitle(c, title)
	chart.DrawLegend(c, marks)
	p.Draw(draw.Crop(c, 0, 0, 0, -22))
	return nil
}

// medianShares are the medians of the shares, made to add up to 1 again; all are 0 if no run has
// succeeded.
func medianShares(r *row) Shares {
	median := func(share func(Shares) float64) float64 {
		m, _ := r.median(func(result *Result) float64 { return share(result.Shares()) })
		return m
	}
	s := Shares{
		Computing: median(func(s Shares) float64 { return s.Computing }),
		Faults:    median(func(s Shares) float64 { return s.Faults }),
		Locks:     median(func(s Shares) float64 { return s.Locks }),
		Barriers:  median(func(s Shares) float64 { return s.Barriers }),
	}
	whole := s.Computing + s.Faults + s.Locks + s.Barriers
	if whole == 0 {
		return s
	}
	return Shares{s.Computing / whole, s.Faults / whole, s.Locks / whole, s.Barriers / whole}
}

// labelBars names each bar on its left and writes its seconds on its right.
func labelBars(p *plot.Plot, slots []*row) error {
	var names chart.Ticks
	var labels plotter.XYLabels
	last := ""
	for i, r := range slots {
		if r == nil {
			continue
		}
		y, name := float64(len(slots)-1-i), fmt.Sprint(r.Nodes)
		if r.Kernel != last {
			name, last = r.Kernel+", nodes: "+name, r.Kernel
		}
		names = append(names, plot.Tick{Value: y, Label: name})
		label := "failed"
		if s, ok := r.median(seconds); ok {
			label = table.Significant(s) + " s"
			if s < 0.1 {
				label = table.Significant(1000*s) + " ms"
			}
		}
		x := 101.0
		if label == "failed" {
			x = 1
		}
		labels.XYs, labels.Labels = append(labels.XYs, plotter.XY{X: x, Y: y}), append(labels.Labels, label)
	}
	p.Y.Tick.Marker = names
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range text.TextStyle {
		chart.Style(&text.TextStyle[i], chart.TickSize)
		text.TextStyle[i].YAlign = draw.YCenter
	}
	text.Offset.Y = 1.5 // centred text is centred by its line, not by its digits
	p.Add(text)
	return nil
}

func trafficDrawing(s setup, some []row) chart.Drawing {
	kernels := distinct(some, kernelName)
	title := fmt.Sprintf("Faults, and bytes moved, per kernel (%v)", s)
	return chart.Drawing{
		Name:  fmt.Sprintf("traffic-%s-%s", s.trap, s.transport),
		Title: title,
		About: "Both axes are logarithmic, with a place of its own for 0. Faults are those that other nodes had to do with, on all nodes together; " +
			"bytes are what all nodes sent, headers included.",
		Width: 900, Height: 120 + 24*vg.Length(len(kernels)),
		Draw: func(c draw.Canvas) error { return drawTraffic(c, title, some, kernels) },
	}
}

func drawTraffic(c draw.Canvas, title string, some []row, kernels []string) error {
	faults, marks, err := dots(some, kernels, column{"faults", func(r *Result) float64 { return float64(r.Misses()) }, amount}, 1)
	if err != nil {
		return err
	}
	bytes, _, err := dots(some, kernels, column{"bytes moved", func(r *Result) float64 { return float64(r.BytesMoved) }, amountOfBytes}, 100)
	if err != nil {
		return err
	}
	c = chart.DrawTitle(c, title)
	chart.DrawLegend(c, marks)
	panels := [][]*plot.Plot{{faults, bytes}}
	for i, cell := range plot.Align(panels, draw.Tiles{Cols: 2, Rows: 1, PadX: 15}, draw.Crop(c, 0, 0, 0, -22))[0] {
		panels[0][i].Draw(cell)
	}
	return nil
}

// dots plots a figure of each kernel, with a mark per number of nodes. Figures below least, which
// are zeros in practice, have a place of their own at the left.
func dots(some []row, kernels []string, shown column, least float64) (*plot.Plot, []chart.Mark, error) {
	p := chart.New()
	p.X.Label.Text = shown.head
	p.X.Scale = plot.LogScale{}
	zero, high := least/10, 10*least
	var marks []chart.Mark
	p.Add(chart.Grid(true, true))
	numbers := distinct(some, nodes)
	for i, n := range numbers {
		// Marks of one kernel are not at the same height, or equal figures would hide each other.
		above := 0.2 * (float64(len(numbers)-1)/2 - float64(i))
		var points plotter.XYs
		for _, r := range where(some, func(r row) bool { return r.Nodes == n }) {
			if x, ok := r.median(shown.figure); ok {
				points = append(points, plotter.XY{X: max(x, zero), Y: height(kernels, r.Kernel) + above})
				high = max(high, x)
			}
		}
		if len(points) == 0 {
			continue
		}
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return nil, nil, err
		}
		scatter.GlyphStyle = chart.Glyph(i)
		p.Add(scatter)
		marks = append(marks, chart.Mark{Name: count(n, "node"), Thumbs: []plot.Thumbnailer{scatter}})
	}
	p.X.Min, p.X.Max = zero/1.5, high*1.5
	p.X.Tick.Marker = append(chart.Ticks{{Value: zero, Label: "0"}}, chart.Decades(least, high, shown.write)...)
	var names chart.Ticks
	for _, kernel := range kernels {
		names = append(names, plot.Tick{Value: height(kernels, kernel), Label: kernel})
	}
	p.Y.Tick.Marker = names
	p.Y.Min, p.Y.Max = -0.6, float64(len(kernels))-0.4
	p.Y.Tick.LineStyle.Width = 0
	return p, marks, nil
}

// height is where a kernel's line of dots is, the first on top.
func height(kernels []string, kernel string) float64 {
	return float64(len(kernels) - 1 - slices.Index(kernels, kernel))
}

// amount writes a power of ten with the prefixes of the SI.
func amount(x float64) string {
	for _, scale := range []struct {
		unit   float64
		prefix string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if x >= scale.unit {
			return chart.Plain(x/scale.unit) + scale.prefix
		}
	}
	return chart.Plain(x)
}

func amountOfBytes(x float64) string {
	if x < 1e3 {
		return chart.Plain(x) + " B"
	}
	return amount(x) + "B"
}
