package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"dsmd/internal/systemtest/netns"
	"dsmd/internal/systemtest/testcluster"
)

// slurmConf is a cluster of three small machines. Processes are tracked by their parents, because
// the machines have no control groups of their own.
const slurmConf = `ClusterName=test
SlurmctldHost=ann
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ReturnToService=2
KillWait=2
NodeName=ann,bob,eve CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
`

// startSlurm starts Slurm's own daemons on three machines.
func startSlurm(t *testing.T) *netns.Network {
	t.Helper()
	for _, program := range []string{"slurmctld", "slurmd", "munged", "srun"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v (Debian's packages slurm-wlm and munge have it)", err)
		}
	}
	net := netns.Start(t, "ann", "bob", "eve")
	for _, m := range net.Machines {
		m.WriteFile(t, "/etc/munge/munge.key", strings.Repeat("k", 1024), 0o400)
		m.WriteFile(t, "/etc/slurm/slurm.conf", slurmConf, 0o644)
		// which does not look for any that it was not told to use
		m.WriteFile(t, "/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n", 0o644)
		m.Run(t, `mkdir -p /run/munge /var/spool/slurmctld /var/spool/slurmd
			chown munge:munge /run/munge /etc/munge/munge.key
			setpriv --reuid munge --regid munge --clear-groups munged`)
	}
	net.Machines[0].Run(t, "slurmctld")
	for _, m := range net.Machines {
		m.Run(t, "slurmd || { tail -20 /var/log/slurmd.log; slurmd -Dvv 2>&1 | tail -20; exit 1; }")
	}
	testcluster.Eventually(t, "Slurm's nodes are idle", func() bool {
		out, _ := net.Machines[0].Try("sinfo -h -o '%T %D'")
		return strings.TrimSpace(out) == "idle 3"
	})
	return net
}

// TestSlurm runs jobs under Slurm's own daemons: srun dsmd run.
func TestSlurm(t *testing.T) {
	dsmd := testcluster.Dsmd(t) // built before the machines start, which then have it
	path, env := member.Elsewhere(t)
	net := startSlurm(t)
	ann := net.Machines[0]
	run := func(then string) *testcluster.Process {
		line := ann.Line("srun", "-N", "3", "--chdir", "/tmp", dsmd, "run", "--meet", net.Shared, "--", path, then)
		return testcluster.Start(t, testcluster.Command{Name: "srun", Path: "/usr/bin/env", Args: line, Env: env})
	}
	idle := func() {
		t.Helper()
		for _, m := range net.Machines {
			testcluster.Eventually(t, "nothing is left on "+m.Name, func() bool {
				out, err := m.Try("pgrep -f 'serve|" + path + "'")
				return err != nil && out == ""
			})
		}
	}
	t.Run("success", func(t *testing.T) {
		job := run("end")
		met(t, job, 3)
		job.Succeed(t)
		idle()
	})
	t.Run("failure", func(t *testing.T) {
		job := run("fail")
		met(t, job, 3)
		if status := job.Wait(t); status != 23 || !strings.Contains(job.Errors(), " exited with status 23: ending the other ranks") {
			t.Errorf("status %d, errors %q", status, job.Errors())
		}
		idle()
	})
	t.Run("cancelled", func(t *testing.T) {
		job := run("wait")
		met(t, job, 3)
		ann.Run(t, "scancel -n dsmd")
		if status := job.Wait(t); status == 0 {
			t.Errorf("status 0 of a job that was cancelled")
		}
		idle()
	})
	t.Run("interrupted", func(t *testing.T) {
		job := run("wait")
		met(t, job, 3)
		// the first one only asks for the state of the tasks
		ann.Run(t, "pkill -INT -x srun; sleep 0.3; pkill -INT -x srun")
		if status := job.Wait(t); status == 0 {
			t.Errorf("status 0 of a job that was interrupted")
		}
		idle()
	})
}
