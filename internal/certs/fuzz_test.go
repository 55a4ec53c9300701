package certs

import (
	"crypto/x509"
	"net/url"
	"testing"
)

func parsed(t testing.TB, ids ...Identity) []*url.URL {
	t.Helper()
	var all []*url.URL
	for _, id := range ids {
		u, err := id.uri()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	return all
}

// FuzzIdentity: a name in a certificate is an identity only if it is exactly how that identity is
// written.
func FuzzIdentity(f *testing.F) {
	for _, s := range []string{
		"dsmd:///blue/node/3", "dsmd:///blue/node", "dsmd://blue/node/3", "dsmd:///blue/node/03", "dsmd:///blue/node/-1", "dsmd:///a%2Fb/node/1",
		"dsmd:///blue/node/65535", "dsmd:blue/node/3", "dsmd:///%zz/node", "dsmd:///blue/node/3?x", "spiffe:///blue/node/3",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		id, err := IdentityOf(&x509.Certificate{URIs: []*url.URL{u}})
		if err != nil {
			return
		}
		again, err := id.uri()
		if err != nil || id.check() != nil {
			t.Fatalf("%q is %v, which is no identity: %v", text, id, err)
		}
		if got, ok := parseIdentity(again); !ok || got != id {
			t.Errorf("%q is %v, and written anew %v", text, id, got)
		}
	})
}
