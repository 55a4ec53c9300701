package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"dsmd/internal/certs"
	"dsmd/internal/launch"
	"dsmd/internal/settings"
	"dsmd/transport"
)

// lookAtCertificates is how often a daemon looks whether its certificates were renewed, or end
// soon. A connection makes it look sooner.
const lookAtCertificates = time.Minute

// errExposed is wrapped by the refusal to listen to strangers.
var errExposed = errors.New("this would be open to everybody")

// exposed is the error that something may not listen at addr, with what to do.
func exposed(what string, addr net.Addr, remedy string) error {
	return fmt.Errorf("%w: %s would be served at %v, beyond this machine, to whoever connects; %s, or say --insecure", errExposed, what, addr, remedy)
}

// onlyHere reports whether an address can be reached from this machine alone.
func onlyHere(addr net.Addr) bool { return launch.OnLoopback(addr.String()) }

// secrets are certificates, or a secret that all nodes share. With them this node proves to others
// that it is one of them. With --insecure there may be neither.
type secrets struct {
	tls    *tls.Config   // at the start
	keeper *certs.Keeper // has what is to be used later
	verify func(transport.NodeID, tls.ConnectionState) error
	shared []byte
	gossip [][]byte
}

// latestTLS is what to use for a connection that is made now; nil: connections are plain.
func (s *secrets) latestTLS() func() *tls.Config {
	if s.keeper == nil {
		return nil
	}
	return s.keeper.Latest
}

// watch looks at the certificates until ctx ends. New ones have to be good for this node.
func (s *secrets) watch(ctx context.Context, cluster string, node int) {
	if s.keeper == nil {
		return
	}
	s.keeper.Require(func(config *tls.Config) error { return certs.CheckOwn(config, cluster, node) })
	ticks := time.NewTicker(lookAtCertificates)
	go func() {
		defer ticks.Stop()
		s.keeper.Watch(ctx, ticks.C)
	}()
}

// loadSecrets reads certificates and keys. It refuses to go on without them if the node listens for
// data beyond this machine. On this machine the user's own secret is enough; it is made when it is
// missing.
func loadSecrets(v *settings.Values, data net.Listener, log *zap.Logger) (*secrets, error) {
	s := &secrets{}
	var err error
	if v.TLS() {
		if s.keeper, err = certs.NewKeeper(v.TLSCA, v.TLSCert, v.TLSKey, func(line string) { log.Warn(line) }); err != nil {
			return nil, err
		}
		s.tls = s.keeper.Latest()
		s.verify = certs.VerifyNode[transport.NodeID](v.Cluster)
	}
	if v.GossipKeyFile != "" {
		if s.gossip, err = certs.LoadGossipKeys(v.GossipKeyFile); err != nil {
			return nil, err
		}
	}
	if s.tls == nil && !onlyHere(data.Addr()) && !v.Insecure {
		return nil, exposed("shared memory", data.Addr(), "give certificates (--tls-ca, --tls-cert, --tls-key; dsmd cert makes them)")
	}
	return s, s.loadShared(v, data)
}

// loadShared finds the secret that nodes share, where they need one.
func (s *secrets) loadShared(v *settings.Values, data net.Listener) (err error) {
	here, gossipHere := s.tls == nil && v.Nodes > 1 && onlyHere(data.Addr()), false
	if !v.Static() && len(s.gossip) == 0 {
		bind, err := gossipAddress(v)
		if err != nil {
			return err
		}
		gossipHere = onlyHere(bind)
		if !gossipHere && v.SecretFile == "" && !v.Insecure {
			return exposed("gossip", bind, "give a key (--gossip-key-file; dsmd cert gossip-key makes one)")
		}
	}
	var secret []byte
	switch {
	case v.SecretFile != "":
		secret, err = certs.LoadSecret(v.SecretFile)
	case (here || gossipHere) && !v.Insecure:
		secret, err = certs.OwnSecret()
	}
	if err != nil || secret == nil {
		return err
	}
	if s.tls == nil {
		s.shared = secret
	}
	if len(s.gossip) == 0 {
		s.gossip = [][]byte{certs.GossipKeyOf(secret)}
	}
	return nil
}

// gossipAddress is where gossip is listened for.
func gossipAddress(v *settings.Values) (*net.TCPAddr, error) {
	bind, err := net.ResolveTCPAddr("tcp", v.Gossip)
	if err != nil {
		return nil, fmt.Errorf("--gossip %q: %w", v.Gossip, err)
	}
	return bind, nil
}
