package netns

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// sshdConfig is what a fresh installation has, without PAM, which the machines do not set up.
const sshdConfig = `HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
Subsystem sftp internal-sftp
`

// ServeSSH starts an sshd on every machine, and makes root on each of them known to all: keys,
// authorized keys and known hosts. The host and user keys are made for the test.
func (n *Network) ServeSSH(t testing.TB) {
	t.Helper()
	needs(t, "/usr/sbin/sshd", "ssh-keygen")
	dir := t.TempDir()
	user, userPublic := newKey(t, dir, "user")
	var known bytes.Buffer
	for _, m := range n.Machines {
		host, hostPublic := newKey(t, dir, "host-"+m.Name)
		m.WriteFile(t, "/etc/ssh/ssh_host_ed25519_key", host, 0o600)
		known.WriteString(m.Name + "," + m.Address + " " + hostPublic)
	}
	for _, m := range n.Machines {
		m.WriteFile(t, "/etc/ssh/sshd_config", sshdConfig, 0o644)
		m.WriteFile(t, "/root/.ssh/id_ed25519", user, 0o600)
		m.WriteFile(t, "/root/.ssh/authorized_keys", userPublic, 0o600)
		m.WriteFile(t, "/root/.ssh/known_hosts", known.String(), 0o600)
		m.Run(t, "chmod 700 /root/.ssh && mkdir -p /run/sshd && /usr/sbin/sshd")
	}
	for _, m := range n.Machines {
		n.AwaitSSH(t, m)
	}
}

// AwaitSSH waits until a machine's sshd, which was just started, listens.
func (n *Network) AwaitSSH(t testing.TB, m *Machine) {
	t.Helper()
	n.awaitPort(t, m, "22")
}

func newKey(t testing.TB, dir, name string) (private, public string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	return readFile(t, path), readFile(t, path+".pub")
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// awaitPort waits until something listens at a port of a machine.
func (n *Network) awaitPort(t testing.TB, m *Machine, port string) {
	t.Helper()
	for deadline := time.Now().Add(patient); ; time.Sleep(10 * time.Millisecond) {
		out, err := m.Try("exec 3<>/dev/tcp/" + m.Address + "/" + port)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing listens at port %s of %s: %v\n%s", port, m.Name, err, out)
		}
	}
}
