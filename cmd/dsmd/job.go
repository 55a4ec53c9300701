package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"dsmd/internal/certs"
)

// jobHelp is what the help of commands that take a JOB says of it.
const jobHelp = `JOB is the number in a job's sockets (@dsmd-JOB-NODE, as "dsmd status" shows them) or its beginning,
the socket of a daemon that stays, the name that programs have given their job (DSM_JOB), or their
executable. A whole name goes before an executable, and that before the beginning of a number.`

// job is what a JOB on a command line means: programs that know each other, with the daemons of
// their cluster on this machine.
type job struct {
	cluster  string // as clusterOf has it
	name     string // "": the programs name none
	daemons  []daemonStatus
	programs []jobProgram
}

// jobProgram is a program of a job.
type jobProgram struct {
	programStatus
	socket string // of its daemon
}

// String is the job as a command line may have it.
func (j *job) String() string {
	if j.name == "" {
		return j.cluster
	}
	return j.cluster + "/" + j.name
}

// program is the name of its executable; "" if none is attached.
func (j *job) program() string {
	if len(j.programs) == 0 {
		return ""
	}
	return j.programs[0].Program
}

// closeness is how much a text names the job: its whole name as we show it, the name of the cluster
// or of the job, its program, or how its number begins. 0: it does not.
func (j *job) closeness(text string) int {
	switch {
	case text == j.String():
		return 4
	case text == j.cluster || slices.ContainsFunc(j.programs, func(p jobProgram) bool { return text == p.Job || text == j.cluster+"/"+p.Job }):
		return 3
	case slices.ContainsFunc(j.programs, func(p jobProgram) bool { return filepath.Base(text) == p.Program }):
		return 2
	case strings.HasPrefix(j.cluster, text):
		return 1
	}
	return 0
}

// closest are the jobs that a text may mean: those that it names most.
func closest(jobs []*job, text string) (meant []*job) {
	most := 1
	for _, j := range jobs {
		switch n := j.closeness(text); {
		case n > most:
			most, meant = n, []*job{j}
		case n == most:
			meant = append(meant, j)
		}
	}
	return meant
}

// line is the job for people.
func (j *job) line() string {
	if len(j.programs) == 0 {
		return fmt.Sprintf("\n  %s: no program here", j)
	}
	p := &j.programs[0]
	return fmt.Sprintf("\n  %s: %d of %d ranks here, %s, for %s", j, len(j.programs), p.Size, p.Program, age(p.Age))
}

// lines are jobs for people.
func lines(jobs []*job) string {
	var b strings.Builder
	for _, j := range jobs {
		b.WriteString(j.line())
	}
	return b.String()
}

// clustersOf are the clusters of daemons, each with all its programs.
func clustersOf(list []daemonStatus) (clusters []*job) {
	for _, daemons := range byCluster(list) {
		c := &job{cluster: clusterOf(daemons[0].Socket), daemons: daemons}
		for _, d := range daemons {
			for _, p := range d.Programs {
				c.programs = append(c.programs, jobProgram{p, d.Socket})
			}
		}
		clusters = append(clusters, c)
	}
	return clusters
}

// jobsOf are the jobs of these clusters. One without a program is a job, too.
func jobsOf(list []daemonStatus) (jobs []*job) {
	for _, c := range clustersOf(list) {
		first := len(jobs)
		for _, p := range c.programs {
			i := slices.IndexFunc(jobs[first:], func(j *job) bool { return j.name == p.Job })
			if i < 0 {
				i, jobs = len(jobs)-first, append(jobs, &job{cluster: c.cluster, name: p.Job, daemons: c.daemons})
			}
			jobs[first+i].programs = append(jobs[first+i].programs, p)
		}
		if len(c.programs) == 0 {
			jobs = append(jobs, c)
		}
	}
	return jobs
}

// chooseJob is the job that a text means. Without a text it is the only one that has programs, or
// else the only one.
func chooseJob(jobs []*job, text string) (*job, error) {
	meant := closest(jobs, text)
	if text == "" {
		meant = jobs
		if busy := slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return len(j.programs) == 0 }); len(busy) > 0 {
			meant = busy
		}
	}
	text = certs.Printable(text)
	switch {
	case len(meant) == 1:
		return meant[0], nil
	case len(jobs) == 0 && text == "":
		return nil, errNoDaemon()
	case len(jobs) == 0:
		return nil, fmt.Errorf("no job %q runs on this machine, nor any other of yours: it has ended, or runs elsewhere: ask there; or if its daemon %s", text, atAnother)
	case len(meant) == 0:
		return nil, fmt.Errorf("no job %q runs on this machine: it has ended, or runs elsewhere: ask there; or if its daemon %s; those of yours that were found here:%s", text, atAnother, lines(jobs))
	case text == "":
		return nil, errors.New("several jobs run on this machine: name one of these" + lines(meant))
	}
	return nil, fmt.Errorf("%q may be any of these jobs: write more of it, or the number of one%s", text, lines(meant))
}

// findDaemons asks the daemon at a socket, or else all of this user that can be found.
func findDaemons(socket string) ([]daemonStatus, error) {
	if socket != "" {
		return askAll([]string{socket}), nil
	}
	sockets, err := findSockets()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(askAll(sockets), func(d daemonStatus) bool { return d.foreign }), nil
}

// answersOf are the daemons that have answered. Warnings say of the others why they have not; it is
// an error if none has.
func answersOf(list []daemonStatus, warnings io.Writer) ([]daemonStatus, error) {
	var answers []daemonStatus
	var silent []error
	for _, d := range list {
		if d.Error == "" {
			answers = append(answers, d)
		} else {
			silent = append(silent, fmt.Errorf("the daemon at %s: %s", d.Socket, d.Error))
		}
	}
	switch {
	case len(list) == 0:
		return nil, errNoDaemon()
	case len(answers) == 0:
		return nil, silent[0]
	}
	for _, err := range silent {
		fmt.Fprintf(warnings, "dsmd: %v\n", err)
	}
	return answers, nil
}
