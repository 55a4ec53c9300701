package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestManyNodes runs as many nodes on this machine as people try, on however few cores.
// TestFewDescriptors has eight, always.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	long(t)
	once(t)
	const nodes = 32
	job := testcluster.Job{Nodes: nodes, Program: member, Args: []string{"end"}}.Run(t)
	met(t, job, nodes)
	job.Succeed(t)
}

// TestFewDescriptors: where a job needs more file descriptors than it may have, the error says how
// many it may have and what to do; and a low soft limit is no limit.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	path, env := member.Elsewhere(t)
	start := func(limit string) *testcluster.Process {
		return testcluster.Start(t, testcluster.Command{Name: "the launcher", Path: "/bin/bash", Env: env, Args: []string{
			"-c", limit + `; exec "$0" run -n 8 -- "$1" end`, testcluster.Dsmd(t), path}})
	}
	refused := start("ulimit -n 40")
	if status := refused.Wait(t); status != 71 || !strings.Contains(refused.Errors(), "this process may have 40") || !strings.Contains(refused.Errors(), "ulimit -Hn") {
		t.Errorf("status %d, errors %q", status, refused.Errors())
	}
	raised := start("ulimit -Sn 40")
	met(t, raised, 8)
	raised.Succeed(t)
}
