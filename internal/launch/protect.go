package launch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
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
		if onLoopback(addr) {
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

// jobKeys makes an authority for a cluster, and what each node needs.
func jobKeys(cluster string, nodes int) (_ [][]secretFile, err error) {
	dir, err := os.MkdirTemp("", "dsmd-keys-") // for this user alone
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	authority, err := certs.NewAuthority(dir, cluster, keyValidity, false)
	if err != nil {
		return nil, err
	}
	keys := make([][]secretFile, nodes)
	for id := range keys {
		if keys[id], err = nodeKeys(authority, dir, id); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func nodeKeys(authority *certs.Authority, dir string, id int) ([]secretFile, error) {
	if _, err := authority.Issue(dir, certs.Node{ID: id, Valid: keyValidity}, false); err != nil {
		return nil, err
	}
	cert, key := certs.NodeFiles(id)
	files := []secretFile{{Flag: "--tls-ca"}, {Flag: "--tls-cert"}, {Flag: "--tls-key"}}
	for i, name := range []string{certs.AuthorityFile, cert, key} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		files[i].Content = content
	}
	return files, nil
}

// onLoopback reports whether an address can only be reached from its own machine.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
