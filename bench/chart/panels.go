package chart

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A Curve is a named series of points of a plot. Points that are not positive have no place on a
// logarithmic axis and are left out.
type Curve struct {
	Name   string
	Points plotter.XYs
}

// Put adds a point to the curve of that name, a new one if need be.
func Put(curves []Curve, name string, x, y float64) []Curve {
	i := slices.IndexFunc(curves, func(c Curve) bool { return c.Name == name })
	if i < 0 {
		i, curves = len(curves), append(curves, Curve{Name: name})
	}
	curves[i].Points = append(curves[i].Points, plotter.XY{X: x, Y: y})
	return curves
}

// A Panel is one plot of several beside each other, over a logarithmic axis of powers of two.
type Panel struct {
	Title string
	// X is the label of the horizontal axis. Y is what the vertical axis is, with its unit: it
	// stands behind the title, because the plotting library makes room for a label as if a
	// logarithmic axis were linear.
	X, Y string
	// Linear: the vertical axis is linear and begins at 0. Else it is logarithmic.
	Linear bool
	Curves []Curve
}

const (
	// marksPerLine is how many marks a line of a legend holds, and legendLine how high it is.
	marksPerLine, legendLine = 4, 16
	// panelGap is between the legend and the panels.
	panelGap = 8
	// mostTicks is how many powers of two an axis names at most.
	mostTicks = 11
)

// Side is a drawing of panels beside each other.
func Side(name, title, about string, panels []Panel) Drawing {
	return Drawing{
		Name: name, Title: title, About: about, Width: 80 + 330*vg.Length(len(panels)), Height: 340,
		Draw: func(c draw.Canvas) error { return drawPanels(c, title, panels) },
	}
}

// drawPanels draws panels beside each other, and above them a title and a legend for all. A curve
// of the same name looks the same in all of them.
func drawPanels(c draw.Canvas, title string, panels []Panel) error {
	names := curveNames(panels)
	marks := make([]Mark, len(names))
	var plots []*plot.Plot
	for _, p := range panels {
		one, err := drawPanel(p, names, marks)
		if err != nil {
			return err
		}
		plots = append(plots, one)
	}
	c = DrawTitle(c, title)
	for from := 0; from < len(marks); from += marksPerLine {
		line := slices.Clone(marks[from:min(from+marksPerLine, len(marks))])
		for len(line) < min(marksPerLine, len(marks)) {
			line = append(line, Mark{}) // so that the marks of all lines stand below each other
		}
		DrawLegend(c, line)
		c = draw.Crop(c, 0, 0, 0, -legendLine)
	}
	tiles := draw.Tiles{Cols: len(panels), Rows: 1, PadX: 14}
	c = draw.Crop(c, 0, 0, 0, -panelGap)
	for i, p := range plots {
		cell := tiles.At(c, i, 0)
		// A plot's own title would be at a height that depends on its letters.
		fillTop(cell, LabelSize, text.XCenter, (cell.Min.X+cell.Max.X)/2, panels[i].heading())
		p.Draw(draw.Crop(cell, 0, 0, 0, -2*LabelSize))
	}
	return nil
}

// heading is what stands above a panel.
func (p Panel) heading() string {
	if p.Title == "" || p.Y == "" {
		return p.Title + p.Y
	}
	return p.Title + ", " + p.Y
}

// drawPanel makes one plot, and the marks of its curves.
func drawPanel(p Panel, names []string, marks []Mark) (*plot.Plot, error) {
	one := New()
	one.X.Label.Text = p.X
	low, high := bounds(p)
	one.X.Scale = plot.LogScale{}
	one.X.Min, one.X.Max = low.X/1.3, high.X*1.3
	one.X.Tick.Marker = powersOfTwo(low.X, high.X)
	if p.Linear {
		one.Y.Min, one.Y.Max = 0, high.Y*1.1
	} else {
		one.Y.Scale = plot.LogScale{}
		one.Y.Min, one.Y.Max = math.Pow10(int(math.Floor(math.Log10(low.Y)))), math.Pow10(int(math.Ceil(math.Log10(high.Y*1.05))))
		one.Y.Tick.Marker = Decades(one.Y.Min, one.Y.Max, Plain)
	}
	one.Add(Grid(true, true))
	for _, curve := range p.Curves {
		style := slices.Index(names, curve.Name)
		mark, err := AddLine(one, curve.Name, visible(p, curve), Line(style), Glyph(style))
		if err != nil {
			return nil, err
		}
		if len(mark) > 0 {
			marks[style] = mark[0]
		}
	}
	return one, nil
}

// AddLine adds points with a line through them, and returns the legend's mark. Without points there
// is neither.
func AddLine(p *plot.Plot, name string, points plotter.XYs, l draw.LineStyle, g draw.GlyphStyle) ([]Mark, error) {
	if len(points) == 0 {
		return nil, nil
	}
	line, glyphs, err := plotter.NewLinePoints(points)
	if err != nil {
		return nil, fmt.Errorf("the curve %q: %w", name, err)
	}
	line.LineStyle, glyphs.GlyphStyle = l, g
	p.Add(line, glyphs)
	return []Mark{{Name: name, Thumbs: []plot.Thumbnailer{line, glyphs}}}, nil
}

// visible are the points of a curve that its panel has a place for.
func visible(p Panel, c Curve) plotter.XYs {
	return slices.DeleteFunc(slices.Clone(c.Points), func(at plotter.XY) bool {
		return !(at.X > 0 && (p.Linear || at.Y > 0))
	})
}

// curveNames lists the names of all curves once.
func curveNames(panels []Panel) []string {
	var names []string
	for _, p := range panels {
		for _, c := range p.Curves {
			if !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

// bounds are the least and the greatest coordinates of what is visible in a panel; 1 and 10 if
// nothing is.
func bounds(p Panel) (low, high plotter.XY) {
	low, high = plotter.XY{X: math.Inf(1), Y: math.Inf(1)}, plotter.XY{}
	for _, c := range p.Curves {
		for _, point := range visible(p, c) {
			low = plotter.XY{X: min(low.X, point.X), Y: min(low.Y, point.Y)}
			high = plotter.XY{X: max(high.X, point.X), Y: max(high.Y, point.Y)}
		}
	}
	if high.X == 0 {
		return plotter.XY{X: 1, Y: 1}, plotter.XY{X: 10, Y: 10}
	}
	if high.Y == 0 {
		high.Y = 1
	}
	return low, high
}

// powersOfTwo are at most mostTicks ticks from low to high.
func powersOfTwo(low, high float64) Ticks {
	first, last := max(0, int(math.Ceil(math.Log2(low)))), int(math.Floor(math.Log2(high)))
	step := max(1, (last-first+mostTicks-2)/(mostTicks-1))
	var ticks Ticks
	for e := first; e <= last; e += step {
		ticks = append(ticks, plot.Tick{Value: math.Exp2(float64(e)), Label: inBinary(1 << e)})
	}
	return ticks
}

// inBinary writes a power of two: small ones in full, and those that would run into their
// neighbours with the prefixes of the IEC.
func inBinary(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d Mi", n>>20)
	case n >= 1<<12:
		return fmt.Sprintf("%d Ki", n>>10)
	}
	return fmt.Sprint(n)
}
