package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"dsmd/internal/checkpoint"
	"dsmd/internal/launch"
)

// defaultEvery is the time between checkpoints. A job that fails loses half of it on average.
const defaultEvery = 10 * time.Minute

// runCheckpoints are the flags of `run` about checkpoints.
type runCheckpoints struct {
	dir     string // absolute after apply
	every   time.Duration
	restore string
	lost    string // what becomes of lost pages

	before *checkpoint.Manifest // set by apply: the newest checkpoint in dir, nil: there is none
}

func (r *runCheckpoints) register(flags *pflag.FlagSet) {
	flags.StringVar(&r.dir, "checkpoint", "", "`DIRECTORY` for checkpoints of the shared memory, which all hosts share; made if need be, but not its parent")
	flags.DurationVar(&r.every, "every", defaultEvery, "time between checkpoints: the first barrier after it takes one")
	flags.StringVar(&r.lost, "lost", "error", "with --survive, what becomes of a lost page: an access to it is an `error`, or it goes back to the last checkpoint")
	flags.StringVar(&r.restore, "restore", "", "`PATH` of the checkpoint that memory begins with: a directory, for its newest one, or a manifest")
}

// check finds what makes no sense whatever is on the disk.
func (r *runCheckpoints) check(flags *pflag.FlagSet) error {
	switch {
	case flags.Changed("checkpoint") && r.dir == "":
		return errors.New("--checkpoint: the name of the directory is empty")
	case flags.Changed("restore") && r.restore == "":
		return errors.New("--restore: the name of the directory or manifest is empty")
	case flags.Changed("every") && r.dir == "":
		return errors.New("--every is for --checkpoint, which names the directory")
	case r.lost != "error" && r.lost != "checkpoint":
		return fmt.Errorf("--lost %s: want error or checkpoint", r.lost)
	case r.lost == "checkpoint" && flags.Lookup("survive").Value.String() != "true":
		return errors.New("--lost checkpoint is for --survive: without it the loss of a node ends the job")
	case r.every <= 0:
		return fmt.Errorf("--every %v: the time between checkpoints is more than 0, such as 10m", r.every)
	}
	return nil
}

// apply has the programs of a job take and restore checkpoints, and says what is restored. The
// error says why the job is not to be started.
func (r *runCheckpoints) apply(cfg *launch.Config) error {
	if r.lost == "checkpoint" {
		cfg.Env = append(cfg.Env, launch.EnvLost+"="+r.lost)
	}
	if r.restore != "" {
		m, err := load(r.restore)
		if err == nil {
			err = m.CheckFiles() // else each rank would find out
		}
		if err != nil {
			return fmt.Errorf("--restore: %w", err)
		}
		ranks := "1 rank"
		if m.Ranks != 1 {
			ranks = fmt.Sprintf("%d ranks", m.Ranks)
		}
		cfg.Say("restoring %s: of %s, sequence %d, %s of memory, from %s",
			m.Path(), moment(m.Time, time.Now()), m.Sequence, rounded(m.MemoryBytes()), ranks)
		// The directory may have a newer one by the time that the programs look.
		cfg.Env = append(cfg.Env, launch.EnvRestore+"="+m.Path())
	}
	if r.dir == "" {
		return nil
	}
	if err := r.prepare(); err != nil {
		return fmt.Errorf("--checkpoint: %w", err)
	}
	if r.before != nil && r.restore == "" {
		cfg.Say("%s has a checkpoint of %s, which this job will replace by its own; with --restore it would go on from there",
			r.dir, moment(r.before.Time, time.Now()))
	}
	cfg.Env = append(cfg.Env, launch.EnvCheckpoint+"="+r.dir, launch.EnvCheckpointEvery+"="+r.every.String())
	return nil
}

// load loads a manifest, whose path is absolute.
func load(path string) (*checkpoint.Manifest, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return checkpoint.Load(path)
}

// prepare finds out whether checkpoints can be written to the directory, and which is its newest.
// The job would find out as well, but only when it wants to take the first one.
func (r *runCheckpoints) prepare() (err error) {
	if r.dir, err = filepath.Abs(r.dir); err != nil {
		return err
	}
	store, err := checkpoint.Create(r.dir)
	if err != nil {
		return err
	}
	if err := unix.Access(r.dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s is not writable: %w: give this user the permission to write there, or name another directory", r.dir, err)
	}
	// Rank 0 will hold the lock.
	unlock, err := store.Lock()
	if err != nil {
		return err
	}
	if err := unlock(); err != nil {
		return fmt.Errorf("unlock %s: %w", r.dir, err)
	}
	r.before, err = store.Latest()
	if err != nil && !errors.Is(err, checkpoint.ErrNone) {
		return fmt.Errorf("the job would find what is there, and take no checkpoint: %w", err)
	}
	return nil
}

// isNew is whether a checkpoint of the directory is of this job.
func (r *runCheckpoints) isNew(m *checkpoint.Manifest) bool {
	return r.before == nil || m.Sequence > r.before.Sequence
}

// missed says that a job which has ended well has taken no checkpoint, although there was time for
// one. "": it has, or there was none.
func (r *runCheckpoints) missed(ran time.Duration) string {
	if r.dir == "" || ran < r.every {
		return ""
	}
	m, err := checkpoint.Load(r.dir)
	if err == nil && r.isNew(m) || err != nil && !errors.Is(err, checkpoint.ErrNone) {
		return ""
	}
	return fmt.Sprintf("this job has taken no checkpoint, though it ran for longer than %v (--every): only a program that calls Cluster.SaveAtBarriers does, at Cluster.Barrier", r.every)
}

// goOn says how to go on after a job that has failed. "": there is no checkpoint. argv is the
// command line, of which program is the end.
func (r *runCheckpoints) goOn(argv, program []string, now time.Time) string {
	if r.dir == "" {
		return ""
	}
	m, err := checkpoint.Load(r.dir)
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return ""
	case err != nil:
		return fmt.Sprintf("the newest checkpoint cannot be used: %v", err)
	}
	if !r.isNew(m) && r.restore != "" {
		return "this job has begun with a checkpoint (--restore), and has taken none: once the cause of the failure is gone, the same command begins there again"
	}
	which := "go on from the checkpoint of " + moment(m.Time, now)
	if !r.isNew(m) {
		which = "this job has taken no checkpoint; go on from that of " + moment(m.Time, now) + ", which was there before,"
	}
	return which + " with" + again(argv, program, r.dir)
}

// maxAgain bounds, in bytes, the command line that a user is shown. It may have megabytes.
const maxAgain = 2000

// again ends a sentence with the command line argv that restores from dir.
func again(argv, program []string, dir string) string {
	flags := argv[:len(argv)-len(program)]
	var end []string
	if n := len(flags) - 1; flags[n] == "--" {
		flags, end = flags[:n], flags[n:]
	}
	var kept []string
	for i := 0; i < len(flags); i++ {
		switch {
		case flags[i] == "--restore":
			i++ // and its value
		case !strings.HasPrefix(flags[i], "--restore="):
			kept = append(kept, flags[i])
		}
	}
	var line strings.Builder
	for _, word := range slices.Concat(kept, []string{"--restore", dir}, end, program) {
		line.WriteString(" " + shellWord(word))
	}
	if line.Len() > maxAgain || strings.ContainsFunc(line.String(), func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return " the same command, and --restore " + shellWord(dir)
	}
	return ":" + line.String()
}

var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// shellWord is a word as a shell reads it.
func shellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// moment is a time for people, of whom most ask about today.
func moment(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}
