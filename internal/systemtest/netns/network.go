package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"dsmd/internal/require"
)

// maxMachines is the size of the network's address range.
const maxMachines = 254

// Network is some machines and the switch that connects them.
type Network struct {
	Machines []*Machine
	// a directory that all machines and the test have in common, at the same path, as if by NFS
	Shared string
	bridge *Machine
}

// Start starts machines of the given names, connected to each other and to nothing else. They are
// switched off when the test ends.
func Start(t testing.TB, names ...string) *Network {
	t.Helper()
	needs(t, "ip", "nsenter", "mount", "pivot_root")
	if len(names) > maxMachines {
		t.Fatalf("netns: %d machines; %d are possible", len(names), maxMachines)
	}
	n := &Network{Shared: t.TempDir()}
	t.Cleanup(n.powerOff)
	if err := n.start(names); err != nil {
		if errors.Is(err, syscall.EPERM) {
			require.Missing(t, "netns", "%v", err)
		}
		t.Fatal(err)
	}
	return n
}

func (n *Network) start(names []string) (err error) {
	if n.bridge, err = boot("the switch", syscall.CLONE_NEWNET, bootSwitch); err != nil {
		return err
	}
	hosts := "127.0.0.1 localhost\n"
	for i, name := range names {
		hosts += fmt.Sprintf("%s %s\n", address(i), name)
	}
	const own = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	for i, name := range names {
		m, err := boot(name, own, bootMachine, name, hosts, n.Shared)
		if err != nil {
			return err
		}
		m.Address = address(i)
		n.Machines = append(n.Machines, m)
		if err := n.plugIn(i); err != nil {
			return err
		}
	}
	return nil
}

func address(i int) string { return "10.77.0." + strconv.Itoa(i+1) }

// plugIn connects a machine to the switch.
func (n *Network) plugIn(i int) error {
	m := n.Machines[i]
	for _, c := range []*exec.Cmd{
		n.ip("link", "add", port(i), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(m.init.Process.Pid)),
		n.ip("link", "set", port(i), "master", "switch", "up"),
		m.Command("ip", "address", "add", m.Address+"/24", "dev", "eth0"),
		m.Command("ip", "link", "set", "eth0", "up"),
	} {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("netns: connecting %s: %w: %s", m.Name, err, out)
		}
	}
	return nil
}

// port is the switch's end of a machine's cable.
func port(i int) string { return "port" + strconv.Itoa(i) }

// ip is a command of ip(8) in the switch's network namespace.
func (n *Network) ip(args ...string) *exec.Cmd { return n.onSwitch("ip", args...) }

// onSwitch is a command in the switch's network namespace.
func (n *Network) onSwitch(program string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(n.bridge.init.Process.Pid), "--net", "--", program}, args...)...)
}

// Disconnect pulls a machine's cable: what is sent to it or by it is lost, and its connections hear
// nothing of it.
func (n *Network) Disconnect(t testing.TB, m *Machine) { t.Helper(); n.setPort(t, m, "down") }

// Connect plugs it in again.
func (n *Network) Connect(t testing.TB, m *Machine) { t.Helper(); n.setPort(t, m, "up") }

func (n *Network) setPort(t testing.TB, m *Machine, state string) {
	t.Helper()
	if out, err := n.ip("link", "set", port(slices.Index(n.Machines, m)), state).CombinedOutput(); err != nil {
		t.Fatalf("setting the port of %s %s: %v\n%s", m.Name, state, err, out)
	}
}

// powerOff ends all machines, also of a network that did not come up.
func (n *Network) powerOff() {
	for _, m := range n.Machines {
		m.PowerOff()
	}
	if n.bridge != nil {
		n.bridge.PowerOff()
	}
}

// needs skips the test if this machine lacks root or a program.
func needs(t testing.TB, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		require.Missing(t, "netns", "making network namespaces needs root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			require.Missing(t, "netns", "%v", err)
		}
	}
}
