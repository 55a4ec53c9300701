package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// File names in the directory of an authority, and in that of a node, which has a copy of the
// first.
const (
	AuthorityFile    = "ca.pem"
	AuthorityKeyFile = "ca-key.pem"
)

// Validity of certificates unless something else is asked for.
const (
	AuthorityValidity = 10 * 365 * 24 * time.Hour
	NodeValidity      = 365 * 24 * time.Hour
	// MaxValidity keeps dates within what certificates can say.
	MaxValidity = 100 * 365 * 24 * time.Hour
)

// skew is how far apart the clocks of a cluster may be: certificates are valid from that long
// before they are made.
const skew = time.Hour

// Authority signs the certificates of one cluster.
type Authority struct {
	cluster string
	cert    *x509.Certificate
	certPEM []byte
	key     *ecdsa.PrivateKey
}

// MakeAuthority makes the authority of a cluster, which is valid from now on for that long, and in
// this process's memory only.
func MakeAuthority(cluster string, valid time.Duration) (*Authority, error) {
	if err := (Identity{cluster, AnyNode}).check(); err != nil {
		return nil, err
	}
	uri, err := Identity{cluster, AnyNode}.uri()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName("dsmd authority of " + cluster)},
		URIs:                  []*url.URL{uri},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // what it signs signs nothing
	}
	key, cert, err := create(template, valid, nil)
	if err != nil {
		return nil, err
	}
	return &Authority{cluster, cert, encodeCert(cert.Raw), key}, nil
}

// NewAuthority is MakeAuthority that writes it to AuthorityFile and AuthorityKeyFile in dir, which
// it makes if need be. Files that exist stay and give an error that wraps fs.ErrExist, unless
// force.
func NewAuthority(dir, cluster string, valid time.Duration, force bool) (*Authority, error) {
	a, err := MakeAuthority(cluster, valid)
	if err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(a.key)
	if err != nil {
		return nil, err
	}
	if err := writeFiles(dir, force, file{AuthorityKeyFile, keyPEM}, file{AuthorityFile, a.certPEM}); err != nil {
		return nil, err
	}
	return OpenAuthority(dir)
}

// Certificate is the authority's own, as PEM.
func (a *Authority) Certificate() []byte { return slices.Clone(a.certPEM) }

// OpenAuthority reads what NewAuthority has written to dir.
func OpenAuthority(dir string) (*Authority, error) {
	pair, err := loadPair(filepath.Join(dir, AuthorityFile), filepath.Join(dir, AuthorityKeyFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w; make an authority with \"dsmd cert ca --out %s\"", err, dir)
	}
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	id, err := IdentityOf(pair.Leaf)
	switch {
	case !pair.Leaf.IsCA || !ok:
		return nil, fmt.Errorf("certs: %s is no authority that \"dsmd cert ca\" made", filepath.Join(dir, AuthorityFile))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, AuthorityFile), err)
	}
	if err := inDate(filepath.Join(dir, AuthorityFile), pair.Leaf, time.Now()); err != nil {
		return nil, err
	}
	return &Authority{id.Cluster, pair.Leaf, encodeCert(pair.Leaf.Raw), key}, nil
}

// Node is what a node's certificate is to say.
type Node struct {
	ID    int           // 0 to 65534, or AnyNode
	Hosts []string      // names and addresses for tools that check them; dsmd does not
	Valid time.Duration // from now; 0: NodeValidity. It is cut where the authority's own ends
}

// NodeFiles are the names of the certificate and the key of a node.
func NodeFiles(id int) (cert, key string) {
	if id == AnyNode {
		return "node.pem", "node-key.pem"
	}
	return fmt.Sprintf("node-%d.pem", id), fmt.Sprintf("node-%d-key.pem", id)
}

// Make makes a certificate for a node, and its key, and writes neither. Both are PEM.
func (a *Authority) Make(n Node) (cert *x509.Certificate, certPEM, keyPEM []byte, err error) {
	id := Identity{a.cluster, n.ID}
	if err := id.check(); err != nil {
		return nil, nil, nil, err
	}
	uri, err := id.uri()
	if err != nil {
		return nil, nil, nil, err
	}
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: commonName(fmt.Sprintf("dsmd node of %s", a.cluster))},
		URIs:     []*url.URL{uri},
		KeyUsage: x509.KeyUsageDigitalSignature,
		// of two nodes, either may dial
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if n.ID != AnyNode {
		template.Subject.CommonName = commonName(fmt.Sprintf("dsmd node %d of %s", n.ID, a.cluster))
	}
	if err := addHosts(template, n.Hosts); err != nil {
		return nil, nil, nil, err
	}
	if n.Valid == 0 {
		n.Valid = NodeValidity
	}
	key, cert, err := create(template, n.Valid, a)
	if err != nil {
		return nil, nil, nil, err
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, nil, err
	}
	return cert, encodeCert(cert.Raw), keyPEM, nil
}

// Issue is Make that writes certificate and key (NodeFiles), and a copy of the authority's
// certificate, to dir, which it makes if need be. Files that exist stay and give an error that
// wraps fs.ErrExist, unless force, or the copy has the authority already, alone or with others.
// With force Issue adds the authority to the others: while one replaces another, nodes trust both.
// It drops authorities that have ended, or are of another cluster.
func (a *Authority) Issue(dir string, n Node, force bool) (*x509.Certificate, error) {
	cert, certPEM, keyPEM, err := a.Make(n)
	if err != nil {
		return nil, err
	}
	certFile, keyFile := NodeFiles(n.ID)
	if err := writeFiles(dir, force, file{AuthorityFile, a.beside(filepath.Join(dir, AuthorityFile), time.Now())}, file{keyFile, keyPEM}, file{certFile, certPEM}); err != nil {
		return nil, err
	}
	return cert, nil
}

// beside is what a file of authorities must have: what it has, if this one is among them, else this
// one and then the others that are of use.
func (a *Authority) beside(path string, now time.Time) []byte {
	found, err := readCertificates(path)
	if err != nil {
		return a.certPEM
	}
	bundle := slices.Clone(a.certPEM)
	for _, c := range found {
		if c.Equal(a.cert) {
			if content, err := readFile(path); err == nil {
				return content
			}
		}
		id, err := IdentityOf(c)
		if c.IsCA && inDate(path, c, now) == nil && (err != nil || id.Cluster == a.cluster) {
			bundle = append(bundle, encodeCert(c.Raw)...)
		}
	}
	return bundle
}

// CountAuthorities is how many authorities a file has.
func CountAuthorities(path string) (int, error) {
	found, err := readCertificates(path)
	return len(found), err
}

func addHosts(template *x509.Certificate, hosts []string) error {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		if h == "" || len(h) > 253 || strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/:@,"`, r) }) {
			return fmt.Errorf("certs: host %q is neither a name nor an address; write it without a port, and names outside ASCII in their xn-- form", h)
		}
		template.DNSNames = append(template.DNSNames, h)
	}
	return nil
}

// create makes a key and a certificate for it, signed by an authority, or by itself if there is
// none.
func create(template *x509.Certificate, valid time.Duration, by *Authority) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	if valid <= 0 || valid > MaxValidity {
		return nil, nil, fmt.Errorf("certs: a certificate that is valid for %v; it can be from 1ns to %v", valid, MaxValidity)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("certs: make a key: %w", err)
	}
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-skew), now.Add(valid)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
		if template.NotAfter.After(parent.NotAfter) {
			template.NotAfter = parent.NotAfter
		}
		if template.NotBefore.Before(parent.NotBefore) {
			template.NotBefore = parent.NotBefore
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("certs: make a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return key, cert, err
}

// commonName cuts a name to the 64 characters that X.509 allows. It is for people; nothing looks at
// it.
func commonName(s string) string {
	runes := []rune(strings.ToValidUTF8(s, "?"))
	return string(slices.Clip(runes[:min(len(runes), 64)]))
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("certs: encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
