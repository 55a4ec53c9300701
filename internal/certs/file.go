package certs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxFile bounds what is read of a file, in bytes: a list of certificates has some KiB.
const maxFile = 1 << 20

type file struct {
	name string
	data []byte
}

// writeFiles writes files of mode 0600 into dir, or none of them if one exists with other contents,
// unless force. Each is there whole or not at all.
func writeFiles(dir string, force bool, files ...file) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("certs: %w", err)
	}
	missing := files[:0:0]
	for _, f := range files {
		old, err := os.ReadFile(filepath.Join(dir, f.name))
		switch {
		case err == nil && bytes.Equal(old, f.data):
			continue
		case err == nil && !force:
			return exists(filepath.Join(dir, f.name))
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("certs: %w", err)
		}
		missing = append(missing, f)
	}
	for _, f := range missing {
		if err := writeFile(filepath.Join(dir, f.name), f.data, force); err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) error {
	return fmt.Errorf("certs: %s: %w; choose another place, or say --force to replace it", path, fs.ErrExist)
}

// writeFile makes one file, by way of another name in the same directory, so that nobody ever sees
// half of it.
func writeFile(path string, data []byte, force bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".dsmd-cert-*") // mode 0600
	if err != nil {
		return fmt.Errorf("certs: %w", err)
	}
	defer os.Remove(f.Name()) // fails if it has moved, as it should
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	switch {
	case err != nil:
	case force:
		err = os.Rename(f.Name(), path)
	default:
		// Unlike a rename, a link replaces nothing that has come to be meanwhile.
		if err = os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
			return exists(path)
		}
	}
	if err != nil {
		return fmt.Errorf("certs: write %s: %w", path, err)
	}
	return nil
}

// readFile reads a file that anybody may see.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("certs: %w", err)
	}
	defer f.Close()
	return readBounded(f)
}

// readSecret reads a file that nobody else may see. As with PostgreSQL, a file of root's may be
// readable for its group: that is how secrets are mounted into containers that do not run as root.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("certs: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("certs: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("certs: %s: its owner is not known", path)
	}
	forbidden := fs.FileMode(0o077)
	if owner.Uid == 0 {
		forbidden = 0o037
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("certs: %s is not a regular file", path)
	case owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return nil, fmt.Errorf("certs: %s belongs to user %d, who can read and change it, and this process runs as user %d; chown it", path, owner.Uid, os.Geteuid())
	case info.Mode().Perm()&forbidden != 0:
		return nil, fmt.Errorf("certs: %s has mode %#o, so other users can get at it; run: chmod 600 %s, and make a new one if they may have",
			path, info.Mode().Perm(), path)
	}
	return readBounded(f)
}

func readBounded(f *os.File) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("certs: %w", err)
	case len(b) > maxFile:
		return nil, fmt.Errorf("certs: %s has more than %d bytes", f.Name(), maxFile)
	}
	return b, nil
}
