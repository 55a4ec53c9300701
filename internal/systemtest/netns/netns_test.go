package netns_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/internal/systemtest/netns"
)

// TestMachines: machines reach each other, have files of their own, lose a cable, and end.
func TestMachines(t *testing.T) {
	t.Parallel()
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

	if !reaches(t, ann, bob, patient()) {
		t.Error("ann does not reach bob")
	}
	net.Disconnect(t, bob)
	if reaches(t, ann, bob, briefly) {
		t.Error("bob answers without a cable")
	}
	net.Connect(t, bob)
	if !reaches(t, ann, bob, patient()) {
		t.Error("ann does not reach bob, who is connected again")
	}
	if out, err := ann.Try("sleep 1000 & echo begun"); err != nil || out != "begun\n" {
		t.Errorf("a script that leaves something running: %v, %q", err, out)
	}
	bob.PowerOff()
	if out, err := bob.Try("true"); err == nil {
		t.Errorf("bob answers after the power failure: %q", out)
	}
	bob.PowerOff() // does nothing
}

func TestSSH(t *testing.T) {
	t.Parallel()
	net := netns.Start(t, "ann", "bob")
	net.ServeSSH(t)
	if got := strings.TrimSpace(net.Machines[0].Run(t, "ssh -o BatchMode=yes bob hostname")); got != "bob" {
		t.Errorf("ssh to bob reaches %q", got)
	}
}

// A machine that can be reached answers at once, unless this one is very busy; one that cannot has
// this long to do it nonetheless.
const briefly = time.Second

func patient() time.Duration { return patience.Or(20 * time.Second) }

// reaches reports whether a connection to a port where nobody listens is refused in time, for which
// packets have to go both ways.
func reaches(t *testing.T, from, to *netns.Machine, in time.Duration) bool {
	t.Helper()
	out, err := from.Try(fmt.Sprintf("timeout %.0f bash -c 'exec 3<>/dev/tcp/%s/9'", in.Seconds(), to.Name))
	return err != nil && strings.Contains(out, "refused")
}

// TestWays: a way between two machines is severed, loses and is slow, while the others are as
// before.
func TestWays(t *testing.T) {
	t.Parallel()
	net := netns.Start(t, "ann", "bob", "eve")
	ann, bob, eve := net.Machines[0], net.Machines[1], net.Machines[2]
	filter := net.Filter(t)
	for _, way := range [][2]*netns.Machine{{ann, bob}, {bob, ann}} {
		filter.Sever(t, way[0], way[1])
		if reaches(t, ann, bob, briefly) || reaches(t, bob, ann, briefly) {
			t.Errorf("%s and %s reach each other though one of the ways is severed", ann.Name, bob.Name)
		}
		if !reaches(t, eve, ann, patient()) || !reaches(t, bob, eve, patient()) {
			t.Errorf("%s does not reach the others though its ways are whole", eve.Name)
		}
		filter.Restore(t, way[0], way[1])
		if !reaches(t, ann, bob, patient()) {
			t.Error("the way was restored, and nothing passes")
		}
	}
	if came := hears(t, bob, ann, patient()); came < datagrams {
		t.Errorf("%d of %d datagrams came by a way that is whole", came, datagrams)
	}
	filter.Lose(t, ann, bob)
	if came := hears(t, bob, ann, briefly); came >= datagrams {
		t.Error("a way that loses has lost nothing")
	}
	filter.Restore(t, ann, bob)
	net.Slow(t, bob, 100)
	if came := hears(t, bob, ann, briefly); came >= datagrams {
		t.Errorf("all of %d datagrams came by a way that has room for a few of them", datagrams)
	}
	net.Fast(t, bob)
	if came := hears(t, bob, ann, patient()); came < datagrams {
		t.Errorf("%d of %d datagrams came by a way that is whole again", came, datagrams)
	}
}

// datagrams is how many hears sends. The chance that a way which loses lets them all pass is 1 in
// 10^19.
const datagrams = 200

// hears is how many frames come to a machine in time when another sends it datagrams, of 1000
// bytes, as fast as it can.
func hears(t *testing.T, to, from *netns.Machine, in time.Duration) (frames int) {
	t.Helper()
	count := func() (n int) {
		if _, err := fmt.Sscan(to.Run(t, "cat /sys/class/net/eth0/statistics/rx_packets"), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	// That nobody listens comes back as the error of a later write, which then has sent nothing.
	from.Run(t, fmt.Sprintf("send() { printf %%01000d 0 >&3; }; exec 3>/dev/udp/%s/9; for i in {1..%d}; do send || send || send; done 2>/dev/null", to.Name, datagrams))
	for late := time.Now().Add(in); frames < datagrams && time.Now().Before(late); {
		frames = count() - before
	}
	return frames
}
