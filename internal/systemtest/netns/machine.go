package netns

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/patience"
)

// patient bounds every wait of this package. It is far beyond what anything takes.
var patient = patience.Or(2 * time.Minute)

// Machine is a machine of a network. Its methods may be called from any goroutine, those with t
// from that of the test.
type Machine struct {
	Name    string // its host name, by which the others find it
	Address string // on the network, without the number of bits
	init    *exec.Cmd
	alive   io.Closer // the init's standard input: it ends with it
}

// bootMachine runs as the machine's first process, in namespaces of its own, with the host name,
// /etc/hosts and the shared directory as arguments. It makes the file system, says that the machine
// is up, and waits for the end of its input.
const bootMachine = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mount -t proc proc /mnt/root/proc
mount -t sysfs sysfs /mnt/root/sys
mount --rbind /dev /mnt/root/dev
mount -t tmpfs tmpfs /mnt/root/run
mkdir -p "/mnt/root$3"
mount --bind "$3" "/mnt/root$3"
hostname "$1"
cd /mnt/root
pivot_root . mnt
exec chroot . /bin/bash -c '
	umount -l /mnt
	echo "$1" >/etc/hostname
	printf "%s" "$2" >/etc/hosts
	ip link set lo up
	echo up
	while read -r line; do :; done
' init "$@"`

// bootSwitch is the same for the switch.
const bootSwitch = `set -e
ip link add switch type bridge
ip link set switch up
echo up
while read -r line; do :; done`

// boot starts an init and waits until it says that it is up.
func boot(name string, flags uintptr, script string, args ...string) (*Machine, error) {
	m := &Machine{Name: name}
	m.init = exec.Command("/bin/bash", append([]string{"-c", script, "init"}, args...)...)
	m.init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	m.init.Stderr = &said
	stdin, err := m.init.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := m.init.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := m.init.Start(); err != nil {
		return nil, fmt.Errorf("netns: starting %s: %w", name, err)
	}
	m.alive = stdin
	late := time.AfterFunc(patient, func() { _ = m.init.Process.Kill() })
	defer late.Stop()
	up := make([]byte, len("up\n"))
	if _, err := io.ReadFull(stdout, up); err != nil {
		m.PowerOff()
		return nil, fmt.Errorf("netns: %s does not come up: %w: %s", name, err, said.String())
	}
	return m, nil
}

// PowerOff ends the machine as a power failure does: all of its processes at once, without a word
// to anybody. It returns when they are gone. It does nothing if the machine is off.
func (m *Machine) PowerOff() {
	_ = m.init.Process.Kill()
	_ = m.init.Wait()
	m.alive.Close()
}

// Line is the command line, for this machine, of a command on the machine. Whoever signals it has
// to signal its process group: the command is a child of the line's process.
func (m *Machine) Line(name string, args ...string) []string {
	return append([]string{"nsenter", "--target", strconv.Itoa(m.init.Process.Pid), "--all", "--root", "--wd", "--", name}, args...)
}

// Command prepares a command on the machine.
func (m *Machine) Command(name string, args ...string) *exec.Cmd {
	line := m.Line(name, args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Try runs a shell script on the machine, and returns what it prints, standard error included.
func (m *Machine) Try(script string) (string, error) {
	var out bytes.Buffer
	cmd := m.Command("/bin/bash", "-c", script)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // for what the script leaves running, with its output
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("netns: on %s: %w", m.Name, err)
	}
	late := time.AfterFunc(patient, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return out.String(), fmt.Errorf("netns: on %s: %w", m.Name, err)
	}
	return out.String(), nil
}

// Run is Try for a script that has to succeed.
func (m *Machine) Run(t testing.TB, script string) string {
	t.Helper()
	out, err := m.Try(script)
	if err != nil {
		t.Fatalf("%v, running\n%s\nit printed\n%s", err, script, out)
	}
	return out
}

// WriteFile writes a file on the machine, and makes its directory if need be.
func (m *Machine) WriteFile(t testing.TB, path, content string, mode os.FileMode) {
	t.Helper()
	cmd := m.Command("/bin/bash", "-c", `mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"`, "write", path, fmt.Sprintf("%o", mode))
	cmd.Stdin = strings.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("writing %s on %s: %v\n%s", path, m.Name, err, out)
	}
}
