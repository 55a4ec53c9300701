package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	} {
		args := append(append([]string{"run"}, test.flags...), "--", "true")
		status, stdout, stderr := finish(t, args...)
		if status != launch.StatusUsage || stdout != "" || !strings.Contains(stderr, test.says) {
			t.Errorf("dsmd %q: status %d, %q, %q; want %q", args, status, stdout, stderr, test.says)
		}
	}
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
