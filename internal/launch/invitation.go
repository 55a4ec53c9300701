package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxInvitationBytes bounds what is read of an invitation: certificates, a key, and the addresses
// of a machine.
const maxInvitationBytes = 1 << 20

// invitation is what the file of a meeting says.
type invitation struct {
	Addresses []string `json:"addresses"` // of the launcher
	Authority []byte   `json:"authority"`
	Cert      []byte   `json:"cert"`
	Key       []byte   `json:"key"`
}

// elsewhere is the remedy when anything is wrong with the place of a meeting.
const elsewhere = "name a directory of your own that all machines share with --meet"

// readInvitation reads the file of the meeting. The file's writer decides which programs the reader
// runs. So the file must belong to the reader (or root), be open to nobody else, and lie where
// nobody else can put another in its place. The checks use descriptors, so that what was checked is
// what is read. TestForeignInvitation has the ways in.
func (m *Meeting) readInvitation() (inv invitation, err error) {
	dir, err := openMeetingDirectory(m.Dir)
	if err != nil {
		return inv, err
	}
	defer unix.Close(dir)
	// Without O_NONBLOCK a pipe in the file's place would hold the reader up before it can be
	// looked at.
	fd, err := unix.Openat(dir, m.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ELOOP {
		return inv, fmt.Errorf("%s is no regular file, but a link that anybody may have made: remove it, or %s", m.File(), elsewhere)
	}
	if err != nil {
		return inv, &os.PathError{Op: "open", Path: m.File(), Err: err}
	}
	f := os.NewFile(uintptr(fd), m.File())
	defer f.Close()
	if err := checkInvitation(f); err != nil {
		return inv, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxInvitationBytes))
	if err != nil {
		return inv, err
	}
	if err := json.Unmarshal(text, &inv); err != nil {
		return inv, fmt.Errorf("%s: %w", m.File(), err)
	}
	return inv, nil
}

// checkInvitation refuses a file that somebody else may have written, or can read: it has the key
// of the job.
func checkInvitation(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s is no regular file: remove it, or %s", f.Name(), elsewhere)
	case !trusted(st.Uid):
		return fmt.Errorf("%s belongs to user %d, who could have programs run as user %d with it: remove it, or %s", f.Name(), st.Uid, os.Geteuid(), elsewhere)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%s has mode %#o, so others can get at the key of the job: run \"chmod 600 %s\", or %s", f.Name(), st.Mode&0o7777, f.Name(), elsewhere)
	}
	return nil
}

// openMeetingDirectory opens a directory in which nobody else can replace a file. In a sticky one,
// like /tmp, others can make files, but not remove this user's.
func openMeetingDirectory(path string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	switch err = unix.Fstat(fd, &st); {
	case err != nil:
		err = &os.PathError{Op: "fstat", Path: path, Err: err}
	case !trusted(st.Uid):
		err = fmt.Errorf("the directory %s belongs to user %d, who could have programs run as user %d by a file in it: %s", path, st.Uid, os.Geteuid(), elsewhere)
	case st.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 && st.Mode&unix.S_ISVTX == 0:
		err = fmt.Errorf("others can replace files in the directory %s: run \"chmod go-w %[1]s\", or %s", path, elsewhere)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// trusted reports whether a user may decide what this one runs.
func trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// invite writes the file. It is there whole or not at all, and replaces that of an earlier job.
func (m *Meeting) invite(inv *invitation) error {
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return fmt.Errorf("launch: the directory of the meeting: %w: %s", err, elsewhere)
	}
	dir, err := openMeetingDirectory(m.Dir)
	if err != nil {
		return fmt.Errorf("launch: the directory of the meeting: %w", err)
	}
	unix.Close(dir)
	f, err := os.CreateTemp(m.Dir, m.Name+".*") // mode 0600, and no other's: O_EXCL
	if err != nil {
		return fmt.Errorf("launch: the file of the meeting: %w: %s", err, elsewhere)
	}
	_, err = f.Write(mustEncode(inv))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), m.File())
	}
	if err != nil {
		return fmt.Errorf("launch: the file of the meeting: %w: %s", errors.Join(err, os.Remove(f.Name())), elsewhere)
	}
	return nil
}
