package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/maruel/panicparse/v2/stack"

	"dsmd/internal/attach"
	"dsmd/internal/certs"
	"dsmd/internal/runstats"
)

// printStacks prints the stacks of all ranks, those that are the same once; whole: with what is the
// library's.
func printStacks(w io.Writer, list []rankStacks, whole bool) error {
	all, failed := &stack.Snapshot{}, 0
	for i := range list {
		r := &list[i]
		switch {
		case r.err != nil:
			failed++
			fmt.Fprintf(w, "rank %d (process %d): %s%s\n", r.Rank, r.PID, certs.Printable(r.err.Error()), pagesOf(r))
		case r.dump.Blocked > 0:
			fmt.Fprintf(w, "rank %d (process %d) cannot be stopped for its stacks%s\n", r.Rank, r.PID, pagesOf(r))
			for _, x := range r.dump.Waits {
				fmt.Fprintf(w, "    a goroutine waits %s%s\n", certs.Printable(x.String()), certs.Printable(atLine(x.At)))
			}
		default:
			if err := addStacks(all, i, r.dump.Text); err != nil {
				fmt.Fprintf(w, "rank %d (process %d): its stacks make no sense: %v\n", r.Rank, r.PID, err)
			}
		}
	}
	if len(all.Goroutines) > 0 {
		for _, b := range all.Aggregate(stack.AnyValue).Buckets {
			if calls := b.Stack.Calls[within(b):]; whole {
				printBucket(w, b, b.Stack.Calls, list)
			} else if len(calls) > 0 {
				printBucket(w, b, calls, list)
			}
		}
	}
	if failed == len(list) {
		return fmt.Errorf("none of the %d ranks here has told its stacks: above stands why", len(list))
	}
	return nil
}

func atLine(line string) string {
	if line == "" {
		return ""
	}
	return ", " + line
}

// pagesOf says for which pages a rank waits.
func pagesOf(r *rankStacks) string {
	if len(r.pages) == 0 {
		return ""
	}
	var pages []string
	for _, p := range r.pages {
		text := fmt.Sprintf("page %d", p.Page)
		if p.Memory != "" {
			text += fmt.Sprintf(" of %q", certs.Printable(p.Memory))
		}
		why := fmt.Sprintf("asked of node %d", p.From)
		switch p.Stage {
		case attach.PageParked:
			why = "not asked for yet, for want of room or a quorum, or in a recovery"
		case attach.PageHere:
			why = "on a disk of its node, or waits for one"
		case attach.PageBusy:
			why = "being copied to its backups, pinned, or about to go"
		}
		pages = append(pages, fmt.Sprintf("%s for %s (%s)", text, p.Waited.Round(100*time.Millisecond), why))
	}
	return ": threads wait for " + strings.Join(pages, ", ")
}

// addStacks adds the goroutines of one of the ranks.
func addStacks(all *stack.Snapshot, which int, text string) error {
	opts := stack.DefaultOpts()
	opts.GuessPaths, opts.AnalyzeSources, opts.NameArguments = false, false, false
	one, _, err := stack.ScanSnapshot(strings.NewReader(text), io.Discard, opts)
	if err != nil && err != io.EOF {
		return err
	}
	if one == nil {
		return fmt.Errorf("there are none in %d bytes", len(text))
	}
	for _, g := range one.Goroutines {
		g.ID = which // which goroutine of the rank it is, is of no interest
		g.First = false
		all.Goroutines = append(all.Goroutines, g)
	}
	return nil
}

// library begins the names of the functions of package dsm and of what it is made of.
const library = "dsmd/"

// within is how many of the innermost frames of a stack are the library's, but for the function
// that the program has called: all, if the library has made the goroutine.
func within(b *stack.Bucket) (n int) {
	ours := func(c stack.Call) bool {
		return strings.HasPrefix(c.Func.Complete, library+"dsm.") || strings.HasPrefix(c.Func.Complete, library+"internal/attach.")
	}
	for i, c := range b.Stack.Calls {
		if ours(c) {
			n = i
		}
	}
	rest := b.Stack.Calls[min(n+1, len(b.Stack.Calls)):]
	if len(b.Stack.Calls) > 0 && ours(b.Stack.Calls[n]) && !slices.ContainsFunc(rest, isUsers) {
		return len(b.Stack.Calls)
	}
	return n
}

// isUsers is whether a frame below one of the library is of the program: the runtime and package
// sync begin goroutines, too.
func isUsers(c stack.Call) bool {
	return !strings.HasPrefix(c.Func.Complete, "sync.") && !strings.HasPrefix(c.Func.Complete, "runtime.")
}

// printBucket prints a stack, and whose it is.
func printBucket(w io.Writer, b *stack.Bucket, calls []stack.Call, list []rankStacks) {
	which := slices.Compact(slices.Sorted(slices.Values(b.IDs)))
	state := b.State
	if s := b.SleepString(); s != "" {
		state += ", " + s
	}
	goroutines := "goroutines"
	if len(b.IDs) == 1 {
		goroutines = "goroutine"
	}
	fmt.Fprintf(w, "\n%d %s of %s [%s]%s\n", len(b.IDs), goroutines, rankNames(which, list), certs.Printable(state), waitsIn(b, which, list))
	for _, c := range calls {
		fmt.Fprintf(w, "    %s\n        %s:%d\n", certs.Printable(c.Func.Complete), certs.Printable(c.RemoteSrcPath), c.Line)
	}
	if b.Stack.Elided {
		fmt.Fprintln(w, "    …")
	}
}

// rankNames names ranks, neighbours together: ranks 0-2, 5.
func rankNames(which []int, list []rankStacks) string {
	var parts []string
	for i := 0; i < len(which); {
		first, j := list[which[i]].Rank, i+1
		for j < len(which) && list[which[j]].Rank == first+uint32(j-i) {
			j++
		}
		part := fmt.Sprint(first)
		if j-i > 1 {
			part = fmt.Sprintf("%d-%d", first, first+uint32(j-i)-1)
		}
		parts, i = append(parts, part), j
	}
	if len(which) == 1 {
		return "rank " + parts[0]
	}
	return "ranks " + strings.Join(parts, ", ")
}

// mostWaits bounds the different things that are named as waited for at one line.
const mostWaits = 4

// waitsIn says what is waited for at a stack: what ranks wait for at a line of it. Of goroutines
// that wait at the same line for different things nobody knows which waits for what.
func waitsIn(b *stack.Bucket, which []int, list []rankStacks) string {
	lines := map[string]bool{}
	inLibrary := false
	for _, c := range b.Stack.Calls {
		lines[fmt.Sprintf("%s:%d", c.SrcName, c.Line)] = true
		inLibrary = inLibrary || strings.HasPrefix(c.Func.Complete, library+"dsm.")
	}
	if !inLibrary {
		return ""
	}
	longest := map[string]runstats.Wait{}
	var order []string
	for _, i := range which {
		for _, x := range list[i].dump.Waits {
			key := fmt.Sprintf("%s %q", x.Kind, x.Name)
			if !lines[x.At] {
				continue
			}
			if old, known := longest[key]; !known {
				order = append(order, key)
				longest[key] = x
			} else if old.For < x.For {
				longest[key] = x
			}
		}
	}
	if len(order) == 0 {
		return ""
	}
	var texts []string
	for _, key := range order[:min(len(order), mostWaits)] {
		x := longest[key]
		texts = append(texts, certs.Printable(x.String()))
	}
	if len(order) > mostWaits {
		texts = append(texts, fmt.Sprintf("and %d more", len(order)-mostWaits))
	}
	return " waits " + strings.Join(texts, ", ")
}
