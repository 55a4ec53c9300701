package stages

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"dsmd/bench/chart"
)

// places are the parts of the legend. Their lightness differs by at least a fifth of the way from
// black to white.
var places = []struct {
	where string
	color color.Color
}{
	{inProgram, color.RGBA{R: 0xe6, G: 0xda, B: 0xb8, A: 0xff}},
	{asking, color.RGBA{R: 0x12, G: 0x2f, B: 0x5e, A: 0xff}},
	{network, color.RGBA{R: 0x7d, G: 0xb2, B: 0xd4, A: 0xff}},
	{answering, color.RGBA{R: 0xc8, G: 0x5a, B: 0x1c, A: 0xff}},
}

const (
	barHeight, barPitch = vg.Length(11), vg.Length(17)
	namesWidth          = vg.Length(185) // of the names of the stages, left of the first panel
	panelWidth          = vg.Length(225)
	legendHeight        = vg.Length(24)
)

// drawing is a bar for each stage of each operation, which begins where that of the stage before
// has ended.
func (r *Result) drawing() chart.Drawing {
	const title = "Where the time of a fault goes"
	return chart.Drawing{
		Name: "faults", Title: title,
		About: "Each bar is the median of a stage and begins where that of the stage before has ended. Its microseconds are beside it.",
		Width: namesWidth + panelWidth*vg.Length(len(r.Operations)), Height: 110 + barPitch*vg.Length(len(steps)),
		Draw: func(c draw.Canvas) error { return r.draw(c, title) },
	}
}

func (r *Result) draw(c draw.Canvas, title string) error {
	c = chart.DrawTitle(c, title)
	var end float64
	for _, o := range r.Operations {
		end = max(end, o.end())
	}
	body := draw.Crop(c, 0, 0, 0, -legendHeight)
	for i, o := range r.Operations {
		p, marks, err := o.panel(end)
		if err != nil {
			return fmt.Errorf("the bars of %s: %w", o.Name, err)
		}
		left := vg.Length(0)
		if i > 0 {
			left = namesWidth + panelWidth*vg.Length(i)
			p.HideY()
		} else {
			chart.DrawLegend(c, marks)
		}
		right := namesWidth + panelWidth*vg.Length(i+1)
		p.Draw(draw.Crop(body, left, min(right-(body.Max.X-body.Min.X), 0)-6, 0, 0))
	}
	return nil
}

// end is where the last bar ends.
func (o *Operation) end() (sum float64) {
	for _, s := range o.Stages {
		sum += s.P50
	}
	return sum
}

// panel is the plot of one operation, over an axis that goes a little further than to end, and the
// legend's marks.
func (o *Operation) panel(end float64) (*plot.Plot, []chart.Mark, error) {
	p := chart.New()
	p.Title.Text = fmt.Sprintf("%s, p50 %.1f µs", o.Name, o.P50)
	p.X.Label.Text = "µs"
	p.Add(chart.Grid(true, false))
	row := func(i int) int { return len(o.Stages) - 1 - i } // the first is above
	before := make(plotter.Values, len(o.Stages))
	labels := plotter.XYLabels{}
	var names chart.Ticks
	var at float64
	for i, s := range o.Stages {
		before[row(i)] = at
		at += s.P50
		labels.XYs = append(labels.XYs, plotter.XY{X: at + end/60, Y: float64(row(i)) - 0.22})
		labels.Labels = append(labels.Labels, fmt.Sprintf("%.1f", s.P50))
		names = append(names, plot.Tick{Value: float64(row(i)), Label: s.Name})
	}
	base, err := plotter.NewBarChart(before, barHeight) // is not drawn
	if err != nil {
		return nil, nil, err
	}
	base.Horizontal = true
	var marks []chart.Mark
	for _, place := range places {
		values := make(plotter.Values, len(o.Stages))
		for i, s := range o.Stages {
			if s.Where == place.where {
				values[row(i)] = s.P50
			}
		}
		bars, err := plotter.NewBarChart(values, barHeight)
		if err != nil {
			return nil, nil, err
		}
		bars.Horizontal, bars.Color, bars.LineStyle = true, place.color, draw.LineStyle{}
		bars.StackOn(base)
		p.Add(bars)
		marks = append(marks, chart.Mark{Name: place.where, Thumbs: []plot.Thumbnailer{bars}})
	}
	beside, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, nil, err
	}
	for i := range beside.TextStyle {
		chart.Style(&beside.TextStyle[i], chart.TickSize)
	}
	p.Add(beside)
	p.Y.Tick.Marker = names
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, end*1.2, -0.7, float64(len(o.Stages))-0.3
	p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width = 0, 0
	return p, marks, nil
}
