package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// Place names a mutant in results and lists, also after changes elsewhere: a function, and lines of
// it before and after.
type Place struct {
	File     string
	Function string   // as nameOf gives it; empty outside of functions
	Before   []string // lines, without the blanks round them
	After    []string
	Nth      int // of the places in the function that are equal but for this, from 0
}

func (p Place) key() string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%s\x00%d", p.File, p.Function, strings.Join(p.Before, "\n"), strings.Join(p.After, "\n"), p.Nth)
}

// Mutant is a package with one change.
type Mutant struct {
	Place
	Line     int // where it was when it was drawn
	Operator string
	edits    []Edit
	by       []string // see Entry
}

// Draw draws n mutants that compile, or as many as there are. They come in the same order whatever
// n is.
func (p *Package) Draw(n int, seed uint64) []Mutant {
	type candidate struct {
		Mutant
		order uint64
	}
	var all []candidate
	seen := map[string]int{}
	for _, f := range p.Files {
		for _, s := range p.Sites(f) {
			var alternatives []Mutant
			for _, edits := range s.alternatives {
				m := describe(f, s.operator, edits)
				key := m.key()
				m.Nth = seen[key]
				seen[key]++
				alternatives = append(alternatives, m)
			}
			i := int(order(seed, alternatives[0], "which") % uint64(len(alternatives)))
			all = append(all, candidate{Mutant: alternatives[i], order: order(seed, alternatives[0], s.operator)})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.order, b.order) })
	var drawn []Mutant
	for _, c := range all {
		if len(drawn) == n {
			break
		}
		if p.Compiles(c.edits) {
			drawn = append(drawn, c.Mutant)
		}
	}
	return drawn
}

// order is a number that says nothing about a mutant, but is the same each time.
func order(seed uint64, m Mutant, what string) uint64 {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64(nil, seed))
	h.Write([]byte(m.key()))
	h.Write([]byte(what))
	x := h.Sum64() // neighbours differ in few bits: mix them (murmur3)
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// describe makes a mutant of edits to one file.
func describe(f *File, operator string, edits []Edit) Mutant {
	start, end := edits[0].Start, edits[0].End
	for _, e := range edits {
		start, end = min(start, e.Start), max(end, e.End)
	}
	m := Mutant{Line: f.line(start), Operator: operator, edits: edits}
	m.File, m.Function = f.Name, nameOf(f.function(start, end))
	from := bytes.LastIndexByte(f.Source[:start], '\n') + 1
	to := len(f.Source)
	if i := bytes.IndexByte(f.Source[end:], '\n'); i >= 0 {
		to = end + i
	}
	m.Before = lines(string(f.Source[from:to]))
	m.After = lines(string(apply(f.Source[from:to], from, edits)))
	return m
}

// lines are the lines of a text that are not empty.
func lines(text string) []string {
	var all []string
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l != "" {
			all = append(all, l)
		}
	}
	return all
}

// Diff shows a place as lists have it.
func (p Place) Diff() string {
	var b strings.Builder
	fmt.Fprintf(&b, "@ %s %s", p.File, p.Function)
	if p.Nth > 0 {
		fmt.Fprintf(&b, " #%d", p.Nth)
	}
	b.WriteString("\n")
	for _, l := range p.Before {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	for _, l := range p.After {
		fmt.Fprintf(&b, "+ %s\n", l)
	}
	return b.String()
}
