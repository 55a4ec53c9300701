package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"dsmd/internal/systemtest/netns"
)

// systemctl does, where systemd does not run, what docs/operations.md asks systemctl for: it starts
// and stops what the unit says, as the user that the unit says.
const systemctl = `#!/bin/bash
set -e
unit=/etc/systemd/system/dsmd.service
value() { sed -n "s/^$1=//p" $unit; }
as="setpriv --reuid $(value User) --regid $(value Group) --clear-groups --no-new-privs --"
case $1 in
daemon-reload) test -f $unit ;;
enable|start)
	install -d -o "$(value User)" -g "$(value Group)" -m "$(value RuntimeDirectoryMode)" "/run/$(value RuntimeDirectory)"
	cd /
	$as $(value ExecStartPre) >/dev/null
	$as $(value ExecStart) </dev/null >>/var/log/dsmd.log 2>&1 &
	echo $! >/run/dsmd.pid
	;;
stop)
	pid=$(cat /run/dsmd.pid)
	kill "$pid" 2>/dev/null || true # it may have ended by itself
	while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
	;;
*) echo "systemctl $*: not here" >&2; exit 1 ;;
esac
`

// keepConnections is what ann's ssh is told once `dsmd run --hosts` has made its own connections.
// One to each machine does for all further commands, of which there are dozens.
const keepConnections = `Host *
ControlMaster auto
ControlPath ~/.ssh/to-%h
ControlPersist yes
`

// blocks are the commands in a document, one script for each block, with the heading that each
// stands under.
func blocks(t *testing.T, document string) (scripts []block) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	heading := ""
	for _, m := range regexp.MustCompile("(?ms)^## (.*?)$|^```sh\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if m[1] != "" {
			heading = m[1]
			continue
		}
		scripts = append(scripts, block{heading, m[2]})
	}
	return scripts
}

type block struct{ heading, script string }

// buildSquares builds the program of README.md.
func buildSquares(t *testing.T, to string) {
	t.Helper()
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if source == nil {
		t.Fatal("README.md has no program")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, source[1], 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", to, file).CombinedOutput(); err != nil {
		t.Fatalf("building squares: %v\n%s", err, out)
	}
}

// TestOperations types what docs/operations.md says, on three bare machines.
func TestOperations(t *testing.T) {
	t.Parallel()
	long(t)
	once(t)
	checkout, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	net := netns.Start(t, "ann", "bob", "eve")
	net.ServeSSH(t)
	ann := net.Machines[0]
	for _, m := range net.Machines {
		m.Run(t, "rm -f /usr/local/bin/dsmd; rm -rf /etc/dsmd; "+bareShell)
		m.WriteFile(t, "/usr/local/bin/systemctl", systemctl, 0o755)
		defer func() {
			if t.Failed() {
				log, _ := m.Try("cat /var/log/dsmd.log")
				t.Logf("the log of %s:\n%s", m.Name, log)
			}
		}()
	}
	buildSquares(t, filepath.Join(net.Shared, "squares"))
	ann.Run(t, "cp "+net.Shared+"/squares "+checkout)
	all := blocks(t, "../../../docs/operations.md")
	if len(all) < 10 {
		t.Fatalf("only %d blocks of commands in the document", len(all))
	}
	said := map[string]string{}
	const afterHosts = "3. Keys"
	if !slices.ContainsFunc(all, func(b block) bool { return b.heading == afterHosts }) {
		t.Fatalf("no commands under %q", afterHosts)
	}
	for _, b := range all {
		if b.heading == afterHosts {
			ann.WriteFile(t, "/root/.ssh/config", keepConnections, 0o600)
		}
		// What is installed there counts, and not what lies in a $(go env GOPATH)/bin of this
		// machine, which is in the test's own PATH.
		said[b.heading] += ann.Run(t, "cd "+checkout+" && set -e\nPATH=/usr/local/bin:$PATH\n"+b.script)
	}
	for heading, want := range map[string]string{
		"1. Install":                 "dsmd can run here",
		"2. A job without a cluster": "rank 2 sees 998001",
		"6. Run programs":            "rank 2 sees 998001",
		"7. Look after it":           "dsmd_",
		"11. Memory":                 "rank 3 sees 998001",
		"Checkpoints":                "rank 1 went from step 10 to 20",
	} {
		if !strings.Contains(said[heading], want) {
			t.Errorf("under %q nothing says %q:\n%s", heading, want, said[heading])
		}
	}
}
