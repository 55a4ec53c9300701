package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/certs"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// TestRotationUnderCuts replaces the authority of four daemons that run, step by step as
// security.md says, while programs compute on them and their connections are cut all the time: each
// is made again with the files of that moment. The results are exact, and in the end the old
// authority makes no node any more.
func TestRotationUnderCuts(t *testing.T) {
	long(t)
	t.Parallel()
	uffdtest.Require(t)
	const nodes = 4
	flags := certificates(t)
	dir := filepath.Dir(flags[slices.Index(flags, "--tls-ca")+1])
	c, proxies := serveCuttable(t, nodes, flags...)
	rotated := make(chan error, 1)
	var stop atomic.Bool
	t.Cleanup(func() { stop.Store(true) })
	for runs := 1; ; runs++ {
		// Other cuts in each run: else a node that the first of them spare waits for a long run.
		disturb := func(over <-chan struct{}) { cutting(proxies, nodes, uint64(runs), over) }
		compute(t, c, nodes, kernels[0].name, kernels[0].size, disturb)
		if runs == 1 { // All nodes have found each other: before that a refusal is final.
			go func() { rotated <- rotate(c, dir, &stop) }()
		}
		select {
		case err := <-rotated:
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d runs were right, with %d cuts", runs, proxies.Cuts())
			return
		default:
		}
	}
}

// rotate replaces the authority of the nodes whose files lie in a directory.
func rotate(c *testcluster.Cluster, dir string, stop *atomic.Bool) error {
	next := filepath.Join(dir, "next")
	authority, err := certs.NewAuthority(next, "cuts", certs.AuthorityValidity, false)
	if err != nil {
		return err
	}
	if _, err := authority.Issue(next, certs.Node{ID: certs.AnyNode}, false); err != nil {
		return err
	}
	old, err := os.ReadFile(filepath.Join(dir, certs.AuthorityFile))
	if err != nil {
		return err
	}
	content := map[string][]byte{}
	cert, key := certs.NodeFiles(certs.AnyNode)
	for _, name := range []string{certs.AuthorityFile, cert, key} {
		if content[name], err = os.ReadFile(filepath.Join(next, name)); err != nil {
			return err
		}
	}
	content["both"] = slices.Concat(old, content[certs.AuthorityFile])
	for i, step := range [][][2]string{
		{{certs.AuthorityFile, "both"}}, {{cert, cert}, {key, key}}, {{certs.AuthorityFile, certs.AuthorityFile}},
	} {
		for _, file := range step { // one after the other, as scp does
			to := filepath.Join(dir, file[0])
			if err := errors.Join(os.WriteFile(to+".new", content[file[1]], 0o600), os.Rename(to+".new", to)); err != nil {
				return err
			}
		}
		for !allUse(c, i+1) {
			if stop.Load() {
				return nil // the test has failed
			}
			time.Sleep(cutEvery)
		}
	}
	return nil
}

// allUse reports whether all daemons have taken up new certificates so many times.
func allUse(c *testcluster.Cluster, times int) bool {
	for _, d := range c.Daemons {
		if strings.Count(d.Errors(), "new certificates are used from now on") < times {
			return false
		}
	}
	return true
}
