package launch

import (
	"fmt"
	"net/netip"
	"slices"

	"dsmd/internal/certs"
)

// keyValidity is for how long the certificates of a job are good: longer than any job, and they are
// nowhere but in the memory of its daemons.
const keyValidity = certs.NodeValidity

// protect decides how the nodes' connections are protected. The result are flags for all daemons,
// and the files of each node.
//
// Nodes whose connections stay on a machine, or may be plain, know each other by a secret. For
// others an authority and certificates are made. Both serve this job alone; the hosts get them
// through ssh, and daemons as files in memory, which no other user can read.
func (cfg *Config) protect(p *plan, peers []string) (flags []string, keys [][]secretFile, err error) {
	loopbacks := 0
	for _, addr := range peers {
		if OnLoopback(addr) {
			loopbacks++
		}
	}
	switch {
	case loopbacks == len(peers):
		return nil, jobSecret(len(peers)), nil
	case loopbacks > 0:
		return nil, nil, fmt.Errorf("launch: the nodes listen at %v: other machines cannot reach a loopback address; name each host as the others know it, or the nodes' network with --data-network", peers)
	case cfg.Remote.Insecure:
		return []string{"--insecure"}, jobSecret(len(peers)), nil
	}
	keys, err = jobKeys(p.token, len(peers))
	if err != nil {
		return nil, nil, fmt.Errorf("launch: making the certificates of the job: %w", err)
	}
	return nil, keys, nil
}

// jobSecret makes a secret for all nodes.
func jobSecret(nodes int) [][]secretFile {
	return slices.Repeat([][]secretFile{{{Flag: "--secret-file", Content: certs.NewSecret()}}}, nodes)
}

// jobKeys makes an authority for a cluster, and what each node needs. None of it is ever in a file
// here: one would stay if this process was killed.
func jobKeys(cluster string, nodes int) ([][]secretFile, error) {
	authority, err := certs.MakeAuthority(cluster, keyValidity)
	if err != nil {
		return nil, err
	}
	keys := make([][]secretFile, nodes)
	for id := range keys {
		_, cert, key, err := authority.Make(certs.Node{ID: id, Valid: keyValidity})
		if err != nil {
			return nil, err
		}
		keys[id] = []secretFile{{"--tls-ca", authority.Certificate()}, {"--tls-cert", cert}, {"--tls-key", key}}
	}
	return keys, nil
}

// OnLoopback reports whether an address, with a port, can only be reached from its own machine.
func OnLoopback(addr string) bool {
	at, err := netip.ParseAddrPort(addr)
	return err == nil && at.Addr().IsLoopback()
}
