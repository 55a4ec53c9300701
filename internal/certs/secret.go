package certs

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// SecretBytes is the length of a cluster's secret, and of a key for gossip that is made: AES-256.
const SecretBytes = 32

// OwnSecretFile is where the secret of a user's clusters that stay on one machine lies, below the
// user's home directory.
const OwnSecretFile = ".dsmd/secret"

// NewSecret is a cluster's secret as it is written to a file: in base64, one line.
func NewSecret() []byte {
	var secret [SecretBytes]byte
	_, _ = rand.Read(secret[:]) // it never fails: the program crashes instead
	return append(base64.StdEncoding.AppendEncode(nil, secret[:]), '\n')
}

// WriteSecret makes a cluster's secret, or a key for gossip, which looks the same, and writes it to
// a file of mode 0600. A file that exists stays and gives an error that wraps fs.ErrExist, unless
// force.
func WriteSecret(path string, force bool) error {
	return writeFiles(filepath.Dir(path), force, file{filepath.Base(path), NewSecret()})
}

// LoadSecret reads a cluster's secret. The file must be one that other users cannot get at.
func LoadSecret(path string) ([]byte, error) {
	text, err := readSecret(path)
	if err != nil {
		return nil, err
	}
	secret, err := base64.StdEncoding.AppendDecode(nil, bytes.TrimSpace(text))
	if err != nil || len(secret) != SecretBytes {
		return nil, fmt.Errorf("certs: %s is no secret: one is %d bytes in base64; make one with \"dsmd cert secret\"", path, SecretBytes)
	}
	return secret, nil
}

// OwnSecret is the secret of this user's clusters that stay on one machine. Whoever asks first
// makes it. Of several that ask at the same time one makes it, and all get the same.
func OwnSecret() ([]byte, error) {
	secret, err := ownSecret()
	if err != nil {
		return nil, fmt.Errorf("the secret that keeps other users of this machine out of the cluster: %w; or name a file for it with --secret-file, the same for all nodes", err)
	}
	return secret, nil
}

func ownSecret() ([]byte, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(home)
	if err != nil {
		return nil, err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("certs: $HOME is %s, which is not that of user %d, as whom this process runs: set it", home, os.Geteuid())
	}
	path := filepath.Join(home, OwnSecretFile)
	secret, err := LoadSecret(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	if err := WriteSecret(path, false); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return LoadSecret(path)
}

// GossipKeyOf is the key for the gossip of a cluster that has a secret.
func GossipKeyOf(secret []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("dsmd: the key that gossip is encrypted with"))
	return m.Sum(nil)
}
