package netns_test

import (
	"os"
	"strings"
	"testing"

	"dsmd/internal/e2e/netns"
)

// TestMachines: machines reach each other, have files of their own, lose a cable, and end.
func TestMachines(t *testing.T) {
	net := netns.Start(t, "ann", "bob")
	ann, bob := net.Machines[0], net.Machines[1]
	if got := strings.TrimSpace(bob.Run(t, "hostname")); got != "bob" {
		t.Errorf("bob is called %q", got)
	}
	const path = "/etc/netns-test"
	bob.WriteFile(t, path, "bob's", 0o640)
	if got := bob.Run(t, "stat -c %a "+path+" && cat "+path); got != "640\nbob's" {
		t.Errorf("the file on bob: %q", got)
	}
	if out, err := ann.Try("cat " + path); err == nil {
		t.Errorf("ann has bob's file: %q", out)
	}
	if _, err := os.Stat(path); err == nil {
		t.Errorf("this machine has bob's file")
	}

	ann.WriteFile(t, net.Shared+"/note", "for all", 0o644)
	if got := bob.Run(t, "cat "+net.Shared+"/note"); got != "for all" {
		t.Errorf("bob reads %q in the shared directory", got)
	}
	if got, err := os.ReadFile(net.Shared + "/note"); string(got) != "for all" {
		t.Errorf("the test reads %q, %v in the shared directory", got, err)
	}

	reach := "exec 3<>/dev/tcp/bob/9"
	if out, err := ann.Try("timeout 5 bash -c '" + reach + "'"); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("a port of bob's where nobody listens: %v, %q; it should refuse", err, out)
	}
	net.Disconnect(t, bob)
	if out, err := ann.Try("timeout 1 bash -c '" + reach + "'"); err == nil || strings.Contains(out, "refused") {
		t.Errorf("bob answers without a cable: %v, %q", err, out)
	}
	net.Connect(t, bob)
	if out, err := ann.Try("timeout 5 bash -c '" + reach + "'"); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("bob, connected again: %v, %q; it should refuse", err, out)
	}
	bob.PowerOff()
	if out, err := bob.Try("true"); err == nil {
		t.Errorf("bob answers after the power failure: %q", out)
	}
	bob.PowerOff() // does nothing
}

func TestSSH(t *testing.T) {
	net := netns.Start(t, "ann", "bob")
	net.ServeSSH(t)
	if got := strings.TrimSpace(net.Machines[0].Run(t, "ssh -o BatchMode=yes bob hostname")); got != "bob" {
		t.Errorf("ssh to bob reaches %q", got)
	}
}
