package dsmtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"dsmd/dsm"
)

// LoseNode kills the daemon of this rank's node, and with it the rank. It does not return. It is
// for a Run with the flag "--survive": the others go on, and the test can pass without this rank.
func LoseNode(t *testing.T, c *dsm.Cluster) {
	t.Helper()
	pid, err := daemonOf(c.Node())
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal("dsmtest: ", err)
	}
	select {} // `dsmd run` ends the programs of a node that is lost
}

// daemonOf finds the daemon of a node of this job: like this rank it is a child of `dsmd run`.
func daemonOf(node int) (pid int, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	parent := fmt.Appendf(nil, " %d ", os.Getppid())
	is := fmt.Appendf(nil, "\x00--id\x00%d\x00", node)
	for _, path := range stats {
		// proc_pid_stat(5): PID (NAME) STATE PARENT ... What ends meanwhile is not it.
		stat, _ := os.ReadFile(path)
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if _, rest, _ := bytes.Cut(stat, []byte(") ")); len(rest) > 1 && bytes.HasPrefix(rest[1:], parent) && bytes.Contains(args, is) {
			return strconv.Atoi(filepath.Base(filepath.Dir(path)))
		}
	}
	return 0, fmt.Errorf("no daemon of node %d was found", node)
}
