package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dsmd/internal/certs"
	"dsmd/internal/launch"
)

// TestCert makes the files of a cluster as a user would, and loads them as a daemon does.
func TestCert(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, args := range [][]string{
		{"cert", "ca", "--out", in("ca"), "--cluster", "blue"},
		{"cert", "node", "--ca", in("ca"), "--out", in("0"), "--id", "0", "--host", "a.example,10.0.0.1", "--host", "::1"},
		{"cert", "node", "--ca", in("ca"), "--out", in("any"), "--days", "3"},
		{"cert", "gossip-key", "--out", in("gossip.key")},
		{"cert", "secret", "--out", in("secret")},
	} {
		status, stdout, stderr := finish(t, args...)
		if status != 0 || stderr != "" {
			t.Fatalf("dsmd %q: status %d, stderr %q", args, status, stderr)
		}
		for _, line := range strings.Split(strings.TrimSpace(stdout), "\n") {
			path, _, _ := strings.Cut(line, " ")
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
				t.Errorf("dsmd %q says %q: %v, %v", args, line, info, err)
			}
		}
	}
	for _, is := range []struct{ dir, cert, key string }{{"0", "node-0.pem", "node-0-key.pem"}, {"any", "node.pem", "node-key.pem"}} {
		config, err := certs.Load(in(is.dir+"/ca.pem"), in(is.dir+"/"+is.cert), in(is.dir+"/"+is.key))
		if err != nil {
			t.Fatal(err)
		}
		if err := certs.CheckOwn(config, "blue", 0); err != nil {
			t.Error(err)
		}
	}
	if keys, err := certs.LoadGossipKeys(in("gossip.key")); err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	if _, err := certs.LoadSecret(in("secret")); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{
		{"cert", "ca", "--out", in("ca-2"), "--cluster", "blue"}, {"cert", "node", "--ca", in("ca-2"), "--out", in("0"), "--id", "0", "--host", "a.example,10.0.0.1,::1", "--force"},
	} {
		status, stdout, stderr := finish(t, args...)
		if status != 0 || stderr != "" {
			t.Fatalf("dsmd %q: status %d, %s", args, status, stderr)
		}
		if args[1] == "node" && !strings.Contains(stdout, "2 authorities, until all nodes have certificates of the new one; then give them "+in("ca-2/ca.pem")+" alone") {
			t.Errorf("nobody is told that the old authority is still trusted:\n%s", stdout)
		}
	}
	_, stdout, _ := finish(t, "cert", "show", in("0/node-0.pem"))
	for _, want := range []string{`node 0 of cluster "blue"`, "a.example, 10.0.0.1, ::1", "364 days left"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not shown:\n%s", want, stdout)
		}
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"cert", "ca", "--out", in("ca"), "--cluster", "blue"}, "say --force to replace it"},
		{[]string{"cert", "gossip-key", "--out", in("gossip.key")}, "say --force to replace it"},
		{[]string{"cert", "secret", "--out", in("secret")}, "say --force to replace it"},
		{[]string{"cert", "node", "--ca", in("nowhere"), "--out", in("1")}, "make an authority with"},
		{[]string{"cert", "show", in("0/node-0-key.pem")}, "only certificates belong there"},
	} {
		if status, _, stderr := finish(t, test.args...); status != 1 || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("dsmd %q: status %d, stderr %q, want one line with %q", test.args, status, stderr, test.want)
		}
	}
}

func TestCertMistakes(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"cert shwo", `unknown command "shwo": did you mean show?`},
		{"cert ca --cluster blue", "--out is missing"},
		{"cert ca --out x", "--cluster is missing"},
		{"cert ca --out x --cluster blü", "printable ASCII without spaces"},
		{"cert ca --out x --cluster " + strings.Repeat("b", 101), "1 to 100 are possible"},
		{"cert ca --out x --cluster blue --days 0", "--days 0: 1 to 36500 are possible"},
		{"cert node --out x", "--ca is missing"},
		{"cert node --out x --ca y --id -1", "--id -1: ids start at 0"},
		{"cert node --out x --ca y --days 36501", "--days 36501"},
		{"cert gossip-key", "--out is missing"},
		{"cert show", "an argument is missing"},
	} {
		status, stdout, stderr := finish(t, strings.Fields(test.args)...)
		if status != launch.StatusUsage || stdout != "" || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("dsmd %s: status %d, stdout %q, stderr %q; want one line with %q", test.args, status, stdout, stderr, test.want)
		}
	}
	for _, args := range [][]string{{"cert"}, {"cert", "ca", "--help"}, {"cert", "node", "--help"}, {"cert", "gossip-key", "--help"}, {"cert", "show", "-h"}} {
		if status, stdout, stderr := finish(t, args...); status != 0 || stderr != "" || !strings.Contains(stdout, "Usage:") {
			t.Errorf("dsmd %q: status %d, stderr %q, stdout:\n%s", args, status, stderr, stdout)
		}
	}
}
