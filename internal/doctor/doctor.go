// Package doctor finds out whether dsmd can run here, and how well: what this kernel, this user's
// permissions and this machine's devices allow.
//
// Whatever can be tried is tried, not read from a version number or a configuration: a feature may
// have been ported to an older kernel, and a container may forbid what its kernel can do. Each
// Finding says what was found, and, if something is missing, what follows from that and what to do
// about it, as a command where there is one.
//
// Nothing here changes anything: what a probe opens, maps or listens at, it closes before it
// returns.
package doctor

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"

	"dsmd/internal/diskio"
	"dsmd/internal/uffd"
)

// Verdict is what a probe answers. The third is for probes that were themselves prevented.
type Verdict string

const (
	OK      Verdict = "ok"
	Missing Verdict = "missing"
	Unknown Verdict = "unknown"
)

// Finding is the result of one probe.
type Finding struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	// Required findings must be OK, else dsmd can't run.
	Required bool `json:"required"`
	// Detail is what was found: a version, a number, an error.
	Detail string `json:"detail"`
	// Consequence and Remedy are empty if there is nothing to be done.
	Consequence string `json:"consequence,omitempty"`
	Remedy      string `json:"remedy,omitempty"`
}

// Report is everything that was found out.
type Report struct {
	// Usable reports whether dsmd can run here: all that is required is there.
	Usable bool `json:"usable"`
	// Trap and Transport are what "auto" would choose; Trap is empty if there is none. RDMA is for
	// peers that have it too.
	Trap      string    `json:"trap"`
	Transport string    `json:"transport"`
	Findings  []Finding `json:"findings"`
}

// Examine looks at this machine. It takes some milliseconds.
func Examine() Report {
	files := os.DirFS("/")
	probe := uffd.Probe()
	findings := []Finding{kernel()}
	findings = append(findings, traps(probe, probeSigsegv())...)
	findings = append(findings,
		memfd(), region(), descriptors(),
		openFiles(), mapCount(files), memory(files), cores(), priority(tryPriority),
		hugePages(files), disk(diskio.Available()), loopback())
	findings = append(findings, rdmaFindings(files, tryDevice)...)
	return summarize(findings)
}

// summarize draws the conclusion.
func summarize(findings []Finding) Report {
	r := Report{Usable: true, Transport: "tcp", Findings: findings}
	for _, f := range findings {
		if f.Required && f.Verdict != OK {
			r.Usable = false
		}
		if f.Name == trapName && f.Verdict == OK {
			r.Trap, _, _ = strings.Cut(f.Detail, ",") // "uffd, by ..." or "sigsegv, as ..."
		}
		if f.Name == rdmaName && f.Verdict == OK {
			r.Transport = "rdma"
		}
	}
	return r
}

// Print writes the report for people.
func (r Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Verdict, f.Name, f.Detail)
		if f.Consequence != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", f.Consequence)
		}
		if f.Remedy != "" {
			fmt.Fprintf(t, "\t\tremedy: %s\n", f.Remedy)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\n"+r.conclusion())
	return err
}

func (r Report) conclusion() string {
	if r.Usable {
		return fmt.Sprintf("dsmd can run here: trap %s, transport %s.", r.Trap, r.Transport)
	}
	var lacking []string
	for _, f := range r.Findings {
		if f.Required && f.Verdict != OK {
			lacking = append(lacking, f.Name)
		}
	}
	return "dsmd cannot run here. What it needs and did not find: " + strings.Join(lacking, ", ") + "."
}

// readText reads a small file of /proc or /sys.
func readText(files fs.FS, path string) (string, error) {
	b, err := fs.ReadFile(files, path)
	return strings.TrimSpace(string(b)), err
}
