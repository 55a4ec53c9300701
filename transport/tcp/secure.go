package tcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/transport"
)

const (
	// cipherInBytes is how much one receive call takes from a socket under TLS. What that decrypts
	// to, and what is left of a record from before, fits into the space that a receive buffer has
	// at least.
	cipherInBytes = 64 << 10
	// cipherOutBytes is how much is encrypted before the socket is asked to take it.
	cipherOutBytes = 64 << 10
	// recordBytes is the most that one record of TLS carries.
	recordBytes = 16 << 10
	// maxCipherOut bounds the encrypted bytes that wait for a socket: the last record may go beyond
	// cipherOutBytes, and TLS may have something to say of itself, such as the answer to a change
	// of keys. A peer that makes it say more without reading any of it is cut off.
	maxCipherOut = cipherOutBytes + 2*recordBytes
	// partingTimeout and partingBytes bound what is read from a caller whose handshake has failed.
	partingTimeout = time.Second
	partingBytes   = 16 << 10
)

// tlsAlert is "handshake failure" on the wire.
var tlsAlert = []byte{21, 3, 3, 0, 2, 2, 40}

// errSpeaksTLS is what a node without TLS says of one that has it.
const errSpeaksTLS = impostor("it speaks TLS, and this node does not: give both nodes certificates, or neither")

// speaksTLS reports whether that is how an alert or the greeting of TLS begins.
func speaksTLS(b []byte) bool { return len(b) >= 2 && (b[0] == 21 || b[0] == 22) && b[1] == 3 }

// errWouldBlock is what crypto/tls is told when the socket has nothing. It is a temporary
// net.Error, and after one of those crypto/tls keeps the record that has come in part, and can be
// called again (readRecordOrCCS in its conn.go).
var errWouldBlock net.Error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "tcp: the socket has nothing now" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

var errCipherOut = errors.New("tcp: the peer makes TLS say more than it reads")

// secure is a connection under TLS. During the handshake it is used by one goroutine that waits;
// afterwards by the reactor, which never does.
type secure struct {
	tls *tls.Conn
	own cipherEnd
	// ahead: the handshake may have read more than its own, which was not decrypted yet.
	ahead bool
	// plain is where what is to be encrypted is gathered, so that small frames share a record.
	plain [recordBytes]byte
}

// cipherEnd is the net.Conn below crypto/tls. As long as it has a connection it is that. Then it is
// two buffers.
type cipherEnd struct {
	net.Conn        // nil: the reactor has the descriptor
	in, out  []byte // what has come and was not decrypted; what was encrypted and not sent
	inSpace  []byte // where in lies
	ended    error  // why nothing more will come; nil: it may
}

// Read implements net.Conn.
func (c *cipherEnd) Read(b []byte) (int, error) {
	switch {
	case c.Conn != nil:
		return c.Conn.Read(b)
	case len(c.in) > 0:
		n := copy(b, c.in)
		c.in = c.in[n:]
		return n, nil
	case c.ended != nil:
		return 0, c.ended
	}
	return 0, errWouldBlock
}

// Write implements net.Conn. It never waits for the socket.
func (c *cipherEnd) Write(b []byte) (int, error) {
	switch {
	case c.Conn != nil:
		return c.Conn.Write(b)
	case len(c.out)+len(b) > maxCipherOut:
		return 0, errCipherOut
	}
	c.out = append(c.out, b...)
	return len(b), nil
}

// credentials are what a node shows of itself, and how it finds out who others are.
type credentials struct {
	mine       greeting
	secret     []byte             // nil: none
	latestTLS  func() *tls.Config // nil: connections are plain
	verifyPeer func(transport.NodeID, tls.ConnectionState) error
}

// secured does the handshake of TLS, as the side that has called or as the other, if there is TLS.
// It sets the deadline for this handshake and the one that follows.
func (c *credentials) secured(ctx context.Context, conn net.Conn, caller bool) (net.Conn, *secure, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, nil, err
	}
	if c.latestTLS == nil {
		return conn, nil, nil
	}
	s := &secure{own: cipherEnd{Conn: conn}}
	if caller {
		s.tls = tls.Client(&s.own, clientTLS(c.latestTLS()))
	} else {
		s.tls = tls.Server(&s.own, serverTLS(c.latestTLS()))
	}
	if err := s.tls.HandshakeContext(ctx); err != nil {
		if !caller {
			partFrom(conn, err)
		}
		return nil, nil, c.explainTLS(err)
	}
	return s.tls, s, nil
}

// partFrom lets a caller learn why its handshake has failed. TLS has sent an alert, unless the
// caller does not speak TLS. But closing a socket with unread input resets the connection, and a
// reset can take the alert from the caller. So partFrom reads what the caller still sends, for a
// while.
func partFrom(conn net.Conn, err error) {
	var record tls.RecordHeaderError
	if errors.As(err, &record) {
		_, _ = conn.Write(tlsAlert) // It has a deadline, and who does not listen need not be told.
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = conn.SetDeadline(time.Now().Add(partingTimeout))
		_, _ = io.Copy(io.Discard, io.LimitReader(conn, partingBytes))
	}
}

// take makes the connection the reactor's.
func (s *secure) take() { s.own.Conn = nil }

// receive takes what has arrived on a socket and decrypts all of it into space. It returns 0 and
// EAGAIN when that is nothing.
func (s *secure) receive(fd int, space []byte) (int, error) {
	if s.own.inSpace == nil {
		s.own.inSpace = make([]byte, cipherInBytes)
	}
	n, errno := netio.Recv(fd, s.own.inSpace)
	switch {
	case errno != 0:
		return 0, errno
	case n == 0:
		s.own.ended = io.EOF
	}
	s.own.in = s.own.inSpace[:n]
	return s.decrypt(space)
}

// decrypt reads what can be decrypted now. Preconditions: len(space) is enough for all that is
// here, cipherInBytes and a record.
func (s *secure) decrypt(space []byte) (int, error) {
	n := 0
	for n < len(space) {
		more, err := s.tls.Read(space[n:])
		n += more
		switch {
		case err == nil:
		case n > 0: // An error that lasts comes again.
			return n, nil
		case errors.Is(err, errWouldBlock):
			return 0, unix.EAGAIN
		case errors.Is(err, io.EOF):
			return 0, errEnded
		default:
			return 0, fmt.Errorf("TLS: %w", err)
		}
	}
	return n, nil
}

// encrypt takes from a queue what is to be sent next, while there is room for it, and returns how
// much that was.
func (s *secure) encrypt(q *sendQueue) (int, error) {
	taken := 0
	for len(s.own.out) < cipherOutBytes && !q.empty() {
		n := q.copyNext(s.plain[:])
		if _, err := s.tls.Write(s.plain[:n]); err != nil {
			return taken, fmt.Errorf("TLS: %w", err)
		}
		q.advance(n)
		taken += n
	}
	return taken, nil
}

// send gives a socket what was encrypted, as far as it takes it.
func (s *secure) send(fd int, v *netio.Vector) unix.Errno {
	v.Reset()
	v.Add(s.own.out)
	n, errno := v.Send(fd)
	s.own.out = s.own.out[:copy(s.own.out, s.own.out[n:])]
	return errno
}

// idle reports whether nothing waits for the socket.
func (s *secure) idle() bool { return s == nil || len(s.own.out) == 0 }

// peerState is what TLS knows of the other side.
func (s *secure) peerState() tls.ConnectionState { return s.tls.ConnectionState() }

// common is what both sides of a handshake take from the caller's configuration.
func common(config *tls.Config) *tls.Config {
	shared := config.Clone()
	shared.MinVersion, shared.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	// A record for each handful of frames, at once: whoever waits for a page waits for its last
	// byte.
	shared.DynamicRecordSizingDisabled = true
	// Each connection proves anew who the peer is, and nothing of TLS comes after the handshake.
	shared.SessionTicketsDisabled, shared.ClientSessionCache = true, nil
	shared.NextProtos = nil
	return shared
}

// serverTLS is the configuration of the side that is called.
func serverTLS(config *tls.Config) *tls.Config {
	server := common(config)
	server.ClientAuth = tls.RequireAndVerifyClientCert
	return server
}

// clientTLS is the configuration of the side that calls.
func clientTLS(config *tls.Config) *tls.Config {
	client := common(config)
	// Nodes are not known by names: which node a certificate is for is VerifyPeer's business. So
	// crypto/tls, which insists on a name, does not verify, and verifyServer does, as crypto/tls
	// would but for the name.
	client.InsecureSkipVerify = true
	if client.GetClientCertificate == nil {
		// Left to itself, crypto/tls shows no certificate to one who names other authorities, and
		// nobody learns which was wrong.
		client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &client.Certificates[0], nil
		}
	}
	others := client.VerifyConnection
	client.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verifyServer(state, client.RootCAs, timeOf(client)); err != nil {
			return err
		}
		if others != nil {
			return others(state)
		}
		return nil
	}
	return client
}

// timeOf is what time it is for a configuration.
func timeOf(config *tls.Config) time.Time {
	if config.Time != nil {
		return config.Time()
	}
	return time.Now()
}

// checkTLS says what is missing in a configuration of TLS.
func checkTLS(c *tls.Config) error {
	switch {
	case c == nil:
		return nil
	case c.RootCAs == nil || c.ClientCAs == nil:
		return errors.New("tcp: TLS needs the cluster's certificate authority in both RootCAs and ClientCAs; without, every authority that the system trusts would do")
	case len(c.Certificates) == 0 && (c.GetCertificate == nil || c.GetClientCertificate == nil):
		return errors.New("tcp: TLS needs this node's certificate, in Certificates or from GetCertificate and GetClientCertificate")
	case c.InsecureSkipVerify:
		return errors.New("tcp: TLS with InsecureSkipVerify would let anybody in")
	}
	return nil
}

// verifyServer verifies the certificate of the side that was called.
func verifyServer(state tls.ConnectionState, roots *x509.CertPool, now time.Time) error {
	if err := verifyChain(state.PeerCertificates, roots, x509.ExtKeyUsageServerAuth, now); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}

// verifyChain returns why a certificate was not signed for a use, or is not valid at a time; nil:
// it is good.
func verifyChain(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, at time.Time) error {
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, cert := range chain[1:] {
		options.Intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(options)
	return err
}

// impostor is why one side does not believe that the other is the node it should be. When a cluster
// starts, that is a mistake, and final. Later it says nothing about the peer that was there before:
// somebody else may have answered in its place.
type impostor string

func (i impostor) Error() string { return string(i) }

// Is makes an impostor match ErrRefused: Connect does not try it again.
func (i impostor) Is(target error) bool { return target == ErrRefused }

// explainTLS says what a failed handshake means and what to look at.
func (c *credentials) explainTLS(err error) error {
	var unverified *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &unverified) && hasOnlyEnded(unverified.UnverifiedCertificates, c.latestTLS()):
		return &expired{
			impostor: impostor(fmt.Sprintf("its certificate (%s) has ended: renew it on that node with \"dsmd cert node --force\"; "+
				"the daemon there takes it up by itself, and is then connected again", nameCertificate(unverified.UnverifiedCertificates))),
			chain: unverified.UnverifiedCertificates,
		}
	case errors.As(err, &unverified):
		return impostor(fmt.Sprintf("its certificate (%s) is not accepted: %v; this node accepts what its own cluster's authority has signed for peers: "+
			"give both nodes certificates of the same authority", nameCertificate(unverified.UnverifiedCertificates), unverified.Err))
	case isAlert(err) && c.ownHasEnded():
		return &expired{impostor: impostor(fmt.Sprintf("it does not accept this node's certificate (%s), which has ended: %v; "+
			"renew it with \"dsmd cert node --force\": this daemon takes it up by itself, and is then connected again", c.nameOwn(), err))}
	case isAlert(err):
		return impostor(fmt.Sprintf("it does not accept this node's TLS: %v; check this node's certificate file (%s) "+
			"against the authority that the other node was given, and both clocks", err, c.nameOwn()))
	case errors.As(err, &record):
		return impostor("it does not speak TLS, and this node does: give both nodes certificates, or neither")
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return fmt.Errorf("it has ended the handshake of TLS; does it have a certificate? %w", err)
	}
	return fmt.Errorf("TLS: %w", err)
}

// isAlert reports whether an error is an alert from the other side.
func isAlert(err error) bool {
	var remote *net.OpError // crypto/tls reports alerts so
	return errors.As(err, &remote) && remote.Op == "remote error"
}

// nameOwn describes this node's certificate.
func (c *credentials) nameOwn() string {
	leaf, err := ownLeaf(c.latestTLS())
	switch {
	case err != nil:
		return err.Error()
	case leaf == nil:
		return "one that is chosen for each connection"
	}
	return nameCertificate([]*x509.Certificate{leaf})
}

// ownLeaf is this node's certificate in a configuration, nil if it is chosen for each connection.
func ownLeaf(config *tls.Config) (*x509.Certificate, error) {
	if len(config.Certificates) == 0 {
		return nil, nil
	}
	own := &config.Certificates[0]
	if own.Leaf != nil {
		return own.Leaf, nil
	}
	return x509.ParseCertificate(own.Certificate[0])
}

func nameCertificate(chain []*x509.Certificate) string {
	if len(chain) == 0 {
		return "none"
	}
	const day = "2006-01-02"
	return fmt.Sprintf("for %q, signed by %q, valid from %s to %s", chain[0].Subject, chain[0].Issuer,
		chain[0].NotBefore.Format(day), chain[0].NotAfter.Format(day))
}

// verify returns why a peer may not be the node that it says it is, or "".
func (c *credentials) verify(node transport.NodeID, s *secure) string {
	if s == nil || c.verifyPeer == nil {
		return ""
	}
	if err := c.verifyPeer(node, s.peerState()); err != nil {
		return fmt.Sprintf("its certificate (%s) is not one of node %d: %v", nameCertificate(s.peerState().PeerCertificates), node, err)
	}
	return ""
}
