package sharing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"dsmd/internal/runstats"
)

// Text is the result for people, in lines without a newline at their end.
func (s Sharing) Text() (lines []string) {
	if len(s.Groups) == 0 {
		lines = append(lines, fmt.Sprintf("no page went to and fro between nodes so often that it is known why: %d faults, which waited for %v", s.Faults, runstats.Rounded(s.Waited)))
	}
	known := false
	for i := range s.Groups {
		g := &s.Groups[i]
		if i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, g.head(s.Waited))
		for j := range g.Parties {
			if j == shownParties {
				lines = append(lines, fmt.Sprintf("  and %d others", len(g.Parties)-j))
				break
			}
			lines = append(lines, "  "+g.Parties[j].text())
			known = known || len(g.Parties[j].WriteAt)+len(g.Parties[j].ReadAt) > 0
		}
		for _, x := range g.Guards {
			lines = append(lines, fmt.Sprintf("  lock %q guards %s", x.Lock, x.Uses))
		}
		for _, x := range g.costliest() {
			lines = append(lines, "  cost: "+x.text())
		}
		lines = append(lines, "  advice: "+g.Advice)
	}
	if len(s.Groups) > 0 && !known {
		lines = append(lines, "the lines of the program are not known: too few faults were sampled, or the kernel lets nobody sample them here (perf_event_open, /proc)")
	}
	if s.Lost > 0 {
		lines = append(lines, fmt.Sprintf("%d faults and departures of pages are missing above: they came faster than the ranks could tell of them, or while dsmd run, a rank or a daemon was stopped", s.Lost))
	}
	return lines
}

// shownParties is how many nodes of a page are shown, and shownCosts how many ranks that have paid.
const (
	shownParties = 8
	shownCosts   = 8
)

// costliest are the costs of the ranks that have paid most, and of the others together.
func (g *Group) costliest() []Cost {
	if len(g.Costs) <= shownCosts {
		return g.Costs
	}
	list := slices.SortedFunc(slices.Values(g.Costs), func(a, b Cost) int {
		return cmp.Or(cmp.Compare(min(b.Rank, 0), min(a.Rank, 0)), cmp.Compare(b.Waited, a.Waited))
	})
	rest := Cost{Rank: others}
	for _, x := range list[shownCosts-1:] {
		rest = rest.plus(x)
	}
	return append(list[:shownCosts-1], rest)
}

// head says what a group is, and what it cost.
func (g *Group) head(all time.Duration) string {
	name := "memory that nobody knows"
	if g.Memory != "" {
		name = fmt.Sprintf("%q", g.Memory)
		if g.Type != "" {
			name += " ([]" + g.Type + ")"
		}
	}
	pages := fmt.Sprintf("page %d", g.Example)
	if g.Pages > 1 {
		pages = fmt.Sprintf("%d pages", g.Pages)
	}
	text := fmt.Sprintf("%s: %s of %s: %s; %d faults, which waited for %v, %.0f%% of all waits for pages",
		g.Kind, pages, name, g.what(), g.Faults, runstats.Rounded(g.Waited), 100*g.Waited.Seconds()/max(all.Seconds(), 1e-9))
	if g.Pages > 1 {
		text += fmt.Sprintf("; as page %d:", g.Example)
	}
	return text
}

// what says in words what the kind is here.
func (g *Group) what() string {
	writers := 0
	for i := range g.Parties {
		if g.Parties[i].Writes != "" {
			writers++
		}
	}
	switch {
	case len(g.Guards) > 0:
		return "different locks guard different words"
	case g.Kind == True:
		return "nodes write the same words"
	case g.Kind == Communication && writers == 1:
		return "one node writes what others read"
	case g.Kind == Communication:
		return "nodes write what others read"
	case writers == 1:
		return "one node writes, and others read other words"
	}
	return "nodes write different words"
}

// text says what a party does.
func (p *Party) text() string {
	text := fmt.Sprintf("node %d (no rank)", p.Node)
	switch {
	case len(p.Ranks) == 1:
		text = fmt.Sprintf("rank %d", p.Ranks[0])
	case len(p.Ranks) > 1:
		text = fmt.Sprintf("node %d (ranks %s)", p.Node, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(p.Ranks)), ", "), "[]"))
	}
	var does []string
	if p.Writes != "" {
		does = append(does, "writes "+p.Writes+at(p.WriteAt))
	}
	if p.Reads != "" {
		does = append(does, "reads "+p.Reads+at(p.ReadAt))
	}
	return text + " " + strings.Join(does, ", ")
}

func at(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return " (" + strings.Join(lines, ", ") + ")"
}

// text is what a rank has paid.
func (c *Cost) text() string {
	who := fmt.Sprintf("rank %d", c.Rank)
	if c.Rank == others {
		who = "others"
	}
	return fmt.Sprintf("%s: %d read, %d write, %d upgrade faults, %v", who, c.Read, c.Write, c.Upgrade, runstats.Rounded(c.Waited))
}
