package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"dsmd/internal/launch"
)

// task is this process's place among those that srun has started.
type task struct {
	number, tasks int
	job           string // of all jobs and steps on the cluster
	node          string // name of this machine
}

// envTasks is set by srun only (srun(1), OUTPUT ENVIRONMENT VARIABLES), not in the shell of an
// allocation.
const envTasks = "SLURM_STEP_NUM_TASKS"

// slurmStep reports whether srun has started this process, perhaps as the only task.
func slurmStep(env func(string) string) bool { return env(envTasks) != "" }

// slurmTask reads what srun says; nil if this process is no task of several.
func slurmTask(env func(string) string) *task {
	tasks, err := strconv.Atoi(env(envTasks))
	if err != nil || tasks < 2 {
		return nil
	}
	number, err := strconv.Atoi(env("SLURM_PROCID"))
	if err != nil || number < 0 || number >= tasks {
		return nil
	}
	return &task{number: number, tasks: tasks, job: env("SLURM_JOB_ID") + "." + env("SLURM_STEP_ID"), node: env("SLURMD_NODENAME")}
}

// applyMeeting completes the configuration of a job whose machines come by themselves. attend is
// not nil in all tasks but the first. These do that instead of running the job: they obey the first
// one.
func (p *runPlace) applyMeeting(t *task, cfg *launch.Config) (attend func() error, err error) {
	dir := p.meet
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("--meet: %w", err)
		}
		dir = filepath.Join(home, ".dsmd")
	}
	if err := checkNodes(t.tasks); err != nil {
		return nil, fmt.Errorf("the tasks of this step: %w", err)
	}
	meeting := launch.Meeting{Dir: dir, Name: "slurm-" + t.job, Tasks: t.tasks}
	if t.number > 0 {
		return func() error { return attendMeeting(&meeting, t) }, nil
	}
	cfg.Nodes, cfg.Meeting, cfg.Remote = 0, &meeting, p.remote()
	for i := range t.tasks {
		cfg.Hosts = append(cfg.Hosts, launch.Host{Name: "task " + strconv.Itoa(i), Slots: 1})
	}
	cfg.Commands.Attend = []string{self, "run-agent", "--meet", dir, "--meeting", meeting.Name, "--name", t.node}
	// The others have been started where they are to run.
	cfg.Dir = p.dir
	return nil, nil
}

// attendMeeting is the life of a task that is not the first. The status of the step is that of the
// job, or of why there is none, and the first task has it.
func attendMeeting(m *launch.Meeting, t *task) error {
	err := m.Attend(t.number, t.node, agentConfig())
	if errors.Is(err, launch.ErrNoJob) {
		return &exitError{status: 0, err: err}
	}
	return err
}
