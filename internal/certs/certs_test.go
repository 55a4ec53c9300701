package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"dsmd/internal/patience"
)

// authority makes one in a directory of its own.
func authority(t *testing.T, cluster string) *Authority {
	t.Helper()
	a, err := NewAuthority(t.TempDir(), cluster, AuthorityValidity, false)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// issue makes the files of a node and returns their paths.
func issue(t *testing.T, a *Authority, n Node) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	if _, err := a.Issue(dir, n, false); err != nil {
		t.Fatal(err)
	}
	cert, key = NodeFiles(n.ID)
	return filepath.Join(dir, AuthorityFile), filepath.Join(dir, cert), filepath.Join(dir, key)
}

func load(t *testing.T, a *Authority, n Node) *tls.Config {
	t.Helper()
	config, err := Load(issue(t, a, n))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// shake connects two configurations and returns what each side says. A client of TLS 1.3 hears of
// the server's refusal only with the first byte.
func shake(t *testing.T, server, client *tls.Config) (serverState, clientState tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	s, c := net.Pipe()
	deadline := time.Now().Add(patience.Or(20 * time.Second))
	for _, end := range []net.Conn{s, c} {
		if err := end.SetDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		defer end.Close()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn := tls.Server(s, server)
		if serverErr = conn.Handshake(); serverErr == nil {
			_, serverErr = conn.Write([]byte{1})
		}
		serverState = conn.ConnectionState()
		s.Close()
	}()
	client = client.Clone() // as the transport does
	client.InsecureSkipVerify = true
	conn := tls.Client(c, client)
	if clientErr = conn.Handshake(); clientErr == nil {
		_, clientErr = conn.Read(make([]byte, 1))
	}
	clientState = conn.ConnectionState()
	c.Close()
	<-done
	return
}

func TestNodesKnowEachOther(t *testing.T) {
	a := authority(t, "blue/green ä")
	three, any := load(t, a, Node{ID: 3, Hosts: []string{"elsewhere.example", "192.0.2.7"}}), load(t, a, Node{ID: AnyNode})
	serverState, clientState, serverErr, clientErr := shake(t, three, any)
	if serverErr != nil || clientErr != nil {
		t.Fatalf("server: %v, client: %v", serverErr, clientErr)
	}
	if serverState.Version != tls.VersionTLS13 || clientState.Version != tls.VersionTLS13 {
		t.Errorf("TLS version %#x", serverState.Version)
	}
	verify := VerifyNode[uint16]("blue/green ä")
	for node, want := range map[uint16]bool{3: true, 2: false, 0: false, 0xffff: false} {
		if err := verify(node, clientState); (err == nil) != want || err != nil && !errors.Is(err, ErrIdentity) {
			t.Errorf("the certificate of node 3 shown by node %d: %v", node, err)
		}
	}
	for _, node := range []uint16{0, 3, 1023} {
		if err := verify(node, serverState); err != nil {
			t.Errorf("the certificate of any node shown by node %d: %v", node, err)
		}
	}
	for _, state := range []tls.ConnectionState{serverState, clientState, {}} {
		if err := VerifyNode[uint16]("blue")(3, state); !errors.Is(err, ErrIdentity) {
			t.Errorf("another cluster's certificate: %v", err)
		}
	}
	if err := CheckOwn(three, "blue/green ä", 3); err != nil {
		t.Error(err)
	}
	if err := CheckOwn(three, "blue/green ä", 2); !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), "--id 2") {
		t.Errorf("node 2 with the certificate of node 3: %v", err)
	}
}

// TestStrangersAreRefused: whoever is not signed by the authority, shows nothing, or speaks an
// older TLS, is refused by either side.
func TestStrangersAreRefused(t *testing.T) {
	a, other := authority(t, "blue"), authority(t, "blue")
	good, stranger := load(t, a, Node{ID: 0}), load(t, other, Node{ID: 1})
	plain := good.Clone()
	plain.Certificates = nil
	lax := stranger.Clone() // it lets anybody in, and is not let in
	lax.VerifyConnection, lax.ClientAuth = nil, tls.RequireAnyClientCert
	old := good.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	expired := good.Clone()
	expired.Certificates = []tls.Certificate{expiredPair(t, a)}
	for name, is := range map[string]*tls.Config{
		"another authority's": stranger, "another authority's, lax": lax, "no certificate": plain, "TLS 1.2": old, "expired": expired,
	} {
		if _, _, serverErr, clientErr := shake(t, good, is); serverErr == nil {
			t.Errorf("as client, %s: the server let it in (client: %v)", name, clientErr)
		}
		if _, _, serverErr, clientErr := shake(t, is, good); clientErr == nil {
			t.Errorf("as server, %s: the client trusts it (server: %v)", name, serverErr)
		}
	}
	if _, _, serverErr, clientErr := shake(t, good, good); serverErr != nil || clientErr != nil {
		t.Errorf("the good one is refused too: %v, %v", serverErr, clientErr)
	}
}

func expiredPair(t *testing.T, a *Authority) tls.Certificate {
	t.Helper()
	_, cert, key := issue(t, a, Node{ID: 0, Valid: time.Nanosecond})
	pair, err := loadPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// TestAuthorityIsNoNode: the authority's own certificate does not make a node of who has its key
// file by mistake.
func TestAuthorityIsNoNode(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewAuthority(dir, "blue", AuthorityValidity, false); err != nil {
		t.Fatal(err)
	}
	ca, key := filepath.Join(dir, AuthorityFile), filepath.Join(dir, AuthorityKeyFile)
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	// crypto/x509 alone accepts a root that is its own leaf.
	as := load(t, a, Node{ID: 0})
	pair, err := loadPair(ca, key)
	if err != nil {
		t.Fatal(err)
	}
	as.Certificates = []tls.Certificate{pair}
	good := load(t, a, Node{ID: 1})
	if _, _, serverErr, _ := shake(t, good, as); serverErr == nil {
		t.Error("a server lets the authority in")
	}
	if _, _, _, clientErr := shake(t, as, good); clientErr == nil {
		t.Error("a client trusts the authority")
	}
	if config, err := Load(ca, ca, key); err == nil {
		t.Errorf("an authority's certificate is taken for a node's: %v", config.Certificates[0].Leaf.Subject)
	}
	_, cert, _ := issue(t, authority(t, "red"), Node{ID: 0})
	if _, err := OpenAuthority(filepath.Dir(cert)); err == nil {
		t.Error("a node's directory is taken for an authority's")
	}
}

func TestLoadRefuses(t *testing.T) {
	a, other := authority(t, "blue"), authority(t, "blue")
	ca, cert, key := issue(t, a, Node{ID: 1})
	otherCA, otherCert, otherKey := issue(t, other, Node{ID: 1})
	_, oldCert, oldKey := issue(t, a, Node{ID: 2, Valid: time.Nanosecond})
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "open.pem")
	if data, err := os.ReadFile(key); err != nil || os.WriteFile(open, data, 0o644) != nil || os.Chmod(open, 0o644) != nil {
		t.Fatal(err)
	}
	for name, is := range map[string]struct{ ca, cert, key, says string }{
		"no such file":               {ca, cert, "nowhere", "no such file"},
		"no authority":               {cert, cert, key, "which is no authority"},
		"a key for an authority":     {key, cert, key, "only certificates belong there"},
		"another's key":              {ca, cert, otherKey, "not a certificate and its key"},
		"another's authority":        {otherCA, cert, key, "was not signed by"},
		"another's certificate":      {ca, otherCert, otherKey, "was not signed by"},
		"a certificate that ended":   {ca, oldCert, oldKey, "has ended on"},
		"a key that others can read": {ca, cert, open, "chmod 600"},
		"garbage for an authority":   {garbage, cert, key, "garbage"},
		"garbage for a certificate":  {ca, garbage, key, "not a certificate and its key"},
		"a directory for a key":      {ca, cert, filepath.Dir(key), "not a regular file"},
	} {
		if _, err := Load(is.ca, is.cert, is.key); err == nil || !strings.Contains(err.Error(), is.says) {
			t.Errorf("%s: %v, want %q", name, err, is.says)
		}
	}
}

// TestModes: which keys are refused because others can get at them.
func TestModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := WriteSecret(path, false); err != nil {
		t.Fatal(err)
	}
	group := os.Geteuid() == 0 // a file of root's may be its group's to read
	for mode, want := range map[fs.FileMode]bool{0o600: true, 0o400: true, 0o640: group, 0o440: group, 0o660: false, 0o644: false, 0o602: false, 0o601: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadGossipKeys(path); (err == nil) != want {
			t.Errorf("mode %#o: %v", mode, err)
		}
	}
	if os.Geteuid() != 0 {
		return // only root can give files away
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, 65534, -1)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadGossipKeys(path); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("a key of another user: %v", err)
	}
}

// TestNothingIsOverwritten: what exists stays as it is, and so do all files that belong to it.
func TestNothingIsOverwritten(t *testing.T) {
	dir := t.TempDir()
	a, err := NewAuthority(dir, "blue", AuthorityValidity, false)
	if err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, dir)
	if _, err := NewAuthority(dir, "blue", AuthorityValidity, false); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "--force") {
		t.Errorf("a second authority in the same place: %v", err)
	}
	if _, err := authority(t, "blue").Issue(dir, Node{ID: 4}, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a node of another authority in the same place: %v", err)
	}
	if got := snapshot(t, dir); got != before {
		t.Errorf("the files were changed:\n%s\n%s", before, got)
	}
	for range 2 { // nodes may share the place of their authority
		if _, err := a.Issue(dir, Node{ID: 4}, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Issue(dir, Node{ID: 5}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Issue(dir, Node{ID: 5}, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second certificate of node 5: %v", err)
	}
	if _, err := NewAuthority(dir, "blue", AuthorityValidity, true); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	if len(entries) != 6 {
		t.Errorf("%d files, want 6: %v", len(entries), entries)
	}
}

func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Name()+"\n"+string(data))
	}
	return strings.Join(all, "\n")
}

func TestValidity(t *testing.T) {
	a := authority(t, "blue")
	config := load(t, a, Node{ID: 1, Valid: 2 * AuthorityValidity})
	if end := config.Certificates[0].Leaf.NotAfter; end.After(a.cert.NotAfter) {
		t.Errorf("the node's certificate ends on %v, its authority's on %v", end, a.cert.NotAfter)
	}
	config = load(t, a, Node{ID: 1})
	now := time.Now()
	for after, want := range map[time.Duration]string{0: "", NodeValidity - renewBefore - time.Hour: "", NodeValidity - 49*time.Hour: "in 2 days", NodeValidity + time.Hour: "has ended on"} {
		if got := Warning(config, now.Add(after)); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("after %v: %q, want %q", after, got, want)
		}
	}
	for _, valid := range []time.Duration{0, -1, MaxValidity + 1} {
		if _, err := NewAuthority(t.TempDir(), "blue", valid, false); err == nil {
			t.Errorf("an authority that is valid for %v", valid)
		}
	}
}

func TestHosts(t *testing.T) {
	a := authority(t, "blue")
	c, err := a.Issue(t.TempDir(), Node{ID: 0, Hosts: []string{"node-0.dsmd", "10.0.0.1", "fd00::1"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"node-0.dsmd", "10.0.0.1", "fd00::1"} {
		if err := c.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	for _, host := range []string{"", "a b", "host:7400", "http://x", "a,b", "ä", strings.Repeat("x", 254)} {
		if _, err := a.Issue(t.TempDir(), Node{ID: 0, Hosts: []string{host}}, false); err == nil {
			t.Errorf("host %q is taken", host)
		}
	}
}

// TestIdentities: any name of a cluster gets through a certificate unchanged, and no other text is
// taken for one.
func TestIdentities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "name")
		id := Identity{Cluster: name, Node: rapid.IntRange(AnyNode, maxNode+2).Draw(t, "node")}
		if id.check() != nil {
			return
		}
		u, err := id.uri()
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := parseIdentity(u); !ok || got != id {
			t.Errorf("%v became %v, %v by way of %v", id, got, ok, u)
		}
	})
	for _, id := range []Identity{{"", 0}, {strings.Repeat("x", 256), 0}, {"blue", -2}, {"blue", 65535}} {
		if id.check() == nil {
			t.Errorf("%v is an identity", id)
		}
	}
}

// TestShow: everything that matters is shown, and nothing that could do things to a terminal.
func TestShow(t *testing.T) {
	a := authority(t, "blue\x1b[31m")
	_, cert, key := issue(t, a, Node{ID: 7, Hosts: []string{"node-7.dsmd"}})
	var out bytes.Buffer
	if err := Show(&out, cert); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`node 7 of cluster "blue\x1b[31m"`, "node-7.dsmd", "364 days left", "ECDSA"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("an escape sequence gets through: %q", out.String())
	}
	if err := Show(&out, key); err == nil || !strings.Contains(err.Error(), "only certificates") {
		t.Errorf("a key is shown: %v", err)
	}
}

func TestGossipKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "gossip.key")
	if err := WriteSecret(path, false); err != nil {
		t.Fatal(err)
	}
	first, err := LoadGossipKeys(path)
	if err != nil || len(first) != 1 || len(first[0]) != SecretBytes {
		t.Fatalf("%d keys, %v", len(first), err)
	}
	if err := WriteSecret(path, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second key in the same place: %v", err)
	}
	if err := WriteSecret(path, true); err != nil {
		t.Fatal(err)
	}
	if second, err := LoadGossipKeys(path); err != nil || bytes.Equal(first[0], second[0]) {
		t.Errorf("the key is the same as before: %v", err)
	}
	one := "AAAAAAAAAAAAAAAAAAAAAA==\n" // 16 bytes
	for text, want := range map[string]int{
		one + "\n " + one: 2, strings.Repeat(one, maxGossipKeys): maxGossipKeys,
		"": 0, "\n\n": 0, one + "not base64": 0, "AAAA\n": 0, strings.Repeat(one, maxGossipKeys+1): 0,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := LoadGossipKeys(path)
		if len(keys) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d keys, %v", text, len(keys), err)
		}
	}
}

// TestForeignCertificates: certificates that somebody else's tools have made with the authority's
// key are nobody's.
func TestForeignCertificates(t *testing.T) {
	for name, c := range map[string]*x509.Certificate{
		"no name":   {},
		"two names": {URIs: parsed(t, Identity{"blue", 1}, Identity{"blue", 2})},
	} {
		if _, err := IdentityOf(c); !errors.Is(err, ErrIdentity) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
