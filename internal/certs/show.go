package certs

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"io"
	"strings"
	"time"
)

// Show describes the certificates in a file, for people.
func Show(w io.Writer, path string) error {
	found, err := readCertificates(path)
	if err != nil {
		return err
	}
	for _, c := range found {
		if _, err := io.WriteString(w, describe(c, time.Now())); err != nil {
			return err
		}
	}
	return nil
}

func describe(c *x509.Certificate, now time.Time) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	line("name", "%s", Printable(c.Subject.CommonName))
	switch id, err := IdentityOf(c); {
	case err != nil:
		line("is", "no certificate of dsmd's: %s", Printable(err.Error()))
	case c.IsCA:
		line("is", "the authority of cluster %q", id.Cluster)
	default:
		line("is", "%v", id)
	}
	var hosts []string
	for _, name := range c.DNSNames {
		hosts = append(hosts, Printable(name))
	}
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	if len(hosts) > 0 {
		line("hosts", "%s", strings.Join(hosts, ", "))
	}
	line("signed by", "%s", Printable(c.Issuer.CommonName))
	line("valid from", "%s", c.NotBefore.UTC().Format(time.RFC3339))
	until := c.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case now.After(c.NotAfter):
		until += " (that is past)"
	case now.Before(c.NotBefore):
		until += " (not yet valid)"
	default:
		until += fmt.Sprintf(" (%d days left)", int(c.NotAfter.Sub(now).Hours()/24))
	}
	line("valid until", "%s", until)
	line("key", "%v", c.PublicKeyAlgorithm)
	line("serial", "%x", c.SerialNumber)
	line("sha256", "%x", sha256.Sum256(c.Raw))
	return b.String()
}

// Printable replaces what could do things to a terminal, in text that may come from anybody.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
