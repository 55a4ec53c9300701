package tcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"

	"dsmd/transport"
)

// The end of a certificate does not end the connections that were made with it, but no new ones can
// be made. When such a connection is cut, a node and its peer cannot meet again, though both are
// there and nothing is lost. That is a matter for the administrator, and no reason to give up the
// peer. So a peer that is refused for that reason alone is called and waited for, until its
// certificate is renewed (Config.LatestTLS), or until it falls silent or ends. When a cluster
// starts, an ended certificate is a mistake, and final like every other refusal.

const (
	// expiredPause is the time between two calls of a peer that waits for a new certificate, of its
	// own or of this node's; but within Config.GiveUp it is called at least callsInGiveUp times,
	// for each answer counts.
	expiredPause  = time.Second
	callsInGiveUp = 4
	// expiredSaid is the time between two lines about it.
	expiredSaid = time.Minute
	// clockDifference is how far the clocks of a cluster may be apart: the peer may find sooner
	// than this node that its certificate has ended.
	clockDifference = time.Minute
)

// expired is the refusal of a certificate that is good but for its end. Until more is known,
// anybody may have shown it.
type expired struct {
	impostor
	chain []*x509.Certificate // the peer's; nil: it is this node's own that has ended
}

func (e *expired) Unwrap() error { return e.impostor }

// hasOnlyEnded reports whether a certificate was good until its end, which is past.
func hasOnlyEnded(chain []*x509.Certificate, config *tls.Config) bool {
	if len(chain) == 0 || !timeOf(config).After(chain[0].NotAfter) {
		return false
	}
	// The same roots are asked in both directions, and a node's certificate is good for both.
	return verifyChain(chain, config.RootCAs, x509.ExtKeyUsageServerAuth, chain[0].NotAfter) == nil
}

// ownHasEnded reports whether this node's certificate has ended, by this clock or by one that is a
// little ahead.
func (c *credentials) ownHasEnded() bool {
	config := c.latestTLS()
	leaf, err := ownLeaf(config)
	return err == nil && leaf != nil && timeOf(config).Add(clockDifference).After(leaf.NotAfter)
}

// awaitsRenewal reports whether an attempt to connect to a peer has failed only because a
// certificate has ended: the peer's or this node's. Only a peer that has shown a certificate of its
// own can say that this node's has ended.
//
// A peer that shows an old certificate has not proven that it has the key to it. So whoever can
// answer at the peer's address can keep the peer from being given up, as he can by answering for
// its machine; but he gets nothing to read.
func (c *connecting) awaitsRenewal(peer transport.NodeID, err error) bool {
	var e *expired
	switch {
	case !errors.As(err, &e):
		return false
	case e.chain == nil || c.verifyPeer == nil:
		return true
	}
	return c.verifyPeer(peer, tls.ConnectionState{PeerCertificates: e.chain}) == nil
}
