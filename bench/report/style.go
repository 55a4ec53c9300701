package report

import (
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// pixelsPerInch of PNG files: twice what a page shows, so that they are sharp on dense screens.
const pixelsPerInch = 144

// Sizes of text.
const (
	titleSize = vg.Length(13)
	labelSize = vg.Length(10)
	tickSize  = vg.Length(9)
)

var (
	ink   = color.Gray{Y: 0x22}
	faint = color.Gray{Y: 0xdd}
	ideal = color.Gray{Y: 0x88}
	paper = color.White
)

// series are the styles of lines and marks. They differ in colour, in lightness and in shape.
var series = []struct {
	color color.Color
	glyph draw.GlyphDrawer
	dash  []vg.Length
}{
	{color.RGBA{R: 0x08, G: 0x45, B: 0x94, A: 0xff}, draw.CircleGlyph{}, nil},
	{color.RGBA{R: 0xe3, G: 0x6f, B: 0x1e, A: 0xff}, draw.PyramidGlyph{}, []vg.Length{6, 3}},
	{color.RGBA{R: 0x4d, G: 0xaf, B: 0x9a, A: 0xff}, draw.BoxGlyph{}, []vg.Length{2, 2}},
	{color.RGBA{R: 0x7a, G: 0x1f, B: 0x6b, A: 0xff}, draw.CrossGlyph{}, []vg.Length{6, 2, 2, 2}},
}

func newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = paper
	style(&p.Title.TextStyle, titleSize)
	p.Title.Padding = 4
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		style(&axis.Label.TextStyle, labelSize)
		style(&axis.Tick.Label, tickSize)
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = ink, ink
	}
	style(&p.Legend.TextStyle, labelSize)
	return p
}

func style(s *text.Style, size vg.Length) {
	s.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	s.Color = ink
}

// grid draws faint lines at the ticks.
func grid(vertical, horizontal bool) *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = nil, nil
	if vertical {
		g.Vertical = draw.LineStyle{Color: faint, Width: 0.5}
	}
	if horizontal {
		g.Horizontal = draw.LineStyle{Color: faint, Width: 0.5}
	}
	return g
}

// glyph is the style of series i's marks, and line that of its lines.
func glyph(i int) draw.GlyphStyle {
	s := series[i%len(series)]
	return draw.GlyphStyle{Color: s.color, Radius: 3.5, Shape: s.glyph}
}

func line(i int) draw.LineStyle {
	s := series[i%len(series)]
	return draw.LineStyle{Color: s.color, Width: 1.5, Dashes: s.dash}
}

// A mark is what a legend shows of a series.
type mark struct {
	name   string
	thumbs []plot.Thumbnailer
}

// drawLegend writes the marks side by side.
func drawLegend(c draw.Canvas, marks []mark) {
	tiles := draw.Tiles{Cols: len(marks), Rows: 1}
	for i, m := range marks {
		l := plot.NewLegend()
		style(&l.TextStyle, labelSize)
		l.Left, l.Top, l.ThumbnailWidth = true, true, 24
		l.Add(m.name, m.thumbs...)
		l.Draw(tiles.At(c, i, 0))
	}
}

// drawTitle writes a line at the top of c and returns what is left below it.
func drawTitle(c draw.Canvas, title string) draw.Canvas {
	var s text.Style
	style(&s, titleSize)
	s.Handler, s.XAlign, s.YAlign = plot.DefaultTextHandler, text.XLeft, text.YTop
	c.FillText(s, vg.Point{X: c.Min.X, Y: c.Max.Y}, title)
	return draw.Crop(c, 0, 0, 0, -2*titleSize)
}

// A drawing fills a canvas of its size.
type drawing struct {
	name, title   string
	about         string // for people who can't see it, and to say how to read it
	width, height vg.Length
	draw          func(draw.Canvas) error
}

// Formats of drawings.
const (
	formatPNG = "png"
	formatSVG = "svg"
)

// write draws in the given format. SVG files carry their fonts, so that text has the width for which it was placed.
func (d drawing) write(w io.Writer, format string) error {
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case formatPNG:
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(d.width, d.height), vgimg.UseDPI(pixelsPerInch), vgimg.UseBackgroundColor(paper))}
	case formatSVG:
		canvas = vgsvg.NewWith(vgsvg.UseWH(d.width, d.height), vgsvg.EmbedFonts(true))
	default:
		return fmt.Errorf("drawings are made as png or svg, not as %q", format)
	}
	const margin = 10
	if err := d.draw(draw.Crop(draw.New(canvas), margin, -margin, margin, -margin)); err != nil {
		return fmt.Errorf("drawing %s: %w", d.name, err)
	}
	_, err := canvas.WriteTo(w)
	return err
}

// ticks are marks at given places.
type ticks []plot.Tick

// Ticks returns them; a plot's axis asks for them.
func (t ticks) Ticks(float64, float64) []plot.Tick { return t }

// decades are the powers of ten from low to high. None may be outside the axis: the plot would make room for it.
func decades(low, high float64, write func(float64) string) ticks {
	var t ticks
	for e := int(math.Ceil(math.Log10(low))); e <= int(math.Floor(math.Log10(high))); e++ {
		x := math.Pow10(e)
		t = append(t, plot.Tick{Value: x, Label: write(x)})
	}
	return t
}
