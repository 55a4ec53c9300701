package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// AnyNode is Identity.Node of a certificate that does not name one.
const AnyNode = -1

// maxNode is the largest node id that a certificate can name: ids have 16 bits, and the last one
// means "none".
const maxNode = 1<<16 - 2

// MaxClusterBytes bounds the name of a cluster, in bytes.
const MaxClusterBytes = 255

const scheme = "dsmd"

// ErrIdentity is wrapped by all errors about a certificate that is good and belongs to somebody
// else than it should.
var ErrIdentity = errors.New("certs: the certificate is another's")

// Identity is what a certificate says of its holder.
type Identity struct {
	Cluster string // 1 to MaxClusterBytes bytes
	Node    int    // 0 to 65534, or AnyNode
}

func (id Identity) check() error {
	switch {
	case id.Cluster == "" || len(id.Cluster) > MaxClusterBytes:
		return fmt.Errorf("certs: a cluster's name has 1 to %d bytes, %q has %d", MaxClusterBytes, id.Cluster, len(id.Cluster))
	case id.Node != AnyNode && (id.Node < 0 || id.Node > maxNode):
		return fmt.Errorf("certs: node id %d; ids are 0 to %d", id.Node, maxNode)
	}
	return nil
}

// String says it in words, for people.
func (id Identity) String() string {
	if id.Node == AnyNode {
		return fmt.Sprintf("any node of cluster %q", id.Cluster)
	}
	return fmt.Sprintf("node %d of cluster %q", id.Node, id.Cluster)
}

// uri is the identity as the certificate holds it. The cluster's name is in the path, where any
// name can be, and not the host, where X.509 allows only what DNS does.
func (id Identity) uri() (*url.URL, error) {
	text := scheme + ":///" + url.PathEscape(id.Cluster) + "/node"
	if id.Node != AnyNode {
		text += "/" + strconv.Itoa(id.Node)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("certs: the name of cluster %q: %w", id.Cluster, err)
	}
	return u, nil
}

// IdentityOf reads the identity of a certificate. One without, or with several, is refused: wraps
// ErrIdentity.
func IdentityOf(cert *x509.Certificate) (Identity, error) {
	var found []Identity
	for _, u := range cert.URIs {
		if u.Scheme != scheme {
			continue
		}
		id, ok := parseIdentity(u)
		if !ok {
			return Identity{}, fmt.Errorf("%w: it has the name %q, and dsmd's look like %s:///CLUSTER/node/3", ErrIdentity, u, scheme)
		}
		found = append(found, id)
	}
	if len(found) != 1 {
		return Identity{}, fmt.Errorf("%w: %q has %d names of the form %s:///CLUSTER/node/3, one is needed; make it with \"dsmd cert node\"",
			ErrIdentity, cert.Subject.CommonName, len(found), scheme)
	}
	return found[0], nil
}

func parseIdentity(u *url.URL) (Identity, bool) {
	parts := strings.Split(u.EscapedPath(), "/")
	if u.Host != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || len(parts) < 3 || len(parts) > 4 || parts[0] != "" || parts[2] != "node" {
		return Identity{}, false
	}
	cluster, err := url.PathUnescape(parts[1])
	if err != nil {
		return Identity{}, false
	}
	id := Identity{Cluster: cluster, Node: AnyNode}
	if len(parts) == 4 {
		if id.Node, err = strconv.Atoi(parts[3]); err != nil || strconv.Itoa(id.Node) != parts[3] || id.Node == AnyNode {
			return Identity{}, false
		}
	}
	return id, id.check() == nil
}

// allows reports whether the holder may be that node of that cluster.
func (id Identity) allows(cluster string, node int) error {
	if id.Cluster != cluster || id.Node != AnyNode && id.Node != node {
		return fmt.Errorf("%w: it is that of %v, not of node %d of cluster %q; make one with \"dsmd cert node --id %d\" by the authority of that cluster",
			ErrIdentity, id, node, cluster, node)
	}
	return nil
}
