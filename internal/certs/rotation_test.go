package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authorities are the certificates in a file.
func authorities(t *testing.T, path string) (serials []string) {
	t.Helper()
	found, err := readCertificates(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range found {
		serials = append(serials, c.SerialNumber.String())
	}
	return serials
}

// TestIssueKeepsOtherAuthorities: while an authority is replaced nodes trust two, and renewing a
// node's certificate must not take one of them away.
func TestIssueKeepsOtherAuthorities(t *testing.T) {
	dir := t.TempDir()
	bundle := filepath.Join(dir, AuthorityFile)
	first, second := authority(t, "blue"), authority(t, "blue")
	if _, err := first.Issue(dir, Node{ID: 0}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Issue(dir, Node{ID: 0}, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("another authority, without force: %v", err)
	}
	for range 2 { // the second time nothing is added
		if _, err := second.Issue(dir, Node{ID: 0}, true); err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprint(authorities(t, bundle)), fmt.Sprint([]any{second.cert.SerialNumber, first.cert.SerialNumber}); got != want {
			t.Errorf("the file has the authorities %v, want the new one and the old one: %v", got, want)
		}
	}
	// As documented: both in one file, in any order, and another node is added.
	if err := os.WriteFile(bundle, append(append([]byte(nil), first.certPEM...), second.certPEM...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, force := range []bool{false, true} {
		if _, err := second.Issue(dir, Node{ID: 1}, force); err != nil {
			t.Errorf("a node of an authority that the file has, force %v: %v", force, err)
		}
	}
	if got := authorities(t, bundle); len(got) != 2 {
		t.Errorf("the file has the authorities %v", got)
	}
	for _, id := range []int{0, 1} {
		cert, key := NodeFiles(id)
		if _, err := Load(bundle, filepath.Join(dir, cert), filepath.Join(dir, key)); err != nil {
			t.Error(err)
		}
	}
}

// TestIssueDropsWhatIsOfNoUse: authorities that have ended, and those of other clusters, are not
// kept; nor is what is no certificate.
func TestIssueDropsWhatIsOfNoUse(t *testing.T) {
	a := authority(t, "blue")
	ended := t.TempDir()
	if _, err := NewAuthority(ended, "blue", time.Nanosecond, false); err == nil {
		t.Fatal("an authority that has ended is opened")
	}
	endedPEM, err := os.ReadFile(filepath.Join(ended, AuthorityFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"one that has ended": endedPEM, "another cluster's": authority(t, "red").certPEM, "garbage": []byte("garbage"),
	} {
		dir := t.TempDir()
		bundle := filepath.Join(dir, AuthorityFile)
		if err := os.WriteFile(bundle, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Issue(dir, Node{ID: 0}, true); err != nil {
			t.Fatal(err)
		}
		if got := authorities(t, bundle); len(got) != 1 {
			t.Errorf("%s: the file has the authorities %v", name, got)
		}
	}
}

// TestEndedAuthorityBesideAnother: an old authority that has ended in the meantime keeps no node
// from starting; one alone does.
func TestEndedAuthorityBesideAnother(t *testing.T) {
	ca, cert, key := issue(t, authority(t, "blue"), Node{ID: 0})
	later := time.Now().Add(NodeValidity / 2)
	short := t.TempDir()
	if _, err := NewAuthority(short, "blue", NodeValidity/4, false); err != nil {
		t.Fatal(err)
	}
	shortPEM, err := os.ReadFile(filepath.Join(short, AuthorityFile))
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca, append(shortPEM, own...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadAt(ca, cert, key, func() time.Time { return later }); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(ca, shortPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadAt(ca, cert, key, func() time.Time { return later }); err == nil || !strings.Contains(err.Error(), "has ended on") {
		t.Errorf("an authority that has ended, alone: %v", err)
	}
}

// keptNode is a node whose files lie in a directory, and what its keeper says.
type keptNode struct {
	*Keeper
	dir   string
	files [3]string
	said  []string
}

// clock is a time that tests set.
type clock struct{ now time.Time }

func keep(t *testing.T, a *Authority, n Node, c *clock) *keptNode {
	t.Helper()
	k := &keptNode{dir: t.TempDir()}
	if _, err := a.Issue(k.dir, n, false); err != nil {
		t.Fatal(err)
	}
	cert, key := NodeFiles(n.ID)
	k.files = [3]string{filepath.Join(k.dir, AuthorityFile), filepath.Join(k.dir, cert), filepath.Join(k.dir, key)}
	var err error
	k.Keeper, err = newKeeper(k.files[0], k.files[1], k.files[2], func(line string) { k.said = append(k.said, line) }, func() time.Time { return c.now })
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// heard takes what the keeper has said.
func (k *keptNode) heard() string {
	said := strings.Join(k.said, "\n")
	k.said = nil
	return said
}

func friends(t *testing.T, a, b *keptNode) error {
	t.Helper()
	_, _, err1, err2 := shake(t, a.Latest(), b.Latest())
	_, _, err3, err4 := shake(t, b.Latest(), a.Latest())
	return errors.Join(err1, err2, err3, err4)
}

// TestRotation: nodes that run go over from one authority to another, file by file, and can make
// connections all the time.
func TestRotation(t *testing.T) {
	c := &clock{time.Now()}
	old, next := authority(t, "blue"), authority(t, "blue")
	nodes := []*keptNode{keep(t, old, Node{ID: 0}, c), keep(t, old, Node{ID: 1}, c)}
	check := func(step string) {
		t.Helper()
		if err := friends(t, nodes[0], nodes[1]); err != nil {
			t.Errorf("%s: %v", step, err)
		}
	}
	check("before")
	replace := func(k *keptNode, step string, content map[string][]byte) {
		t.Helper()
		for name, data := range content {
			if err := writeFile(filepath.Join(k.dir, name), data, true); err != nil {
				t.Fatal(err)
			}
		}
		check(step)
	}
	keys := t.TempDir() // where the administrator makes them
	for id, k := range nodes {
		replace(k, "both are trusted", map[string][]byte{AuthorityFile: append(append([]byte(nil), old.certPEM...), next.certPEM...)})
		if _, err := next.Issue(keys, Node{ID: id}, false); err != nil {
			t.Fatal(err)
		}
	}
	for id, k := range nodes {
		cert, key := NodeFiles(id)
		for _, name := range []string{cert, key} {
			// one after the other: in between they do not fit
			data, err := os.ReadFile(filepath.Join(keys, name))
			if err != nil {
				t.Fatal(err)
			}
			replace(k, "renewed "+name, map[string][]byte{name: data})
		}
	}
	for _, k := range nodes {
		replace(k, "the old one is gone", map[string][]byte{AuthorityFile: next.certPEM})
		if issuer := k.Latest().Certificates[0].Leaf.CheckSignatureFrom(next.cert); issuer != nil {
			t.Error(issuer)
		}
		if said := k.heard(); !strings.Contains(said, "new certificates are used from now on") {
			t.Errorf("the keeper said\n%s", said)
		}
	}
	if err := friends(t, nodes[0], keep(t, old, Node{ID: 1}, c)); err == nil {
		t.Error("a node of the old authority is still let in")
	}
}

// TestBadFilesAreNotTaken: what cannot be used changes nothing, is said once, and is tried again.
func TestBadFilesAreNotTaken(t *testing.T) {
	c := &clock{time.Now()}
	a := authority(t, "blue")
	k := keep(t, a, Node{ID: 3}, c)
	k.Require(func(config *tls.Config) error { return CheckOwn(config, "blue", 3) })
	before := k.Latest()
	good := map[string][]byte{}
	for _, path := range k.files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		good[path] = data
	}
	other, _, _ := issue(t, authority(t, "blue"), Node{ID: 3})
	otherCA, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	_, fourCert, fourKey := issue(t, a, Node{ID: 4})
	pair := map[string][]byte{}
	for to, from := range map[string]string{k.files[1]: fourCert, k.files[2]: fourKey} {
		if pair[to], err = os.ReadFile(from); err != nil {
			t.Fatal(err)
		}
	}
	for name, bad := range map[string]struct {
		files map[string][]byte
		says  string
	}{
		"garbage":            {map[string][]byte{k.files[1]: []byte("garbage")}, "not a certificate and its key"},
		"another authority":  {map[string][]byte{k.files[0]: otherCA}, "was not signed by"},
		"another node's":     {pair, "not of node 3"},
		"no key":             {map[string][]byte{k.files[2]: nil}, "no such file"},
		"an empty authority": {map[string][]byte{k.files[0]: {}}, "no certificate in PEM form"},
	} {
		for path, data := range bad.files {
			if data == nil {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else if err := writeFile(path, data, true); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			if k.Latest() != before {
				t.Fatalf("%s: it is taken", name)
			}
		}
		if said := k.heard(); strings.Count(said, bad.says) != 1 || !strings.Contains(said, "those of before stay in use") {
			t.Errorf("%s: the keeper said\n%s\nwant once %q", name, said, bad.says)
		}
		for path, data := range good {
			if err := writeFile(path, data, true); err != nil {
				t.Fatal(err)
			}
		}
		if before = k.Latest(); strings.Contains(k.heard(), "stay in use") {
			t.Errorf("%s: the good files are not taken", name)
		}
	}
}

// TestWarningsOfARunningDaemon: thirty days before the end a daemon that runs says so, once a day,
// and no more when the certificate is renewed.
func TestWarningsOfARunningDaemon(t *testing.T) {
	c := &clock{time.Now()}
	a := authority(t, "blue")
	k := keep(t, a, Node{ID: 0, Valid: 60 * 24 * time.Hour}, c)
	begin := c.now
	perDay := make([]int, 70)
	var last string
	for hour := range 24 * 70 {
		c.now = begin.Add(time.Duration(hour) * time.Hour)
		if hour == 24*65 {
			if _, err := a.Issue(k.dir, Node{ID: 0, Valid: MaxValidity}, true); err != nil {
				t.Fatal(err)
			}
		}
		k.look()
		for _, line := range k.said {
			if strings.Contains(line, "dsmd cert node --force") {
				perDay[hour/24]++
				last = line
			}
		}
		k.said = nil
	}
	for day, n := range perDay {
		if want := day >= 30 && day < 65; day != 30 && (n == 1) != want || n > 1 {
			t.Errorf("on day %d: %d warnings", day, n)
		}
	}
	if !strings.Contains(last, "has ended on") {
		t.Errorf("the last warning was %q", last)
	}
}

// TestWatch: a tick has the keeper look at the files.
func TestWatch(t *testing.T) {
	a := authority(t, "blue")
	k := keep(t, a, Node{ID: 0}, &clock{time.Now()})
	if _, err := a.Issue(k.dir, Node{ID: 0}, true); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ticks := make(chan time.Time)
	ended := make(chan struct{})
	go func() { k.Watch(ctx, ticks); close(ended) }()
	ticks <- time.Now()
	cancel()
	<-ended
	if said := k.heard(); !strings.Contains(said, "new certificates are used from now on") {
		t.Errorf("after a tick the keeper said %q", said)
	}
}
