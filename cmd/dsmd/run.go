package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmd/internal/launch"
	"dsmd/internal/settings"
	"dsmd/node"
)

// self is this executable, also when it has been moved or deleted since it started (as `go run`
// does), and without being on PATH.
const self = "/proc/self/exe"

// commands are how `run` and its agents start processes of dsmd.
var commands = launch.Commands{Daemon: []string{self, "serve"}, Guard: []string{self, "guard"}}

const runLong = `Runs daemons and copies of a program, each attached to a daemon. With -n all are on this machine:
N daemons and N programs, or with -n N:RANKS so many programs at each daemon. With --hosts they are
on other machines, reached by ssh without a password: one daemon on each, and as many programs as
the host has slots (HOST:SLOTS, 1 if not said). Under srun they are on the nodes of the Slurm
allocation: one for each task.

Each line that a program prints is preceded by its rank, unless --output says otherwise; rank 0
reads standard input. On a terminal a question without a newline is there at once; in a file lines
stay whole.
The job ends when all programs have ended. When one fails, the others are ended, and the exit status
is that of the failure (128 plus the signal for a killed program; 70 if it was a daemon or a machine
that failed). Signals are passed on to the programs; Ctrl-C ends them, a second one kills them, and
a third one gives up hosts that do not answer. When some have ended and others have not after ten
seconds, a line says so, once: who waits at a barrier or in a reduction for a program that has ended
waits for ever. With --fail-on-early-exit such a wait ends the job, after ten seconds, with exit
status 1. Nothing stays behind, no process and no file, on any machine, however the job ends. But
when this machine itself is gone, without power or its network, hosts run on until their sshd
notices it (docs/operations.md: ClientAliveInterval).

With --survive the job goes on without a rank whose program, daemon or machine is lost, as long as
the daemons that are left may (docs/operations.md): the other programs get dsm.ErrNodeLost,
PageLostError or ErrOwnerDied where they meet the loss. A line says which rank was lost, why and
when. The exit status is 0 if some programs have succeeded and all others were lost: killed by a
signal, or with their daemon or machine. Else it is that of the first failure or loss, as when a
program has ended with a status of its own. With --lost checkpoint a lost page goes back to what it
had in the last checkpoint that the job has taken, in place of dsm.PageLostError.

On hosts the same version of dsmd and the program have to be there already, and the program runs in
the same directory as here (--dir names another). It finds the host's environment, and of this one
what --env names. The nodes' connections are encrypted, with certificates that are made for this job
alone.

With --checkpoint the programs save the shared memory in a directory, if they call SaveAtBarriers
(docs/operations.md): every 10 minutes, or as --every says, at the first barrier after that time.
The newest two checkpoints stay. When such a job fails, the last line says how to go on. --restore
has memory begin with what was saved, on any number of nodes. All hosts must share the directory,
under the same path; dsmd run looks at it on this machine only, before anything is started.

Programs find their place in the environment: DSM_SOCKET, DSM_RANK and DSM_SIZE. Of checkpoints
they learn by DSM_CHECKPOINT, DSM_CHECKPOINT_EVERY, DSM_RESTORE and DSM_LOST. Variables that begin
with DSMD_, and the configuration file, are for dsmd serve: here only DSMD_SSH counts.`

const runExample = `  dsmd run -n 4 -- ./solve --grid 4096
  dsmd run -n 2:8 -- ./solve   # 2 daemons, 16 programs
  dsmd run --hosts ann,bob:2,eve@carol --env GOMAXPROCS -- ./solve   # 3 daemons, 4 programs
  dsmd run -n 2 --log-level info --metrics :9100 -- ./solve   # metrics at :9100 and :9101
  dsmd run -n 4 --dashboard :8080 -- ./solve   # a page that shows what it waits for
  dsmd run --survive --hosts ann,bob,eve -- ./solve   # goes on without a host that is lost
  dsmd run --hosts ann,bob --checkpoint /shared/solve --every 5m -- ./solve
  dsmd run -n 4 --restore /shared/solve -- ./solve   # from the newest checkpoint there
  dsmd run -n 2 -- go run .`

func newRun() *cobra.Command {
	var (
		shared nodeFlags
		where  runPlace
		saves  runCheckpoints
		page   runDashboard
		shape  = jobShape{nodes: 1, slots: 1}
		env    []string
		cfg    = launch.Config{Commands: commands, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Format: launch.Prefixed, Bind: launch.Unbound}
	)
	cmd := &cobra.Command{
		Use:     "run (-n N | --hosts HOST,…) [flags] -- PROG [ARGS…]",
		Short:   "Run copies of a program on a cluster of daemons, on this machine or on many",
		Long:    runLong,
		Example: runExample,
		Args:    aProgram,
		RunE: func(cmd *cobra.Command, args []string) error {
			variables, err := chosen(env)
			if err != nil {
				return usageError(cmd, fmt.Errorf("--env: %w", err))
			}
			cfg.Nodes, cfg.Slots, cfg.Program, cfg.Env = shape.nodes, shape.slots, args, variables
			if cfg.Grace < 0 {
				return usageError(cmd, fmt.Errorf("--grace %v: want a time from 0, such as 10s", cfg.Grace))
			}
			if err := cmp.Or(shared.values.CheckReactors(), shared.values.CheckSpill(), saves.check(cmd.Flags()), fromHere(&shared.values.Spill)); err != nil {
				return usageError(cmd, err)
			}
			attend, err := where.apply(cmd, &cfg)
			switch {
			case err != nil:
				return usageError(cmd, err)
			case attend != nil:
				return attend()
			}
			if err := shared.apply(&cfg); err != nil {
				return err
			}
			return run(cfg, shared.values, &saves, &page)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows PROG is PROG's
	flags.VarP(&shape, "nodes", "n", "number of nodes on this machine, each a daemon and a copy of the program, or with :RANKS so many copies")
	flags.StringSliceVar(&cfg.Metrics, "metrics", nil, "TCP `ADDR`ess for the daemons' metrics: one for each node, or one for node 0 whose port is counted up")
	flags.StringArrayVar(&env, "env", nil, "`NAME` of an environment variable for the programs, or NAME=VALUE; may be given again")
	flags.DurationVar(&cfg.Grace, "grace", launch.DefaultGrace, "time between asking a program to end and killing it; 0 kills it at once")
	flags.Var(&cfg.Format, "output", "format of what programs print: each line behind its rank, as it is, as an object, or in DIR, a file for each rank")
	flags.BoolVar(&cfg.FailOnEarlyExit, "fail-on-early-exit", false, "end the job when a rank has ended, also with status 0, and others wait for it at a barrier or in a reduction")
	flags.Var(settings.Choice((*string)(&cfg.Bind), strings.Join(launch.Bindings, "|"), launch.Bindings), "bind", "whether each node has processors of its own, which its machine's are divided into")
	registerInsight(flags, &cfg.Insight)
	flags.BoolVar(&cfg.Timestamps, "timestamps", false, "print the time before each line")
	where.register(flags)
	saves.register(flags)
	page.register(flags)
	shared.register(flags, "warn")
	return cmd
}

// fromHere makes a path absolute, if there is one: daemons need not run in this directory.
func fromHere(path *string) error {
	if *path == "" {
		return nil
	}
	absolute, err := filepath.Abs(*path)
	if err != nil {
		return fmt.Errorf("%s: %w: give an absolute path", *path, err)
	}
	*path = absolute
	return nil
}

// checkMachine finds what this machine cannot do. Every daemon would find out as well, and end the
// job some time after its start.
func checkMachine(cfg *launch.Config, v *settings.Values) error {
	if err := node.CheckTransport(v.Transport, v.RDMADevice); err != nil {
		return err
	}
	if v.Spill != "" && len(cfg.Hosts) == 0 && cfg.Meeting == nil {
		return node.CheckSpill(v.Spill)
	}
	return nil
}

// registerInsight adds the flags of what a job says of itself.
func registerInsight(flags *pflag.FlagSet, x *launch.Insight) {
	flags.BoolVar(&x.Stats, "stats", false, "print at the end where the time of each rank went, and what it waited for")
	flags.StringVar(&x.Profile, "profile", "", "`FILE` for a profile, as pprof reads it, of where in the program threads have waited")
	flags.StringVar(&x.Trace, "trace", "", "`FILE` for a trace of all waits, as Perfetto draws it; compressed if its name ends in .gz")
	flags.BoolVar(&x.Sharing, "sharing", false, "print at the end which pages travelled between nodes, why, and what to do about it")
}

// jobShape is how many daemons a job on this machine has, and how many programs are at each. It is
// the value of a flag, N or N:RANKS.
type jobShape struct{ nodes, slots int }

// String implements pflag.Value.
func (s *jobShape) String() string {
	if s.slots == 1 {
		return strconv.Itoa(s.nodes)
	}
	return fmt.Sprintf("%d:%d", s.nodes, s.slots)
}

// Set implements pflag.Value.
func (s *jobShape) Set(word string) error {
	nodes, slots, isTwo := strings.Cut(word, ":")
	if !isTwo {
		slots = "1"
	}
	var err, slotsErr error
	s.nodes, err = strconv.Atoi(nodes)
	s.slots, slotsErr = strconv.Atoi(slots)
	if err != nil || slotsErr != nil || s.slots < 1 {
		return errors.New("want a number of nodes, or N:RANKS: -n 4, -n 2:8")
	}
	return nil
}

// Type implements pflag.Value.
func (s *jobShape) Type() string { return "N[:RANKS]" }

func aProgram(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError(cmd, errors.New("no program to run: dsmd run -n N -- PROG ARGS"))
	}
	return nil
}

// run runs a job, and says why it was not started, if so.
func run(cfg launch.Config, v *settings.Values, saves *runCheckpoints, page *runDashboard) error {
	err := checkMachine(&cfg, v)
	status := launch.StatusUsage
	if err == nil {
		status, err = attempt(&cfg, saves, page)
	}
	if err != nil {
		cfg.Say("%v", err)
		if cfg.Meeting != nil {
			cfg.Meeting.TurnAway(err)
		}
	}
	if status == 0 {
		return nil
	}
	return &exitError{status: status}
}

// attempt runs a job, and then says how to go on if it has failed, or that it has taken no
// checkpoint. The error says that it was not started.
func attempt(cfg *launch.Config, saves *runCheckpoints, page *runDashboard) (status int, err error) {
	if err := saves.apply(cfg); err != nil {
		return launch.StatusSystem, err
	}
	if err := page.open(cfg); err != nil {
		return launch.StatusUsage, err
	}
	began := time.Now()
	status, err = launch.Run(*cfg)
	page.close(err == nil)
	if err != nil {
		return status, err
	}
	var said string
	if status == 0 {
		said = saves.missed(time.Since(began))
	} else {
		said = saves.goOn(os.Args, cfg.Program, time.Now())
	}
	if said != "" {
		cfg.Say("%s", said)
	}
	return status, nil
}
