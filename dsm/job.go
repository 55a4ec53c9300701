package dsm

import (
	"fmt"
	"strings"

	"dsmd/internal/attach"
)

// MaxName bounds a name that a program chooses for memory, in bytes.
const MaxName = 255

// Everywhere begins a name that means the same in every job: memory, locks and barriers called
// "/prices" are the same for all programs of the cluster, while each job has its own "prices".
const Everywhere = "/"

// WithJob makes this program part of the job called name, of size programs; 0 stands for as many as
// the daemon was told (`dsmd serve --ranks`). It goes before DSM_JOB and DSM_SIZE. Programs that
// name no job belong to one that has no name.
//
// Jobs keep programs apart that share a cluster and know nothing of each other: each job has ranks,
// Barrier and Reduce of its own, and names of its own, but for those that begin with Everywhere.
// That is order, not protection: all programs of a cluster are of one user.
//
// name is 1 to 63 letters, digits, dots, hyphens and underscores.
func WithJob(name string, size int) Option {
	return func(j *joining) error {
		if size < 0 {
			return fmt.Errorf("WithJob(%q, %d): the number of programs is negative", name, size)
		}
		if name == "" {
			return fmt.Errorf("WithJob(%q, %d): the name is empty", name, size)
		}
		j.job, j.size = name, size
		return nil
	}
}

// checkJob tells what is wrong with the name of a job; the empty one is the job without a name.
func checkJob(name string) error {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return fmt.Errorf("the job is called %q; letters, digits, dots, hyphens and underscores are possible", name)
		}
	}
	if len(name) > attach.MaxJob {
		return fmt.Errorf("the job's name has %d bytes; at most %d are possible", len(name), attach.MaxJob)
	}
	return nil
}

// jobMark is in no name of a job, and at the beginning of no name that a program may choose for
// memory.
const jobMark = "\x00"

// Job is the name of this program's job; "" is that of the programs that name none.
func (c *Cluster) Job() string { return c.job }

// scoped is what the cluster calls something that this program calls name.
func (c *Cluster) scoped(name string) string {
	if strings.HasPrefix(name, Everywhere) {
		return name
	}
	return c.within(name)
}

// scoped is what the cluster calls a barrier of this group that this program calls name.
func (g group) scoped(name string) string {
	if strings.HasPrefix(name, Everywhere) {
		return name // programs of other jobs may come, which have lost other ranks
	}
	return g.c.within(name) + g.suffix
}

// within is what the cluster calls something that belongs to the job whatever its name.
func (c *Cluster) within(name string) string {
	if c.job == "" {
		return name
	}
	return c.own(name)
}

// own is within, and nothing else of the cluster is called so, not even if the job has no name and
// the name begins with Everywhere.
func (c *Cluster) own(name string) string { return jobMark + c.job + jobMark + name }
