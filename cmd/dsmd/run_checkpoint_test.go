package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmd/internal/checkpoint"
	"dsmd/internal/launch"
)

// TestCheckpointFlags: what cannot be done is said before anything is started.
func TestCheckpointFlags(t *testing.T) {
	dir, empty := checkpoints(t), t.TempDir()
	file := filepath.Join(empty, "file")
	damaged := checkpoints(t)
	gone := checkpoints(t)
	if err := os.Remove(filepath.Join(gone, checkpoint.PartName(2, 0))); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{file: "", filepath.Join(damaged, checkpoint.ManifestName(2)): "{}"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	locked, err := checkpoint.Create(filepath.Join(empty, "locked"))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := locked.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock() // and it is not garbage before, which would end the lock
	for _, test := range []struct {
		flags  []string
		status int
		says   string
	}{
		{[]string{"--every", "5m"}, launch.StatusUsage, "--every is for --checkpoint"},
		{[]string{"--every", "0s", "--checkpoint", dir}, launch.StatusUsage, "--every 0s: the time between checkpoints is more than 0"},
		{[]string{"--every", "-1s", "--checkpoint", dir}, launch.StatusUsage, "--every -1s: "},
		{[]string{"--every", "5", "--checkpoint", dir}, launch.StatusUsage, `invalid argument "5" for "--every" flag`},
		{[]string{"--checkpoint", ""}, launch.StatusUsage, "--checkpoint: the name of the directory is empty"},
		{[]string{"--restore", ""}, launch.StatusUsage, "--restore: the name of the directory or manifest is empty"},
		{[]string{"--lost", "zeros", "--survive"}, launch.StatusUsage, "--lost zeros: want error or checkpoint"},
		{[]string{"--lost", "checkpoint"}, launch.StatusUsage, "--lost checkpoint is for --survive"},
		{[]string{"--restore", empty}, launch.StatusSystem, "--restore: checkpoint: there is none in " + empty},
		{[]string{"--restore", empty + "/none"}, launch.StatusSystem, "no such file or directory"},
		{[]string{"--restore", file}, launch.StatusSystem, "neither a directory nor a manifest"},
		{[]string{"--restore", damaged}, launch.StatusSystem, "what could be tried is " + filepath.Join(damaged, checkpoint.ManifestName(1))},
		{[]string{"--restore", gone}, launch.StatusSystem, checkpoint.PartName(2, 0) + ": no such file or directory"},
		{[]string{"--checkpoint", damaged}, launch.StatusSystem, "--checkpoint: the job would find what is there, and take no checkpoint: "},
		{[]string{"--checkpoint", file}, launch.StatusSystem, "is no directory"},
		{[]string{"--checkpoint", empty + "/a/b"}, launch.StatusSystem, "make the directory"},
		{[]string{"--checkpoint", locked.Dir()}, launch.StatusSystem, "another job writes here"},
		{[]string{"--checkpoint", "/proc/self"}, launch.StatusSystem, "--checkpoint: "},
	} {
		args := append(append([]string{"run"}, test.flags...), "--", "echo", "started")
		status, stdout, stderr := finish(t, args...)
		if status != test.status || stdout != "" || !strings.HasPrefix(stderr, "dsmd: ") || !strings.Contains(stderr, test.says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("dsmd %q: status %d, %q, %q; want status %d and one line with %q", args, status, stdout, stderr, test.status, test.says)
		}
	}
}

// TestProgramsLearnOfCheckpoints: the paths are absolute, and the directory is made.
func TestProgramsLearnOfCheckpoints(t *testing.T) {
	from := checkpoints(t)
	base := filepath.Dir(from)
	t.Chdir(base)
	const show = `echo "$DSM_CHECKPOINT $DSM_CHECKPOINT_EVERY $DSM_RESTORE$DSM_LOST"`
	newest := filepath.Join(from, checkpoint.ManifestName(2))
	status, stdout, stderr := finish(t, "run", "-n", "2", "--checkpoint", "new", "--restore", "job", "--", "sh", "-c", show)
	to := base + "/new"
	for _, rank := range []string{"[0] ", "[1] "} {
		if want := rank + to + " 10m0s " + newest + "\n"; status != 0 || !strings.Contains(stdout, want) {
			t.Errorf("status %d, stdout %q, stderr %q; want %q", status, stdout, stderr, want)
		}
	}
	if start, end := "dsmd: restoring "+newest+": of ", ", sequence 2, 11.7KiB of memory, from 1 rank\n"; !strings.HasPrefix(stderr, start) || !strings.HasSuffix(stderr, end) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("%q, want one line from %q to %q", stderr, start, end)
	}
	if info, err := os.Stat(to); err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("%v, %v, want a directory for its owner", info, err)
	}
	older := filepath.Join(from, checkpoint.ManifestName(1))
	status, stdout, stderr = finish(t, "run", "--every", "90s", "--checkpoint", to, "--restore", older, "--", "sh", "-c", show)
	if want := "[0] " + to + " 1m30s " + older + "\n"; status != 0 || stdout != want {
		t.Errorf("status %d, stdout %q, stderr %q; want %q", status, stdout, stderr, want)
	}
	status, stdout, stderr = finish(t, "run", "--survive", "--lost", "checkpoint", "--", "sh", "-c", show)
	if want := "[0]   checkpoint\n"; status != 0 || stdout != want {
		t.Errorf("status %d, stdout %q, stderr %q; want %q", status, stdout, stderr, want)
	}
}

// TestAllThatAJobSaysIsInItsFormat: with --output json each line of standard error is an object,
// also those before the job and after it.
func TestAllThatAJobSaysIsInItsFormat(t *testing.T) {
	dir, none := checkpoints(t), t.TempDir()
	for _, test := range []struct {
		says string // the beginnings of lines, in order
		args []string
	}{
		{"the dashboard is at |rank 0 exited|the dashboard is in |go on from",
			[]string{"--checkpoint", filepath.Join(none, "new"), "--dashboard", ":0", "--dashboard-file", filepath.Join(none, "file"), "--", "sh", "-c", `cp "$0"/* "$DSM_CHECKPOINT"; false`, dir}},
		{"restoring ", []string{"--restore", dir, "--", "true"}},
		{dir + " has a checkpoint of ", []string{"--checkpoint", dir, "--", "true"}},
		{"this job has taken no checkpoint, though", []string{"--checkpoint", filepath.Join(none, "none"), "--every", "1ns", "--", "true"}},
		{"--restore: checkpoint: there is none", []string{"--restore", none, "--", "true"}},
		{"--dashboard-file: |launch: ./none", []string{"--dashboard-file", filepath.Join(none, "file"), "--", "./none"}},
	} {
		_, _, stderr := finish(t, append([]string{"run", "--output", "json"}, test.args...)...)
		lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
		want := strings.Split(test.says, "|")
		if len(lines) != len(want) {
			t.Errorf("%q says %q, want %d lines", test.args, lines, len(want))
			continue
		}
		for i, line := range lines {
			var is struct{ Time, From, Stream, Text string }
			if err := json.Unmarshal([]byte(line), &is); err != nil || is.Time == "" || is.From != "dsmd" || is.Stream != "stderr" || !strings.HasPrefix(is.Text, want[i]) {
				t.Errorf("%q says %q, %v, want an object with %q", test.args, line, err, want[i])
			}
		}
	}
}

// TestFailedJobSaysHowToGoOn lets a program take a checkpoint, in effect, and die.
func TestFailedJobSaysHowToGoOn(t *testing.T) {
	from, dir := checkpoints(t), filepath.Join(t.TempDir(), "with space")
	const script = `cp "$0"/*-000001* "$DSM_CHECKPOINT"; kill -9 $$`
	status, _, stderr := finish(t, "run", "--checkpoint", dir, "--", "true")
	if status != 0 || stderr != "" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	status, _, stderr = finish(t, "run", "--checkpoint", dir, "--", "false")
	if status != 1 || strings.Contains(stderr, "go on") {
		t.Errorf("there is no checkpoint: status %d, stderr %q", status, stderr)
	}
	status, _, stderr = finish(t, "run", "--checkpoint", dir, "--restore="+from, "--", "sh", "-c", script, from)
	checkLastLine(t, status, stderr, `dsmd: go on from the checkpoint of `,
		` with: /proc/self/exe run --checkpoint '`+dir+`' --restore '`+dir+`' -- sh -c 'cp "$0"/*-000001* "$DSM_CHECKPOINT"; kill -9 $$' `+from)
	status, _, stderr = finish(t, "run", "--checkpoint", dir, "--", "sh", "-c", "kill -9 $$")
	checkLastLine(t, status, stderr, "dsmd: this job has taken no checkpoint; go on from that of ", ", which was there before, with: /proc/self/exe run --checkpoint '"+dir+"' --restore '"+dir+"' -- sh -c 'kill -9 $$'")
	status, _, stderr = finish(t, "run", "--checkpoint", dir, "--restore", dir, "--", "sh", "-c", "kill -9 $$")
	checkLastLine(t, status, stderr, "dsmd: this job has begun with a checkpoint (--restore), and has taken none: ", ", the same command begins there again")
	status, _, stderr = finish(t, "run", "--checkpoint", dir, "--", "sh", "-c", `echo "{}" >"$DSM_CHECKPOINT"/checkpoint-000003.json; kill -9 $$`)
	checkLastLine(t, status, stderr, "dsmd: the newest checkpoint cannot be used: ", "what could be tried is "+filepath.Join(dir, checkpoint.ManifestName(1)))
}

// TestCheckpointsThatAreNotTaken: a job says what it does not begin with, and that it has taken
// none.
func TestCheckpointsThatAreNotTaken(t *testing.T) {
	dir := checkpoints(t)
	begins := "dsmd: " + dir + " has a checkpoint of "
	const missed = "dsmd: this job has taken no checkpoint, though it ran for longer than 1ms (--every): "
	for _, test := range []struct {
		flags []string
		want  []string // how the lines begin
	}{
		{[]string{"--checkpoint", dir}, []string{begins}},
		{[]string{"--checkpoint", dir, "--restore", dir}, []string{"dsmd: restoring "}},
		{[]string{"--checkpoint", dir, "--every", "1ms"}, []string{begins, missed}},
		{[]string{"--checkpoint", t.TempDir(), "--every", "1ms"}, []string{missed}},
	} {
		status, _, stderr := finish(t, append(append([]string{"run"}, test.flags...), "--", "true")...)
		lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
		if status != 0 || !slices.EqualFunc(lines, test.want, strings.HasPrefix) {
			t.Errorf("dsmd run %q: status %d, %q; want lines that begin with %q", test.flags, status, stderr, test.want)
		}
	}
}

func checkLastLine(t *testing.T, status int, stderr, start, end string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if last := lines[len(lines)-1]; status != 128+9 || !strings.HasPrefix(last, start) || !strings.HasSuffix(last, end) {
		t.Errorf("status %d, stderr %q; want a last line from %q to %q", status, stderr, start, end)
	}
}

func TestAgain(t *testing.T) {
	for _, test := range []struct {
		line    string
		program int
		want    string
	}{
		{line: "dsmd run -n 2 ./a b", program: 2, want: ": dsmd run -n 2 --restore /d ./a b"},
		{line: "dsmd run -n 2 -- ./a --restore x", program: 3, want: ": dsmd run -n 2 --restore /d -- ./a --restore x"},
		{line: "dsmd run --restore x -n 2 --restore=y -- ./a", program: 1, want: ": dsmd run -n 2 --restore /d -- ./a"},
		{line: "dsmd run ./a it's $HOME *", program: 4, want: `: dsmd run --restore /d ./a 'it'\''s' '$HOME' '*'`},
		{line: "dsmd run ./a \n", program: 2, want: " the same command, and --restore /d"},
		{line: "dsmd run ./a " + strings.Repeat("x", maxAgain), program: 2, want: " the same command, and --restore /d"},
	} {
		argv := strings.Split(test.line, " ")
		if got := again(argv, argv[len(argv)-test.program:], "/d"); got != test.want {
			t.Errorf("%q: %q, want %q", test.line, got, test.want)
		}
	}
	if got, want := shellWord(""), "''"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMoment(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)
	for ago, want := range map[time.Duration]string{time.Hour: "11:00:00", 13 * time.Hour: "2026-11-22 23:00:00"} {
		if got := moment(now.Add(-ago).UTC(), now); got != want {
			t.Errorf("%v ago: %q, want %q", ago, got, want)
		}
	}
}
