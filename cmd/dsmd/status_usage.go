package main

import (
	"fmt"
	"io"
	"math/bits"

	"dsmd/internal/attach"
	"dsmd/internal/certs"
)

// usageStatus is how much of each allocation a daemon has, in bytes of whole pages. All text is
// printable.
type usageStatus struct {
	// Allocations are those that programs of the node have asked for and that were not freed since,
	// the largest first; nil if the daemon has not counted its pages in time.
	Allocations []allocationStatus `json:"allocations"`
	// More is the sum of those that a daemon with very many leaves out.
	More *moreStatus `json:"more_allocations,omitempty"`
	// Foreign is what is here of memory for which no program of this node has asked, such as what
	// nodes with less room have handed over.
	Foreign *heldStatus `json:"foreign,omitempty"`
}

// heldStatus is how much of some memory a daemon has.
type heldStatus struct {
	Bytes   uint64 `json:"bytes"` // of the memory; in Foreign, of what is here
	Owned   uint64 `json:"owned_bytes"`
	Copies  uint64 `json:"copy_bytes"`
	Spilled uint64 `json:"spilled_bytes"` // of owned and copies
}

// allocationStatus is how much of an allocation a daemon has. Those of the same name differ in the
// job, and all in the first page, which is a number in the region.
type allocationStatus struct {
	Name      string `json:"name"`
	Job       string `json:"job,omitempty"`
	FirstPage uint64 `json:"first_page"`
	heldStatus
}

// moreStatus is the sum of several allocations.
type moreStatus struct {
	Count uint64 `json:"count"`
	heldStatus
}

func newUsageStatus(u *attach.Usage, pageBytes uint64) usageStatus {
	held := func(h attach.Held) heldStatus {
		return heldStatus{h.Pages * pageBytes, h.Owned * pageBytes, h.Copies * pageBytes, h.Spilled * pageBytes}
	}
	s := usageStatus{Allocations: []allocationStatus{}}
	for _, x := range u.Largest {
		s.Allocations = append(s.Allocations, allocationStatus{certs.Printable(x.Name), certs.Printable(x.Job), x.First, held(x.Held)})
	}
	if u.More > 0 {
		s.More = &moreStatus{u.More, held(u.Rest)}
	}
	if u.Foreign.Pages > 0 {
		foreign := held(u.Foreign)
		s.Foreign = &foreign
	}
	return s
}

// mostShown is how many allocations of a node the table for people has.
const mostShown = 10

// printUsage prints the allocations of each node, if there are any.
func printUsage(w io.Writer, list []daemonStatus) error {
	t := newNodeTable(w, "SIZE\tOWNED\tCOPIES\tSPILLED\t  ALLOCATION")
	line := func(d *daemonStatus, h heldStatus, what string) {
		t.line(d, "%s\t%s\t%s\t%s\t  %s", rounded(h.Bytes), rounded(h.Owned), rounded(h.Copies), rounded(h.Spilled), what)
	}
	for i := range list {
		d := &list[i]
		shown := d.Allocations[:min(len(d.Allocations), mostShown)]
		for _, a := range shown {
			what := fmt.Sprintf("%q", a.Name)
			if a.Job != "" {
				what += fmt.Sprintf(" of job %q", a.Job)
			}
			line(d, a.heldStatus, what)
		}
		if more := d.notIn(shown); more.Count > 0 {
			line(d, more.heldStatus, fmt.Sprintf("and %d more", more.Count))
		}
		if d.Foreign != nil {
			line(d, *d.Foreign, "(memory that no program of this node has asked for)")
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range list {
		if d := &list[i]; d.Error == "" && d.Allocations == nil {
			if _, err := fmt.Fprintf(w, "node %d: it has not counted its pages within %v\n", d.Node, askTimeout); err != nil {
				return err
			}
		}
	}
	return nil
}

// notIn is the sum of the allocations that are not shown, which are the first.
func (u *usageStatus) notIn(shown []allocationStatus) (sum moreStatus) {
	if u.More != nil {
		sum = *u.More
	}
	for _, a := range u.Allocations[len(shown):] {
		sum.Count++
		sum.Bytes += a.Bytes
		sum.Owned += a.Owned
		sum.Copies += a.Copies
		sum.Spilled += a.Spilled
	}
	return sum
}

// rounded is a size for people, with one decimal and the largest unit of which it has one.
func rounded(bytes uint64) string {
	unit := (bits.Len64(bytes) - 1) / 10
	if bytes < 1<<10 {
		return fmt.Sprint(bytes)
	}
	return fmt.Sprintf("%.1f%ciB", float64(bytes)/float64(uint64(1)<<(10*unit)), "KMGTPE"[unit-1])
}
