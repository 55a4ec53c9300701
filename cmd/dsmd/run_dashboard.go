package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"dsmd/internal/dashboard"
	"dsmd/internal/launch"
	"dsmd/internal/runstats"
	"dsmd/internal/runstats/sharing"
)

// maxTitle bounds the program's command line on a page, in bytes.
const maxTitle = 200

// runDashboard is the dashboard of a job, on a page, in a file, or both.
type runDashboard struct {
	addr, file string // flags; "": there is none
	claim      *launch.Claim

	model  *dashboard.Model
	server *dashboard.Server
	say    func(format string, args ...any) // set with model
}

func (d *runDashboard) register(flags *pflag.FlagSet) {
	flags.StringVar(&d.addr, "dashboard", "", "TCP `ADDR`ess for a page that shows, while the job runs, what it waits for: :PORT, or HOST:PORT for other machines too")
	flags.StringVar(&d.file, "dashboard-file", "", "`FILE` for the last state of that page, which dsmd dashboard FILE shows later")
}

// open begins to serve the page, and has the job tell what is on it. The caller calls close.
func (d *runDashboard) open(cfg *launch.Config) error {
	if d.addr == "" && d.file == "" {
		return nil
	}
	if d.file != "" {
		claim, err := launch.NewClaim(d.file)
		if err != nil {
			return fmt.Errorf("--dashboard-file: %w", err)
		}
		d.claim = claim
	}
	job := dashboard.Job{Title: titleOf(cfg.Program), Nodes: cfg.Nodes, Ranks: cfg.Nodes * max(cfg.Slots, 1), Began: time.Now()}
	for _, host := range cfg.Hosts {
		job.Nodes, job.Ranks = job.Nodes+1, job.Ranks+host.Slots
	}
	why := sharing.NewCollector()
	job.Sharing = func() any { return why.Result() }
	d.model, d.say = dashboard.New(job), cfg.Say
	cfg.Pieces = func(p runstats.Piece) {
		why.Add(p)
		d.model.Add(p, time.Now())
	}
	if d.addr == "" {
		return nil
	}
	server, err := serveDashboard("--dashboard", d.addr, func() dashboard.State { return d.model.State(time.Now()) })
	if err != nil {
		d.claim.GiveBack()
		return err
	}
	d.server = server
	cfg.Say("the dashboard is at %s while the job runs", server.URL())
	return nil
}

// close shows the end to who looks, and writes the file, if the job was started.
func (d *runDashboard) close(started bool) {
	if d.model == nil {
		return
	}
	end := time.Now()
	d.model.End(end)
	switch {
	case d.file == "":
	case !started:
		d.claim.GiveBack()
		d.say("--dashboard-file: %s is not written, because the job was not started", d.file)
	default:
		s := d.model.State(end)
		if err := s.Write(d.file); err != nil {
			d.say("--dashboard-file: %v", err)
		} else {
			d.say("the dashboard is in %s: look at it with `dsmd dashboard %s`", d.file, d.file)
		}
	}
	if d.server != nil {
		d.server.Close()
	}
}

// titleOf is a command line for people, without the directories of what it names.
func titleOf(program []string) string {
	words := slices.Clone(program)
	for i, word := range words {
		if i == 0 || filepath.IsAbs(word) {
			words[i] = filepath.Base(word)
		}
	}
	title := strings.Join(words, " ")
	return strings.ToValidUTF8(title[:min(len(title), maxTitle)], "")
}
