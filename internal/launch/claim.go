package launch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Claim is the place of a file that is written when a job ends, or while it runs. What an earlier
// job has left there stays until this one has something to put there. A nil claim is of no file.
type Claim struct {
	made string      // the file that was not there before; "": it was
	is   os.FileInfo // made: the file itself
}

// NewClaim finds out whether a file can be written, before the job takes hours. The caller calls
// GiveBack if nothing was written.
func NewClaim(path string) (*Claim, error) {
	c, f, err := openClaim(path)
	if err == nil {
		err = f.Close()
	}
	return c, err
}

// openClaim is NewClaim that leaves the file open. The caller closes it.
func openClaim(path string) (*Claim, *os.File, error) {
	c := &Claim{}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		at := target(path)
		if f, err = os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666); err == nil {
			c.made = at
			c.is, err = f.Stat()
		} else if errors.Is(err, fs.ErrExist) { // somebody else has made it meanwhile
			f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	// As long as it is open: see GiveBack. Where files have no locks, there is little to lose.
	_ = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	return c, f, nil
}

// mostLinks bounds how many symbolic links lead from one to the next, as the kernel does.
const mostLinks = 40

// target is where a file is made that is opened at a path: symbolic links may lead to where there
// is none yet.
func target(path string) string {
	for range mostLinks {
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Dir(path) + "/" + to // a ".." in it is where the kernel finds it
		}
		path = to
	}
	return path
}

// GiveBack leaves the place as it was before the claim: a file that the claim has made goes again,
// unless somebody has written to it since, has put another in its place, or has claimed it, too,
// and not closed it.
func (c *Claim) GiveBack() {
	if c == nil || c.made == "" {
		return
	}
	info, err := os.Lstat(c.made)
	if err != nil || !os.SameFile(info, c.is) || info.Size() > 0 {
		return
	}
	f, err := os.Open(c.made)
	if err != nil {
		return // an empty file is no harm
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(c.made)
	}
}
