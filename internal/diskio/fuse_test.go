package diskio

import (
	"encoding/binary"
	"strconv"
	"sync"
	"testing"
	"time"

	"dsmd/internal/netio"
	"dsmd/internal/patience"

	"golang.org/x/sys/unix"
)

// The requests of FUSE that the test meets (include/uapi/linux/fuse.h).
const (
	fuseLookup  = 1
	fuseForget  = 2
	fuseGetattr = 3
	fuseOpen    = 14
	fuseRead    = 15
	fuseInit    = 26
	fusePoll    = 40
)

// silentBytes is how long a silent file is.
const silentBytes = 100

// silentFile opens a file of a file system that never answers when it is asked how long the file
// is, nor, unless reads is set, when it is read or asked whether it is readable. All that waits for
// it ends at the end of the test.
func silentFile(t *testing.T, flags int, reads bool) (fd int) {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no file system of our own: /dev/fuse: %v", err)
	}
	end, err := netio.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		end.Signal()
		serving.Wait()
		unix.Close(dev) // ends what waits
		end.Close()
	})
	tree, err := mountFuse(dev)
	if err != nil {
		t.Skipf("no file system of our own: mount: %v", err)
	}
	defer unix.Close(tree)
	serving.Go(func() { serveFuse(dev, end.FD(), reads) })
	if fd, err = unix.Openat(tree, "file", unix.O_RDONLY|unix.O_CLOEXEC|flags, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// mountFuse makes a file system that is mounted nowhere, and is gone when nobody has it open.
func mountFuse(dev int) (tree int, err error) {
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, x := range [][2]string{{"fd", strconv.Itoa(dev)}, {"rootmode", "40000"}, {"user_id", "0"}, {"group_id", "0"}} {
		if err := unix.FsconfigSetString(fs, x[0], x[1]); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}

// serveFuse answers what opens a file, until end is readable.
func serveFuse(dev, end int, reads bool) {
	request, le := make([]byte, 1<<20), binary.LittleEndian
	for {
		ready := []unix.PollFd{{Fd: int32(dev), Events: unix.POLLIN}, {Fd: int32(end), Events: unix.POLLIN}}
		unix.Poll(ready, -1)
		if ready[1].Revents != 0 {
			return
		}
		if _, err := unix.Read(dev, request); err != nil {
			continue
		}
		answer, status := make([]byte, 16), int32(0)
		switch le.Uint32(request[4:]) {
		case fuseForget, fuseGetattr:
			continue
		case fusePoll:
			if !reads {
				continue
			}
			status = -int32(unix.ENOSYS)
		case fuseRead:
			if !reads {
				continue
			}
			answer = make([]byte, 16+silentBytes)
		case fuseInit:
			answer = make([]byte, 16+64)
			le.PutUint32(answer[16:], 7) // the version
			le.PutUint32(answer[20:], 31)
			le.PutUint32(answer[36:], 4096) // of a write, at most
		case fuseLookup:
			answer = make([]byte, 16+40+88)
			le.PutUint64(answer[16:], 2) // its number, twice; what is said of it is valid for now
			le.PutUint64(answer[56:], 2)
			le.PutUint64(answer[64:], silentBytes)
			le.PutUint32(answer[116:], unix.S_IFREG|0o644)
			le.PutUint32(answer[120:], 1)
		case fuseOpen:
			answer = make([]byte, 16+16)
			le.PutUint32(answer[24:], 1) // it is read past the page cache
		default:
			status = -int32(unix.ENOSYS)
		}
		le.PutUint32(answer, uint32(len(answer)))
		le.PutUint32(answer[4:], uint32(status))
		copy(answer[8:16], request[8:16]) // which request it is
		unix.Write(dev, answer)
	}
}

// TestSilentFileSystem: who submits reads of a file does not wait for its file system, which may be
// another process that does not answer, whatever flags the file has. Others are read meanwhile.
func TestSilentFileSystem(t *testing.T) { both(t, testSilentFileSystem) }

func testSilentFileSystem(t *testing.T) {
	for _, flags := range []int{0, unix.O_NONBLOCK, unix.O_DIRECT, unix.O_DIRECT | unix.O_NONBLOCK} {
		q := open(t)
		silent := silentFile(t, flags, false)
		good, _ := newFile(t, 0, make([]byte, bufBytes))
		list := []*Transfer{{FD: silent, Buf: filled(t, q, 1)}, {FD: good, Buf: filled(t, q, 1)}}
		submitted := make(chan struct{})
		go func() {
			q.Submit(list...)
			close(submitted)
		}()
		select {
		case <-submitted:
		case <-time.After(patience.Or(10 * time.Second)):
			t.Fatalf("flags %#x: who submits waits for the file system", flags)
		}
		var over []*Transfer
		eventually(t, "the other file is read", func() bool {
			over = append(over, q.Take()...)
			return len(over) > 0
		})
		if over[0] != list[1] || over[0].Err != nil {
			t.Errorf("flags %#x: a read of descriptor %d is over, %v", flags, over[0].FD, over[0].Err)
		}
	}
}

// TestSilentEndOfFile: who finds that a file ends within a read does not ask the file system how
// long it is, which may not answer that.
func TestSilentEndOfFile(t *testing.T) { both(t, testSilentEndOfFile) }

func testSilentEndOfFile(t *testing.T) {
	q := open(t)
	tr := &Transfer{FD: silentFile(t, 0, true), Buf: filled(t, q, 1), Least: silentBytes}
	q.Submit(tr)
	over := make(chan []*Transfer)
	go func() {
		for {
			unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, -1)
			if list := q.Take(); len(list) > 0 {
				over <- list
				return
			}
		}
	}()
	select {
	case <-over:
		if tr.Err != nil {
			t.Error(tr.Err)
		}
	case <-time.After(patience.Or(10 * time.Second)):
		t.Fatal("the end of a read waits for the file system")
	}
}
