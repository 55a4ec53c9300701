package certs

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestOwnSecret: however many ask for a user's secret at the same time, and again later, all get
// one, which only the user can read.
func TestOwnSecret(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	var all sync.WaitGroup
	secrets := make([][]byte, 32)
	for i := range secrets {
		all.Go(func() {
			var err error
			if secrets[i], err = OwnSecret(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, s := range secrets {
		if len(s) != SecretBytes || !bytes.Equal(s, secrets[0]) {
			t.Fatalf("secrets of %d and %d bytes, of which one is not the other", len(s), len(secrets[0]))
		}
	}
	path := filepath.Join(home, OwnSecretFile)
	for name, want := range map[string]os.FileMode{filepath.Dir(path): os.ModeDir | 0o700, path: 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info, err, want)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OwnSecret(); err == nil || !strings.Contains(err.Error(), "--secret-file") || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a secret that all can read: %v", err)
	}
}

// TestOwnSecretHome: without a home of one's own there is no secret, and the error says what to do.
func TestOwnSecretHome(t *testing.T) {
	foreign := t.TempDir()
	if os.Geteuid() == 0 {
		if err := os.Chown(foreign, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	} else {
		foreign = "/" // root's
	}
	for home, want := range map[string]string{"": "$HOME is not defined", filepath.Join(foreign, "none"): "no such file", foreign: "which is not that of user"} {
		t.Setenv("HOME", home)
		if _, err := OwnSecret(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--secret-file") {
			t.Errorf("HOME=%q: %v, want %q", home, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(foreign, ".dsmd")); err == nil {
		t.Error("another user's home has a new directory")
	}
}

// TestLoadSecret: a secret has one length, and a file of another is refused.
func TestLoadSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	for _, text := range []string{"", "\n", "no base64 at all", base64.StdEncoding.EncodeToString(make([]byte, 16)), string(NewSecret()) + string(NewSecret())} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSecret(path); err == nil || !strings.Contains(err.Error(), "dsmd cert secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := WriteSecret(path, true); err != nil {
		t.Fatal(err)
	}
	secret, err := LoadSecret(path)
	if err != nil {
		t.Fatal(err)
	}
	if key := GossipKeyOf(secret); len(key) != SecretBytes || bytes.Equal(key, secret) {
		t.Errorf("the key of gossip has %d bytes, or is the secret", len(key))
	}
}
