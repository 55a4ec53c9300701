package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"time"
)

// renewBefore is how long before its end a certificate's end is worth a warning.
const renewBefore = 30 * 24 * time.Hour

// Load makes a TLS configuration of a node's files: caFile has the certificates of the authorities
// whose nodes are let in (usually one), certFile the node's own, keyFile its key. The configuration
// serves both directions: TLS 1.3 alone, both sides show a certificate, and both check the other's
// against the authorities. Who the peer is within the cluster, VerifyNode checks. A client must not
// look for the name that it has dialled in the certificate, because peers are known by cluster and
// node: the transport sets InsecureSkipVerify for it, and VerifyConnection checks all that
// crypto/tls checks then no more.
//
// Everything that could fail later for the sake of the files fails here: files that do not belong
// together, that are out of date, or whose key other users can get at. The errors say what to do.
func Load(caFile, certFile, keyFile string) (*tls.Config, error) {
	return loadAt(caFile, certFile, keyFile, time.Now)
}

// loadAt is Load with a clock.
func loadAt(caFile, certFile, keyFile string, now func() time.Time) (*tls.Config, error) {
	authorities, err := loadAuthorities(caFile, now())
	if err != nil {
		return nil, err
	}
	pair, err := loadPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	if _, err := IdentityOf(pair.Leaf); err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	if pair.Leaf.IsCA {
		return nil, fmt.Errorf("certs: %s is the certificate of an authority; a node needs one of its own, by \"dsmd cert node\"", certFile)
	}
	if err := inDate(certFile, pair.Leaf, now()); err != nil {
		return nil, err
	}
	intermediates, err := parseChain(pair.Certificate[1:])
	if err != nil {
		return nil, fmt.Errorf("certs: %s: %w", certFile, err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := verifyChain(pair.Leaf, intermediates, authorities, usage, now()); err != nil {
			return nil, fmt.Errorf("certs: %s was not signed by %s for a node: %w; use the files that one \"dsmd cert node\" wrote together", certFile, caFile, err)
		}
	}
	return configuration(pair, authorities, now), nil
}

func configuration(pair tls.Certificate, authorities *x509.CertPool, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		RootCAs:      authorities,
		ClientCAs:    authorities,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		Time:         now,
		// A resumed session would outlive the certificate it began with, and connections are few.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyConnection(&state, authorities, now())
		},
	}
}

// verifyConnection checks a peer's certificate, in either direction.
func verifyConnection(state *tls.ConnectionState, authorities *x509.CertPool, now time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("certs: the peer shows no certificate")
	}
	if state.PeerCertificates[0].IsCA {
		return errors.New("certs: the peer shows the certificate of an authority as its own; its key belongs on no node")
	}
	// A node's certificate is good for both directions; either use alone would do here, and Load
	// wants both.
	if err := verifyChain(state.PeerCertificates[0], state.PeerCertificates[1:], authorities, x509.ExtKeyUsageServerAuth, now); err != nil {
		return fmt.Errorf("certs: the peer's certificate: %w", err)
	}
	return nil
}

func verifyChain(leaf *x509.Certificate, rest []*x509.Certificate, authorities *x509.CertPool, usage x509.ExtKeyUsage, now time.Time) error {
	intermediates := x509.NewCertPool()
	for _, c := range rest {
		intermediates.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: authorities, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: now})
	return err
}

// VerifyNode returns what a transport calls with the node that a peer says it is, after the
// connection has been set up by a configuration of Load: nil if the peer's certificate is one of
// that cluster, and, if it names a node, of that one. Errors wrap ErrIdentity. ID is the
// transport's type of node ids.
func VerifyNode[ID ~uint16](cluster string) func(ID, tls.ConnectionState) error {
	return func(node ID, state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return fmt.Errorf("%w: node %d shows none", ErrIdentity, node)
		}
		id, err := IdentityOf(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		return id.allows(cluster, int(node))
	}
}

// CheckOwn reports whether the certificate of a configuration of Load is good for that node of that
// cluster, so that a wrong one is noticed here and not by the peers. Errors wrap ErrIdentity.
func CheckOwn(config *tls.Config, cluster string, node int) error {
	id, err := IdentityOf(config.Certificates[0].Leaf)
	if err != nil {
		return err
	}
	return id.allows(cluster, node)
}

// Warning is what an administrator should do soon about the certificate of a configuration of Load:
// "" if nothing.
func Warning(config *tls.Config, now time.Time) string {
	leaf := config.Certificates[0].Leaf
	left := leaf.NotAfter.Sub(now)
	const remedy = "renew it with \"dsmd cert node --force\" and put certificate and key in the place of the old ones: this daemon takes them up by itself"
	end := leaf.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case left > renewBefore:
		return ""
	case left < 0:
		return fmt.Sprintf("the certificate of this node has ended on %s, and a connection that breaks cannot be made again: %s", end, remedy)
	}
	return fmt.Sprintf("the certificate of this node ends on %s, in %.0f days; then a connection that breaks cannot be made again: %s", end, math.Floor(left.Hours()/24), remedy)
}

// loadPair reads a certificate and its key.
func loadPair(certFile, keyFile string) (tls.Certificate, error) {
	certPEM, err := readFile(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyPEM, err := readSecret(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certs: %s and %s are not a certificate and its key: %w", certFile, keyFile, err)
	}
	return pair, nil
}

// loadAuthorities reads the certificates that sign those of nodes. One that has ended signs nothing
// any more, and is in nobody's way if there is another.
func loadAuthorities(path string, now time.Time) (*x509.CertPool, error) {
	found, err := readCertificates(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	var ended error
	for _, c := range found {
		if !c.IsCA {
			return nil, fmt.Errorf("certs: %s has the certificate of %q, which is no authority; give the file %s that \"dsmd cert ca\" wrote", path, c.Subject.CommonName, AuthorityFile)
		}
		if err := inDate(path, c, now); err != nil {
			ended = err
			continue
		}
		pool.AddCert(c)
	}
	if pool.Equal(x509.NewCertPool()) {
		return nil, ended
	}
	return pool, nil
}

// readCertificates reads a file of certificates, at least one.
func readCertificates(path string) ([]*x509.Certificate, error) {
	rest, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var found []*x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("certs: %s has a %s, and only certificates belong there", path, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certs: %s: %w", path, err)
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("certs: %s has no certificate in PEM form", path)
	}
	return found, nil
}

func parseChain(raw [][]byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for _, der := range raw {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		chain = append(chain, c)
	}
	return chain, nil
}

// inDate tells a certificate that is valid now from one that is not any more, or not yet.
func inDate(path string, c *x509.Certificate, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("certs: the certificate of %q in %s has ended on %s; make a new one with \"dsmd cert\" and --force",
			c.Subject.CommonName, path, c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("certs: the certificate of %q in %s is valid from %s on, and it is %s; check this machine's clock",
			c.Subject.CommonName, path, c.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}
