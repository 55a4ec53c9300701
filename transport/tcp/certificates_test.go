package tcp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"testing"
	"time"

	"dsmd/transport"
)

// Authority signs the certificates of a test's nodes.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority of its own.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
	return a
}

// sign completes a template and signs it, with its own key if parent is nil.
func (a *Authority) sign(template, parent *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	signer := a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// Node is the configuration of a node with a certificate of this authority.
func (a *Authority) Node(id transport.NodeID) *tls.Config {
	a.t.Helper()
	return a.configure(&x509.Certificate{
		Subject: pkix.Name{CommonName: nodeName(id)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) configure(template *x509.Certificate) *tls.Config {
	a.t.Helper()
	cert, key := a.sign(template, a.cert)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}},
		RootCAs:      pool, ClientCAs: pool,
	}
}

func nodeName(id transport.NodeID) string { return fmt.Sprintf("node-%d", id) }

// VerifyName is a Config.VerifyPeer that wants the certificate to be for the node.
func VerifyName(id transport.NodeID, state tls.ConnectionState) error {
	if name := state.PeerCertificates[0].Subject.CommonName; name != nodeName(id) {
		return fmt.Errorf("it is for %q", name)
	}
	return nil
}
