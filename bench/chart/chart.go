// Package chart has what the plots of all reports have in common: their style, marks and files, on
// top of gonum's plot.
//
// Plots carry no meaning by colour alone: lines differ by their marks, and areas by their
// lightness, so that they can be read in grey.
package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

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
	TitleSize = vg.Length(13)
	LabelSize = vg.Length(10)
	TickSize  = vg.Length(9)
)

var (
	// Ink is the colour of text and axes, and Ideal that of lines to compare with.
	Ink   = color.Gray{Y: 0x22}
	Ideal = color.Gray{Y: 0x88}

	faint = color.Gray{Y: 0xdd}
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
	{color.RGBA{R: 0x22, G: 0x22, B: 0x22, A: 0xff}, draw.RingGlyph{}, []vg.Length{1, 2}},
	{color.RGBA{R: 0xb0, G: 0x90, B: 0x10, A: 0xff}, draw.SquareGlyph{}, []vg.Length{9, 2}},
	{color.RGBA{R: 0x66, G: 0x99, B: 0xcc, A: 0xff}, draw.PlusGlyph{}, []vg.Length{3, 1}},
}

// New returns an empty plot.
func New() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = paper
	Style(&p.Title.TextStyle, TitleSize)
	p.Title.Padding = 4
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		Style(&axis.Label.TextStyle, LabelSize)
		Style(&axis.Tick.Label, TickSize)
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = Ink, Ink
	}
	Style(&p.Legend.TextStyle, LabelSize)
	return p
}

// Style sets the font and colour of text.
func Style(s *text.Style, size vg.Length) {
	s.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	s.Color = Ink
}

// Grid draws faint lines at the ticks.
func Grid(vertical, horizontal bool) *plotter.Grid {
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

// Glyph is the style of series i's marks.
func Glyph(i int) draw.GlyphStyle {
	s := series[i%len(series)]
	return draw.GlyphStyle{Color: s.color, Radius: 3.5, Shape: s.glyph}
}

// Line is the style of series i's lines.
func Line(i int) draw.LineStyle {
	s := series[i%len(series)]
	return draw.LineStyle{Color: s.color, Width: 1.5, Dashes: s.dash}
}

// A Mark is what a legend shows of a series.
type Mark struct {
	Name   string
	Thumbs []plot.Thumbnailer
}

// DrawLegend writes the marks side by side at the top of c.
func DrawLegend(c draw.Canvas, marks []Mark) {
	tiles := draw.Tiles{Cols: len(marks), Rows: 1}
	for i, m := range marks {
		l := plot.NewLegend()
		Style(&l.TextStyle, LabelSize)
		l.Left, l.Top, l.ThumbnailWidth = true, true, 24
		l.Add(m.Name, m.Thumbs...)
		l.Draw(tiles.At(c, i, 0))
	}
}

// DrawTitle writes a line at the top of c and returns what is left below it.
func DrawTitle(c draw.Canvas, title string) draw.Canvas {
	fillTop(c, TitleSize, text.XLeft, c.Min.X, title)
	return draw.Crop(c, 0, 0, 0, -2*TitleSize)
}

// fillTop writes a line at the top of c, aligned to x.
func fillTop(c draw.Canvas, size vg.Length, align text.XAlignment, x vg.Length, line string) {
	var s text.Style
	Style(&s, size)
	s.Handler, s.XAlign, s.YAlign = plot.DefaultTextHandler, align, text.YTop
	c.FillText(s, vg.Point{X: x, Y: c.Max.Y}, line)
}

// A Drawing fills a canvas of its size.
type Drawing struct {
	Name, Title   string
	About         string // for people who can't see it, and to say how to read it
	Width, Height vg.Length
	Draw          func(draw.Canvas) error
}

// Formats of drawings, which are also how names of their files end.
const (
	PNG = "png"
	SVG = "svg"
)

// Formats lists all of them.
func Formats() []string { return []string{PNG, SVG} }

// Encode draws in the given format. SVG files carry their fonts, so that text has the width for
// which it was placed.
func (d Drawing) Encode(format string) ([]byte, error) {
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case PNG:
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(d.Width, d.Height), vgimg.UseDPI(pixelsPerInch), vgimg.UseBackgroundColor(paper))}
	case SVG:
		canvas = vgsvg.NewWith(vgsvg.UseWH(d.Width, d.Height), vgsvg.EmbedFonts(true))
	default:
		return nil, fmt.Errorf("drawings are made as png or svg, not as %q", format)
	}
	const margin = 10
	if err := d.Draw(draw.Crop(draw.New(canvas), margin, -margin, margin, -margin)); err != nil {
		return nil, fmt.Errorf("drawing %s: %w", d.Name, err)
	}
	var image bytes.Buffer
	if _, err := canvas.WriteTo(&image); err != nil {
		return nil, fmt.Errorf("drawing %s: %w", d.Name, err)
	}
	return image.Bytes(), nil
}

// Ticks are marks at given places.
type Ticks []plot.Tick

// Ticks returns them; a plot's axis asks for them.
func (t Ticks) Ticks(float64, float64) []plot.Tick { return t }

// Decades are the powers of ten from low to high. None may be outside the axis: the plot would make
// room for it.
func Decades(low, high float64, write func(float64) string) Ticks {
	var t Ticks
	for e := int(math.Ceil(math.Log10(low))); e <= int(math.Floor(math.Log10(high))); e++ {
		x := math.Pow10(e)
		t = append(t, plot.Tick{Value: x, Label: write(x)})
	}
	return t
}

// Plain writes a power of ten in full.
func Plain(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
