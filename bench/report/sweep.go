package report

import "fmt"

// A Sweep is the set of runs that a report is about: each kernel with each number of nodes, each
// trap and each transport.
type Sweep struct {
	Kernels    []string
	Nodes      []int
	Traps      []string
	Transports []string
	Size       string
	Threads    int // per node
	Repeat     int // runs of each combination, at least 1
}

// A Case is one run of a sweep.
type Case struct {
	Kernel    string `json:"kernel"`
	Nodes     int    `json:"nodes"`
	Threads   int    `json:"threads"`
	Size      string `json:"size"`
	Trap      string `json:"trap"`
	Transport string `json:"transport"`
	Attempt   int    `json:"attempt"` // from 1 to Sweep.Repeat
}

// Cases lists the runs in the order in which they should be done. The whole sweep is repeated, and
// not each run, so that a while in which the machine is busy does not fall on all runs of one
// combination.
func (s Sweep) Cases() []Case {
	var cases []Case
	for attempt := range s.Repeat {
		for _, c := range s.combinations() {
			c.Attempt = attempt + 1
			cases = append(cases, c)
		}
	}
	return cases
}

// combinations lists what is different in more than the attempt, which is left 0.
func (s Sweep) combinations() []Case {
	var cases []Case
	for _, kernel := range s.Kernels {
		for _, nodes := range s.Nodes {
			for _, trap := range s.Traps {
				for _, transport := range s.Transports {
					cases = append(cases, Case{Kernel: kernel, Nodes: nodes, Threads: s.Threads, Size: s.Size, Trap: trap, Transport: transport})
				}
			}
		}
	}
	return cases
}

// file is the name of the case's file in a folder of results.
func (c Case) file() string {
	return fmt.Sprintf("%s-n%d-t%d-%s-%s-%s-%d.json", c.Kernel, c.Nodes, c.Threads, c.Size, c.Trap, c.Transport, c.Attempt)
}

// String describes the case for people.
func (c Case) String() string {
	return fmt.Sprintf("%s on %s, %s, %s, size %s", c.Kernel, count(c.Nodes, "node"), c.Trap, c.Transport, c.Size)
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
