package main

import (
	"cmp"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// part is what a rank's time is divided into, as --stats has it, and the colour of it (Okabe and
// Ito's, which the colour-blind can tell apart).
type part struct{ name, colour string }

var parts = []part{
	{"computing", "#009e73"}, {"pages", "#d55e00"}, {"locks", "#cc79a7"}, {"barriers", "#0072b2"},
	{"reductions", "#56b4e9"}, {"prefetch", "#f0e442"}, {"no cpu", "#999999"}, {"other", "#dddddd"},
}

// rankTime is a row of --stats.
type rankTime struct {
	rank   string
	shares []float64 // in percent, of parts
}

// cause is what threads have waited for, and where.
type cause struct {
	what, at string
	waited   time.Duration
}

// waits runs a kernel, draws where its time went and what it has waited for, and prints a row for
// the table of the documents.
func (w *workshop) waits(kernel string) error {
	file := w.path(kernel + ".profile")
	cmd := exec.Command(w.path("bench"), "run", kernel, "-n", "2", "--dsmd", w.path("dsmd"), "--stats", "--profile", file)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = os.Stdout, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w:\n%s", err, said.String())
	}
	ranks, err := rankTimes(said.String())
	if err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	p, err := profile.ParseData(data)
	if err != nil {
		return err
	}
	causes := causesOf(p)
	first := slices.IndexFunc(causes, func(c cause) bool { return strings.HasPrefix(c.at, kernel+"/") })
	if first < 0 {
		return fmt.Errorf("no wait has a line of the kernel: %v", causes)
	}
	fmt.Println(row(kernel, ranks, causes[first]))
	return os.WriteFile(filepath.Join(out, "waits-"+kernel+".svg"), []byte(draw(kernel, ranks, causes)), 0o644)
}

// rankTimes reads the first table of --stats. Its columns are wide apart; "NO CPU" has a blank.
func rankTimes(said string) (list []rankTime, err error) {
	var heads []string
	for line := range strings.Lines(said) {
		cells := strings.FieldsFunc(strings.ReplaceAll(strings.TrimPrefix(line, "dsmd: "), "NO CPU", "NO_CPU"), func(r rune) bool { return r == ' ' || r == '\n' })
		switch {
		case len(cells) > 0 && cells[0] == "RANK":
			heads = cells
		case len(heads) > 0 && len(cells) == len(heads):
			x := rankTime{rank: cells[0]}
			for _, p := range parts {
				column := slices.Index(heads, strings.ToUpper(strings.ReplaceAll(p.name, " ", "_")))
				if column < 0 {
					return nil, fmt.Errorf("--stats has no column for %s", p.name)
				}
				share, err := strconv.ParseFloat(strings.TrimSuffix(cells[column], "%"), 64)
				if err != nil {
					return nil, fmt.Errorf("--stats: %w", err)
				}
				x.shares = append(x.shares, share)
			}
			list = append(list, x)
		case len(list) > 0:
			return list, nil
		}
	}
	return nil, fmt.Errorf("--stats has no table of ranks:\n%s", said)
}

// causesOf are what a profile has, by what was waited for and by line, the longest first.
func causesOf(p *profile.Profile) []cause {
	by := map[[2]string]time.Duration{}
	for _, s := range p.Sample {
		what := strings.Trim(s.Location[0].Line[0].Function.Name, "[]")
		by[[2]string{what, lineOf(s)}] += time.Duration(s.Value[1])
	}
	var list []cause
	for key, waited := range by {
		list = append(list, cause{key[0], key[1], waited})
	}
	slices.SortFunc(list, func(a, b cause) int {
		return cmp.Or(cmp.Compare(b.waited, a.waited), cmp.Compare(a.what, b.what), cmp.Compare(a.at, b.at))
	})
	return list
}

// isOurs is whether a function is the library's, or what all kernels share.
func isOurs(name string) bool {
	return strings.HasPrefix(name, "dsmd/dsm.") || strings.HasPrefix(name, "dsmd/bench/kernel.")
}

// lineOf is the innermost line of a wait that is neither the library's nor Go's own.
func lineOf(s *profile.Sample) string {
	for _, l := range s.Location[1:] {
		for _, line := range l.Line {
			f := line.Function
			if !strings.HasPrefix(f.Name, "runtime.") && !isOurs(f.Name) && path.IsAbs(f.Filename) {
				return fmt.Sprintf("%s/%s:%d", path.Base(path.Dir(f.Filename)), path.Base(f.Filename), line.Line)
			}
		}
	}
	return "not sampled"
}

// row is a row of a table in Markdown: the mean of all ranks.
func row(kernel string, ranks []rankTime, first cause) string {
	cells := []string{"`" + kernel + "`"}
	for i := range parts {
		sum := 0.0
		for _, r := range ranks {
			sum += r.shares[i]
		}
		cells = append(cells, fmt.Sprintf("%.1f", sum/float64(len(ranks))))
	}
	return "| " + strings.Join(append(cells, first.what, first.at), " | ") + " |"
}

// draw draws a bar for each rank, and bars for what was waited for longest.
func draw(kernel string, ranks []rankTime, causes []cause) string {
	const width, left, bar, line, most = 640, 325, 305, 22, 5
	causes = causes[:min(len(causes), most)]
	var b strings.Builder
	text := func(x, y int, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n", x, y, html.EscapeString(s))
	}
	box := func(x float64, y int, wide float64, colour, title string) {
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="14" fill="%s"><title>%s</title></rect>`+"\n", x, y, wide, colour, html.EscapeString(title))
	}
	height := line*(len(ranks)+len(causes)+3) - 2
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	y := line
	text(8, y, kernel+": of each rank's time, and what was waited for longest")
	for _, r := range ranks {
		y += line
		text(8, y, "rank "+r.rank)
		x := 70.0
		for i, p := range parts {
			wide := r.shares[i] / 100 * (width - 80)
			box(x, y-11, wide, p.colour, fmt.Sprintf("%s %.1f%%", p.name, r.shares[i]))
			x += wide
		}
	}
	y += line
	for i, p := range parts {
		box(float64(8+79*i), y-11, 10, p.colour, p.name)
		text(21+79*i, y, p.name)
	}
	y += line / 2
	for _, c := range causes {
		y += line
		text(8, y, c.what+" "+c.at)
		box(left, y-11, max(1, bar*c.waited.Seconds()/causes[0].waited.Seconds()*0.8), "#555555", c.waited.String())
		text(left+bar-60, y, fmt.Sprintf("%.1f ms", 1000*c.waited.Seconds()))
	}
	b.WriteString("</svg>\n")
	return b.String()
}
