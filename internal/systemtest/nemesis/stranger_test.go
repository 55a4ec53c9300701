package nemesis

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"dsmd/internal/certs"
	"dsmd/internal/systemtest/testcluster"
)

// foreigner is the user who is a stranger.
const foreigner = 65534

// stranger has another user try to come in: with dsmd serve of this very version, the cluster's
// name and the addresses of all. He takes the place of a host that is away if there is one, at its
// address; else he comes in the name of one that is there. He has no secret, or one of his own.
// If his daemon is let in, or a daemon or a program of the cluster ends because of him, that is a
// violation (suspect, watch).
type stranger struct{ secret string } // that he knows; "": none or his own

func (stranger) Name() string { return "stranger" }
func (s stranger) strike(c *campaign) (string, func()) {
	if slices.ContainsFunc(c.intruders, func(i *intruder) bool { return i.Running() }) {
		return "", nil
	}
	as, at := c.disguise()
	flags := []string{"--listen", at.Address + ":" + port}
	if at.standing != away {
		flags = []string{"--listen", at.Address + ":7500"} // beside the daemon
	}
	if c.r.IntN(2) == 0 || s.secret != "" {
		flags = append(flags, "--rejoin")
	}
	if !c.listed {
		flags = append(flags, "--gossip", at.Address+":7501")
	}
	env := []string{testcluster.SecretEnv + "=" + s.secret}
	if s.secret == "" && c.r.IntN(2) == 0 {
		env = []string{testcluster.SecretEnv + "=" + strangersSecret(c.t)}
	}
	name := fmt.Sprintf("stranger %d on %s as %s", len(c.intruders), at.Name, as.Name)
	user := strconv.Itoa(foreigner)
	line := []string{"setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--"}
	if s.secret != "" {
		line = nil // who knows the secret is no other user
	}
	line = append(line, c.serve(as, "@stranger", flags...)...)
	p := &intruder{process: startOn(c.t, at.Machine, name, env, line...), at: at}
	c.intruders = append(c.intruders, p)
	c.logs = append(c.logs, p.process)
	return name + " tries to come in", p.kill
}

// intruder is a stranger's daemon.
type intruder struct {
	*process
	at     *host
	caught bool // inside
}

// disguise chooses in whose name a stranger comes, and where he is.
func (c *campaign) disguise() (as, at *host) {
	// A place is free when the others have gone on without the host that had it. Whoever takes its
	// port before then has it look alive.
	if h, ok := pick(c.r, c.returning()); ok && !c.unsettled() {
		return h, h
	}
	as, _ = pick(c.r, c.hosts)
	at, _ = pick(c.r, c.members())
	return as, at
}

// strangersSecret is the path of a secret of the stranger's own.
func strangersSecret(t testing.TB) string {
	return filepath.Join(testcluster.Dir(t), "stranger.secret")
}

// makeStrangersSecret makes it. Machines have the files that are there before them.
func makeStrangersSecret(t testing.TB) {
	t.Helper()
	path := strangersSecret(t)
	if err := errors.Join(certs.WriteSecret(path, true), os.Chown(path, foreigner, foreigner)); err != nil {
		t.Fatal(err)
	}
}

// suspect looks whether a stranger has come in: his daemon serves, or a node talks to it.
func (c *campaign) suspect() {
	for _, i := range c.intruders {
		if said := i.Errors(); !i.caught && (strings.Contains(said, " serving ") || strings.Contains(said, "peer is up")) {
			i.caught = true
			c.violate("the %s has come in: %s", i.name, lastLines(said))
		}
	}
}

// evict ends the strangers on a host, who have its port perhaps.
func (c *campaign) evict(h *host) {
	for _, i := range c.intruders {
		if i.at == h && i.Running() {
			i.kill()
		}
	}
}
