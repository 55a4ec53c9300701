package launch

import (
	"errors"
	"io/fs"
	"os"
)

// Claim is the place of a file that is written when a job ends, or while it runs. What an earlier
// job has left there stays until this one has something to put there. A nil claim is of no file.
type Claim struct {
	path string
	made bool // the file was not there before
}

// NewClaim finds out whether a file can be written, before the job takes hours, and opens it. The
// caller closes it, and calls GiveBack if nothing was written.
func NewClaim(path string) (*Claim, *os.File, error) {
	_, err := os.Stat(path)
	c := &Claim{path: path, made: errors.Is(err, fs.ErrNotExist)}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, nil, err
	}
	return c, f, nil
}

// GiveBack leaves the place as it was before the claim: a file that the claim has made goes again,
// unless somebody has written to it since.
func (c *Claim) GiveBack() {
	if c == nil || !c.made {
		return
	}
	if info, err := os.Stat(c.path); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		_ = os.Remove(c.path) // an empty file is no harm
	}
}
