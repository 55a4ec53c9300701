package tcp

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/transport"
)

// renewable is a node whose certificate can be renewed, and whose clock is the test's.
type renewable struct {
	latest atomic.Pointer[tls.Config]
	ahead  atomic.Int64 // how far its clock is
	said   chan string  // its log
	refuse atomic.Int64 // how many callers it has refused
	seen   []string     // what was read of its log
	h      *recorder    // what its transport has reported
	t      *Transport   //
	id     transport.NodeID
}

func (r *renewable) now() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }

// renew gives a node a certificate of an authority that is valid until then.
func (r *renewable) renew(a *Authority, end time.Time) *tls.Config {
	config := a.configure(&x509.Certificate{
		Subject: pkix.Name{CommonName: nodeName(r.id)}, KeyUsage: x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	config.Time = r.now
	r.latest.Store(config)
	return config
}

func (r *renewable) log(line string) {
	if strings.Contains(line, "refused a caller") {
		r.refuse.Add(1)
	}
	select {
	case r.said <- line:
	default: // nobody wants so many
	}
}

// heard reports whether the node has logged a line with all of the words.
func (r *renewable) heard(words ...string) bool {
	for {
		select {
		case line := <-r.said:
			r.seen = append(r.seen, line)
			continue
		default:
		}
		break
	}
	for _, line := range r.seen {
		found := true
		for _, w := range words {
			found = found && strings.Contains(line, w)
		}
		if found {
			return true
		}
	}
	return false
}

// renewablePair is two connected nodes whose certificates end when it is said.
func renewablePair(t *testing.T, a *Authority, ends [2]time.Time, giveUp time.Duration) (nodes [2]*renewable) {
	t.Helper()
	var configs [2]Config
	for i := range nodes {
		r := &renewable{said: make(chan string, 1000), h: newRecorder(), id: transport.NodeID(i)}
		nodes[i] = r
		configs[i] = Config{PageBytes: 64, TLS: r.renew(a, ends[i]), LatestTLS: r.latest.Load, VerifyPeer: VerifyName, GiveUp: giveUp, Log: r.log}
	}
	for i, tr := range pair(t, configs) {
		nodes[i].t = tr
	}
	result := make(chan error, 1)
	go func() { result <- nodes[0].t.Connect(t.Context()) }()
	if err := errors.Join(nodes[1].t.Connect(t.Context()), <-result); err != nil {
		t.Fatal(err)
	}
	pollBoth(t, nodes, func() bool { return nodes[0].h.up[1] == 1 && nodes[1].h.up[0] == 1 })
	return nodes
}

// pollBoth lets both nodes do what there is to be done, until done.
func pollBoth(t *testing.T, nodes [2]*renewable, done func() bool) {
	t.Helper()
	const slice = 20                            // ms; done may depend on what no descriptor tells
	deadline := time.Now().Add(2 * testTimeout) // so many attempts as attemptsBeyond take long
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("what was waited for did not come; the nodes said\n%s\n%s", strings.Join(nodes[0].seen, "\n"), strings.Join(nodes[1].seen, "\n"))
		}
		var fds []unix.PollFd
		for _, n := range nodes {
			if _, err := n.t.Poll(n.h, 64); err != nil {
				t.Fatal(err)
			}
			n.t.Flush()
			if !n.t.Arm() {
				fds = append(fds, unix.PollFd{Fd: int32(n.t.WaitFD()), Events: unix.POLLIN})
			}
		}
		if len(fds) == len(nodes) {
			if _, err := unix.Poll(fds, slice); err != nil && err != unix.EINTR {
				t.Fatal(err)
			}
		}
	}
}

// attemptsBeyond is how many attempts to connect again take longer than these nodes have patience
// with one that is silent: half as long again.
const attemptsBeyond = callsInGiveUp * 3 / 2

// TestCertificateThatHasEnded: a connection that is cut when a certificate has ended ends nothing.
// Both nodes say which certificate it is and what to do, and are connected again when it is
// renewed; nothing that was sent is lost.
func TestCertificateThatHasEnded(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string][2]bool{"of the one that is called": {true, false}, "of the one that calls": {false, true}, "of both": {true, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := NewAuthority(t, "authority")
			soon, late := time.Now().Add(30*time.Minute), time.Now().Add(59*time.Minute)
			var until [2]time.Time
			for i, ended := range ends {
				if until[i] = late; ended {
					until[i] = soon
				}
			}
			nodes := renewablePair(t, a, until, 4*MinGiveUp)
			for _, n := range nodes {
				n.ahead.Store(int64(45 * time.Minute))
			}
			nodes[1].t.Break(0)
			const text = "sent while no connection can be made"
			pollBoth(t, nodes, func() bool { return nodes[1].t.peers[0].state != peerUp })
			if err := nodes[1].t.Send(0, []byte(text), nil); err != nil {
				t.Fatal(err)
			}
			down := func() error { return errors.Join(nodes[0].h.down[1], nodes[1].h.down[0]) }
			pollBoth(t, nodes, func() bool { return nodes[0].refuse.Load() >= attemptsBeyond || down() != nil })
			if err := down(); err != nil {
				t.Fatalf("a certificate that has ended ends the cluster: %v", err)
			}
			for i, n := range nodes {
				if !n.heard("is waited for, and nothing is lost", "has ended", "dsmd cert node --force", nodeName(transport.NodeID(whose(ends, i)))) {
					t.Errorf("node %d does not say what is wrong:\n%s", i, strings.Join(n.seen, "\n"))
				}
			}
			for i, n := range nodes {
				if ends[i] {
					n.renew(a, late)
				}
			}
			pollBoth(t, nodes, func() bool { return nodes[0].h.bytes == len(text) || down() != nil })
			if err := down(); err != nil {
				t.Errorf("after the renewal: %v", err)
			}
		})
	}
}

// whose certificate a node speaks of: of two that have ended it sees the other's first.
func whose(ends [2]bool, node int) int {
	if ends[1-node] {
		return 1 - node
	}
	return node
}

// TestEndedCertificateOfAnother: an old certificate is no reason to wait for somebody who could not
// have been the peer with it.
func TestEndedCertificateOfAnother(t *testing.T) {
	t.Parallel()
	ours, other := NewAuthority(t, "authority"), NewAuthority(t, "authority")
	for name, made := range map[string]struct {
		by *Authority
		id transport.NodeID
	}{"of another authority": {other, 0}, "of another node": {ours, 7}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			soon, late := time.Now().Add(30*time.Minute), time.Now().Add(59*time.Minute)
			nodes := renewablePair(t, ours, [2]time.Time{late, late}, MinGiveUp)
			impostor := &renewable{id: made.id}
			nodes[0].latest.Store(impostor.renew(made.by, soon))
			nodes[1].ahead.Store(int64(45 * time.Minute))
			nodes[1].t.Break(0)
			pollBoth(t, nodes, func() bool { return nodes[1].h.down[0] != nil })
			if nodes[1].heard("is waited for") {
				t.Errorf("it is waited for:\n%s", strings.Join(nodes[1].seen, "\n"))
			}
		})
	}
}
