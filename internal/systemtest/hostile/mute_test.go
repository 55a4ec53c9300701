package hostile

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/systemtest/testcluster"
)

// Requests of FUSE, as in linux/fuse.h.
const (
	fuseLookup = 1
	fuseOpen   = 14
	fuseFlush  = 25
	fuseInit   = 26

	fuseRequestHeader = 40 // bytes
	fuseAnswerHeader  = 16
)

// mute mounts a file system that answers until a file is open, and then nothing any more. It
// returns a descriptor of the file.
func mute(t *testing.T) int {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no file system of our own: /dev/fuse: %v", err)
	}
	dir, fd := t.TempDir(), -1
	if err := unix.Mount("mute", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", dev, os.Getuid(), os.Getgid())); err != nil {
		unix.Close(dev)
		t.Skipf("no file system of our own: mount: %v", err)
	}
	t.Cleanup(func() {
		unix.Close(dev) // which lets go whoever waits for it
		unix.Close(fd)
	})
	go answerUntilFlush(dev)
	fd, err = unix.Open(dir+"/file", unix.O_RDWR|unix.O_CLOEXEC, 0)
	unix.Unmount(dir, unix.MNT_DETACH) // the file stays open
	if err != nil {
		t.Fatal(err)
	}
	copied, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(copied)
	return fd
}

// answerUntilFlush serves a file system with one file, until that was opened and once closed. The
// kernel learns by that that nobody need be asked who closes it. Else this process could not end,
// whatever ends it: it would wait for itself.
func answerUntilFlush(dev int) {
	request := make([]byte, 1<<17)
	for opcode := uint32(0); opcode != fuseFlush; {
		n, err := unix.Read(dev, request)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n < fuseRequestHeader {
			return
		}
		opcode = binary.NativeEndian.Uint32(request[4:])
		var body []byte
		put := func(fields ...any) {
			for _, f := range fields {
				body, _ = binary.Append(body, binary.NativeEndian, f)
			}
		}
		failure := int32(0)
		switch opcode {
		case fuseInit: // the version, and the largest write
			put([2]uint32{7, 31}, make([]byte, 12), uint32(1<<16), make([]byte, 40))
		case fuseLookup: // node 2, for an hour, and its attributes
			put([4]uint64{2, 0, 3600, 3600}, uint64(0))
			put([6]uint64{2}, make([]byte, 12), uint32(unix.S_IFREG|0o600), uint32(1), make([]byte, 20))
		case fuseOpen:
			put([2]uint64{1, 0})
		default:
			failure = -int32(unix.ENOSYS)
		}
		answer := binary.NativeEndian.AppendUint32(nil, uint32(fuseAnswerHeader+len(body)))
		answer = binary.NativeEndian.AppendUint32(answer, uint32(failure))
		answer = append(answer, request[8:16]...) // which request it is
		if _, err := unix.Write(dev, append(answer, body...)); err != nil {
			return
		}
	}
}

// TestMuteFiles: a program passes a file of its own file system, which does not answer, as its trap
// or its second socket. Its daemon turns it away, and serves others.
func TestMuteFiles(t *testing.T) {
	for _, trap := range []string{"uffd", "sigsegv"} {
		t.Run(trap, func(t *testing.T) {
			c := testcluster.Serve(t, 1, 1, "--trap", trap)
			event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(event)
			file := mute(t)
			for what, fds := range map[string][]int{"trap": {file}, "second socket": {event, file}} {
				conn := greet(t, c.Socket(0), 0)
				if err := conn.Write(attach.AppendTrap(nil, &attach.Trap{Sigsegv: trap == "sigsegv"}), fds...); err != nil {
					t.Fatal(err)
				}
				if f, err := conn.ReadFrame(); err == nil && f.Kind != attach.KindRefuse && f.Kind != attach.KindLost {
					t.Errorf("the file as its %s is answered with %v", what, f.Kind)
				}
				conn.Close()
				greet(t, c.Socket(0), 0).Close()
			}
			sound(t, c.Daemons[0])
		})
	}
}
