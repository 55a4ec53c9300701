package certs

import (
	"bytes"
	"encoding/base64"
	"fmt"
)

// maxGossipKeys bounds the keys in a file: the one in use, the one before, and some more.
const maxGossipKeys = 16

// LoadGossipKeys reads a file of keys, one a line in base64, 16, 24 or 32 bytes each. The first is
// the one to encrypt with; messages under any of them are understood, so that keys can be changed
// one node after the other. The file must be one that other users cannot get at.
func LoadGossipKeys(path string) ([][]byte, error) {
	text, err := readSecret(path)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for i, line := range bytes.Split(text, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		key, err := base64.StdEncoding.AppendDecode(nil, line)
		if n := len(key); err != nil || n != 16 && n != 24 && n != 32 {
			return nil, fmt.Errorf("certs: line %d of %s is no key: a key is 16, 24 or 32 bytes in base64; make one with \"dsmd cert gossip-key\"", i+1, path)
		}
		if keys = append(keys, key); len(keys) > maxGossipKeys {
			return nil, fmt.Errorf("certs: %s has more than %d keys; remove those that are out of use", path, maxGossipKeys)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("certs: %s has no key; make one with \"dsmd cert gossip-key --out %s --force\"", path, path)
	}
	return keys, nil
}
