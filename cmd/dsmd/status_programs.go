package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/certs"
	"dsmd/internal/launch"
)

// programsStatus is who a daemon is, and which programs are attached to it. All text is printable.
type programsStatus struct {
	PID      uint32          `json:"pid"`         // of the daemon
	Age      float64         `json:"age_seconds"` // since it began to serve
	Programs []programStatus `json:"programs"`    // the oldest first
	// MorePrograms is how many there are besides, at a daemon with very many.
	MorePrograms uint64 `json:"more_programs,omitempty"`
}

// programStatus is a program that is attached to a daemon.
type programStatus struct {
	Rank    uint32  `json:"rank"`
	Size    uint32  `json:"size"`
	PID     uint32  `json:"pid"`
	Age     float64 `json:"age_seconds"` // since it attached
	Job     string  `json:"job,omitempty"`
	Program string  `json:"program"` // the name of its executable
}

func newProgramsStatus(p *attach.Programs) programsStatus {
	s := programsStatus{PID: p.PID, Age: p.Age.Seconds(), Programs: []programStatus{}, MorePrograms: p.More}
	for _, x := range p.Attached {
		s.Programs = append(s.Programs, programStatus{x.Rank, x.Size, x.PID, x.Age.Seconds(), certs.Printable(x.Job), certs.Printable(x.Program)})
	}
	return s
}

// byCluster puts the daemons of each job of dsmd run together; any other daemon stands alone.
func byCluster(list []daemonStatus) (clusters [][]daemonStatus) {
	for i := range list {
		d := &list[i]
		at := slices.IndexFunc(clusters, func(c []daemonStatus) bool { return clusterOf(c[0].Socket) == clusterOf(d.Socket) })
		if at < 0 {
			at, clusters = len(clusters), append(clusters, nil)
		}
		clusters[at] = append(clusters[at], *d)
	}
	return clusters
}

// clusterOf is what the sockets of a cluster have in common: the number of a job of dsmd run, or
// else the socket.
func clusterOf(socket string) string {
	if rest, is := strings.CutPrefix(socket, launch.SocketPrefix); is {
		job, _, _ := strings.Cut(rest, "-")
		return job
	}
	return socket
}

// nodeTable is a table whose lines are about nodes. Without a line it prints nothing.
type nodeTable struct {
	*tabwriter.Writer
	titles string // of the columns behind the node; "" once they are printed
}

func newNodeTable(w io.Writer, titles string) *nodeTable {
	return &nodeTable{tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight), titles}
}

// line prints a line about a daemon's node.
func (t *nodeTable) line(d *daemonStatus, format string, cells ...any) {
	if t.titles != "" {
		fmt.Fprintf(t, "\nNODE\t%s\n", t.titles)
		t.titles = ""
	}
	fmt.Fprintf(t, "%d/%d\t", d.Node, d.Nodes)
	fmt.Fprintf(t, format+"\n", cells...)
}

// printPrograms prints the programs of each node, if there are any.
func printPrograms(w io.Writer, list []daemonStatus) error {
	t := newNodeTable(w, "RANK\tPID\tAGE\t  PROGRAM")
	for i := range list {
		d := &list[i]
		shown := d.Programs[:min(len(d.Programs), mostShown)]
		for _, p := range shown {
			what := p.Program
			if p.Job != "" {
				what += fmt.Sprintf(" of job %q", p.Job)
			}
			t.line(d, "%d/%d\t%d\t%s\t  %s", p.Rank, p.Size, p.PID, age(p.Age), what)
		}
		if more := uint64(len(d.Programs)-len(shown)) + d.MorePrograms; more > 0 {
			t.line(d, "\t\t\t  and %d more", more)
		}
	}
	return t.Flush()
}

// age is a time for people, to the second.
func age(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Truncate(time.Second).String()
}
