package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/launch"
)

// TestPlacesThatMakeNoSense: flags that contradict each other are refused before anything is
// reached.
func TestPlacesThatMakeNoSense(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(empty, []byte("# nobody\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		flags []string
		says  string
	}{
		{[]string{"--hosts", "a", "-n", "2"}, "HOST:SLOTS"},
		{[]string{"--hosts", "a:none"}, "no number of slots"},
		{[]string{"--hosts", "a", "--hosts-file", empty}, "give one of them"},
		{[]string{"--hosts-file", empty}, "no host in it"},
		{[]string{"--hosts-file", empty + "x"}, "no such file"},
		// as scontrol show hostnames prints them
		{[]string{"--hosts", "a\nb:none"}, "no number of slots"},
		{[]string{"--hosts", "a b\tc:none"}, "no number of slots"},
		{[]string{"--hosts", "a", "--hosts", "b:none"}, "no number of slots"},
		{[]string{"--hosts", ""}, "--hosts: no host in it"},
		{[]string{"--hosts", ", \n"}, "--hosts: no host in it"},
		{[]string{"--hosts-file", ""}, `--hosts-file "": open`},
		{[]string{"--meet", "/tmp"}, "--meet is for tasks of Slurm"},
		{[]string{"--meet", "/tmp", "--hosts", "a"}, "--meet is for tasks of Slurm"},
		{[]string{"-n", "2", "--insecure"}, "--insecure is for --hosts"},
		{[]string{"--env", "DSMD_TEST_IS_NOT_SET"}, "is not set here"},
		{[]string{"--hosts", "a", "--connect-timeout", "0s"}, "--connect-timeout 0s: want a time of more than 0"},
		{[]string{"--hosts", "a", "--connect-timeout", "-5s"}, "--connect-timeout -5s: want a time of more than 0"},
		{[]string{"--env", "=x"}, "NAME=VALUE"},
		{[]string{"--env", "DSM_RANK=3"}, "--env: DSM_RANK cannot be given: dsmd run sets it itself"},
		{[]string{"--env", "DSM_SIZE"}, "DSM_SIZE cannot be given"},
		{[]string{"--env", "DSM_CHECKPOINT=/tmp"}, "DSM_CHECKPOINT cannot be given"},
	} {
		args := append(append([]string{"run"}, test.flags...), "--", "true")
		status, stdout, stderr := finish(t, args...)
		if status != launch.StatusUsage || stdout != "" || !strings.Contains(stderr, test.says) {
			t.Errorf("dsmd %q: status %d, %q, %q; want %q", args, status, stdout, stderr, test.says)
		}
	}
}

// TestCrowded: it is said once, when a job begins, that many programs share each processor.
func TestCrowded(t *testing.T) {
	onOneProcessor(t)
	for _, test := range []struct{ nodes, program, says string }{
		{"1:8", "true", ""},
		{"1:9", "true", "9 programs run here, more than 8 for each processor: "},
		{"3:3", "true", "9 programs run here, more than 8 for each processor: "},
		{"1:9", "./is-not-there", "is-not-there"},
	} {
		_, _, stderr := finish(t, "run", "-n", test.nodes, "--", test.program)
		if strings.Count(stderr, "dsmd: ") != min(1, len(test.says)) || !strings.Contains(stderr, test.says) {
			t.Errorf("dsmd run -n %s -- %s: %q, want one line with %q", test.nodes, test.program, stderr, test.says)
		}
	}
}

// onOneProcessor has what the test starts run on one processor alone.
func onOneProcessor(t *testing.T) {
	var all, one unix.CPUSet
	runtime.LockOSThread() // processes begin with what their thread may use
	t.Cleanup(runtime.UnlockOSThread)
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &all); err != nil {
			t.Error(err)
		}
	})
}

// TestFilesStayHere: --dir is for the programs. What else has a relative name is where dsmd run was
// started.
func TestFilesStayHere(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	t.Chdir(here)
	if err := os.WriteFile(filepath.Join(there, "where"), []byte("#!/bin/sh\npwd -P\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	status, _, stderr := finish(t, "run", "--dir", there, "--output", "dir:out", "--profile", "profile", "--dashboard-file", "state", "--", "./where")
	if said, err := os.ReadFile("out/rank-0.stdout"); status != 0 || err != nil || string(said) != there+"\n" {
		t.Errorf("status %d, stderr %q, and the program runs in %q, %v", status, stderr, said, err)
	}
	if _, err := os.Stat("state"); err != nil {
		t.Error(err)
	}
	if all, err := os.ReadDir(there); err != nil || len(all) != 1 {
		t.Errorf("%v is in the programs' folder, %v", all, err)
	}
	status, _, stderr = finish(t, "run", "--dir", there, "--memory", "64MiB", "--spill", "none", "--", "true")
	if want := filepath.Join(here, "none") + ": no such file"; status != launch.StatusUsage || !strings.Contains(stderr, want) {
		t.Errorf("status %d, %q, want %q", status, stderr, want)
	}
}

// TestFilesOfAnEarlierJob: those of --output dir: are replaced, also where the new job has fewer
// ranks, and stay if it is not started. What else is there is not touched.
func TestFilesOfAnEarlierJob(t *testing.T) {
	t.Chdir(t.TempDir())
	run := func(want int, args ...string) {
		t.Helper()
		if status, _, stderr := finish(t, append([]string{"run", "--output", "dir:out"}, args...)...); status != want {
			t.Fatalf("%q: status %d, want %d: %s", args, status, want, stderr)
		}
	}
	names := func() string {
		all, err := filepath.Glob("out/*")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, " ")
	}
	run(0, "-n", "1:11", "--", "sh", "-c", "echo x; echo y >&2")
	others := []string{"out/node-x.stderr", "out/old-rank-1.stdout", "out/rank-1.stdout.bak"}
	for _, name := range others {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := names()
	run(launch.StatusNotFound, "--", "./no-such-program")
	if got := names(); got != before {
		t.Errorf("a job that is not started leaves %s, want %s", got, before)
	}
	run(0, "-n", "2", "--", "echo", "z")
	want := append(others, "out/rank-0.stdout", "out/rank-1.stdout")
	slices.Sort(want)
	if got := names(); got != strings.Join(want, " ") {
		t.Errorf("left are %s, want %s", got, want)
	}
}

func TestSlurmTask(t *testing.T) {
	env := map[string]string{"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURMD_NODENAME": "ann"}
	lookup := func(name string) string { return env[name] }
	if !slurmStep(lookup) {
		t.Error("no step")
	}
	if got, want := slurmTask(lookup), (task{3, 4, "17.0", "ann"}); got == nil || *got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for name, value := range map[string]string{
		"SLURM_STEP_NUM_TASKS": "1", // a shell in an allocation: its jobs are local
		"SLURM_PROCID":         "4",
	} {
		was := env[name]
		env[name] = value
		if got := slurmTask(lookup); got != nil {
			t.Errorf("with %s=%s: %+v, want none", name, value, got)
		}
		env[name] = was
	}
	delete(env, "SLURM_STEP_NUM_TASKS")
	if got := slurmTask(lookup); got != nil {
		t.Errorf("without srun: %+v, want none", got)
	}
	if slurmStep(lookup) {
		t.Error("a step without srun")
	}
}

// TestTasksOfAJobThatIsNotStarted: the other tasks do not wait for a launcher that finds that there
// is nothing to launch, and leave the exit status to it.
func TestTasksOfAJobThatIsNotStarted(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--grace", "-1s", "--", "true"}, launch.StatusUsage, "--grace -1s: want"},
		{[]string{"--transport", "rdma", "--rdma-device", "none", "--", "true"}, launch.StatusUsage, "--transport rdma: "},
		{[]string{"--restore", dir, "--", "true"}, launch.StatusSystem, "--restore: checkpoint: there is none"},
		{[]string{"--profile", dir, "--", "true"}, launch.StatusUsage, "directory"},
		{[]string{"--", "./no-such-program"}, launch.StatusNotFound, "no such program"},
	} {
		args := append([]string{"run", "--meet", filepath.Join(dir, "meet")}, test.args...)
		var tasks [2]*exec.Cmd
		var said [2]bytes.Buffer
		for i := range tasks {
			tasks[i] = dsmd(t, args...)
			tasks[i].Stderr = &said[i]
			tasks[i].Env = append(os.Environ(), "SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", fmt.Sprint("SLURM_PROCID=", i), "SLURMD_NODENAME=ann")
			if err := tasks[i].Start(); err != nil {
				t.Fatal(err)
			}
		}
		for i, task := range tasks {
			_ = task.Wait()
			status, want := task.ProcessState.ExitCode(), test.status
			if i > 0 && strings.Contains(said[i].String(), "the job was not started: ") || said[i].Len() == 0 {
				want = 0 // the launcher has said it
			}
			if says := said[i].String(); status != want || says != "" && !strings.Contains(says, test.says) {
				t.Errorf("task %d of %q: status %d, %q, want %d, %q", i, args, status, says, want, test.says)
			}
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "meet")); err != nil || len(left) != 0 {
		t.Errorf("%v is left in the directory (%v)", left, err)
	}
}
