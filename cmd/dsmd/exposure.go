package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"dsmd/internal/certs"
	"dsmd/internal/settings"
	"dsmd/transport"
)

// errExposed is wrapped by the refusal to listen to strangers.
var errExposed = errors.New("this would be open to everybody")

// exposed says that something may not listen at addr, and what to do.
func exposed(what string, addr net.Addr, remedy string) error {
	return fmt.Errorf("%w: %s would be served at %v, beyond this machine, to whoever connects; %s, or say --insecure", errExposed, what, addr, remedy)
}

// onlyHere says whether an address can be reached from this machine alone.
func onlyHere(addr net.Addr) bool {
	host, _, err := net.SplitHostPort(addr.String())
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// secrets are what this node proves to others that it belongs to them with. All are nil on a machine that talks to itself.
type secrets struct {
	tls    *tls.Config
	verify func(transport.NodeID, tls.ConnectionState) error
	gossip [][]byte
}

// loadSecrets reads certificates and keys, and refuses to go on without them if data is listened for beyond this machine.
func loadSecrets(v *settings.Values, data net.Listener, log *zap.Logger) (*secrets, error) {
	s := &secrets{}
	var err error
	if v.TLS() {
		if s.tls, err = certs.Load(v.TLSCA, v.TLSCert, v.TLSKey); err != nil {
			return nil, err
		}
		s.verify = certs.VerifyNode[transport.NodeID](v.Cluster)
		if warning := certs.Warning(s.tls, time.Now()); warning != "" {
			log.Warn(warning)
		}
	}
	if v.GossipKeyFile != "" {
		if s.gossip, err = certs.LoadGossipKeys(v.GossipKeyFile); err != nil {
			return nil, err
		}
	}
	if s.tls == nil && !onlyHere(data.Addr()) && !v.Insecure {
		return nil, exposed("shared memory", data.Addr(), "give certificates (--tls-ca, --tls-cert, --tls-key; dsmd cert makes them)")
	}
	return s, nil
}
