package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dsmd/internal/launch"
	"dsmd/internal/settings"
)

// TestStacksSaysWhy: where there are no stacks, it says of what, where, and what to do.
func TestStacksSaysWhy(t *testing.T) {
	askWithin(t, 300*time.Millisecond)
	const hanging = launch.SocketPrefix + "stackshang-0"
	fakeDaemon(t, hanging, hangs)
	none := filepath.Join(t.TempDir(), "none")
	program := daemonStatus{Socket: launch.SocketPrefix + "aa-0", programsStatus: programsStatus{Programs: []programStatus{{Program: "solve", Size: 1}}}}
	idle := daemonStatus{Socket: launch.SocketPrefix + "bb-0"}
	for name, test := range map[string]struct {
		list []daemonStatus
		text string
		want []string
	}{
		"nobody":                     {nil, "", []string{"no daemon of yours serves at ", "--socket"}},
		"no daemon at a socket":      {askAll([]string{none}), "", []string{"the daemon at " + none, "it has ended, or never ran, or serves at another socket", "or the default one, " + settings.DefaultSocket()}},
		"a daemon that says nothing": {askAll([]string{hanging}), "", []string{"the daemon at " + hanging, "no answer within 300ms"}},
		"a job that has ended":       {[]daemonStatus{program}, "cc", []string{`no job "cc" runs on this machine: it has ended`, "\n  aa: 1 of 1 ranks here, solve"}},
		"a program without dsm":      {[]daemonStatus{idle}, "", []string{"no program is attached to the daemons of job bb", "does not use package dsm", "SIGQUIT"}},
		"one of two jobs":            {[]daemonStatus{program, idle}, "bb", []string{"no program is attached to the daemons of job bb"}},
	} {
		var warnings strings.Builder
		j, err := stacksOf(test.list, test.text, &warnings)
		if err == nil {
			t.Errorf("%s: it is job %v", name, j)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	var warnings strings.Builder
	j, err := stacksOf(append(askAll([]string{hanging}), program, idle), "", &warnings)
	if err != nil || j.cluster != "aa" || !strings.Contains(warnings.String(), "dsmd: the daemon at "+hanging+": no answer within 300ms") {
		t.Errorf("beside a daemon that says nothing: %v, %v, and it warns %q", j, err, &warnings)
	}
	for socket, want := range map[string]string{
		hanging: "its daemon at " + hanging + " does not answer within 300ms",
		none:    "its daemon at " + none + " has ended just now",
	} {
		r := rankStacks{jobProgram: jobProgram{socket: socket}}
		if err := r.askWithin(askTimeout); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a rank at %s: %v, want %q", socket, err, want)
		}
	}
}
