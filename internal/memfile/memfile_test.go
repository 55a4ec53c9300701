package memfile

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCreate: the file is empty memory of its size, which nobody can change.
func TestCreate(t *testing.T) {
	fd, err := Create("some-name", 12345)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != 12345 || st.Blocks != 0 {
		t.Errorf("a file of %d bytes in %d blocks: %v", st.Size, st.Blocks, err)
	}
	for _, size := range []int64{0, 12344, 12346} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("its size can be changed to %d: %v", size, err)
		}
	}
	if is, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); !strings.Contains(is, "some-name") {
		t.Errorf("it is called %q: %v", is, err)
	}
	if fd, err := Create("too long", 1<<63); err == nil {
		unix.Close(fd)
		t.Error("a file of 8 EiB can be had")
	}
}

// TestExplain: a system call that a filter forbids is told as that, and other errors as they are.
func TestExplain(t *testing.T) {
	for errno, advice := range map[unix.Errno]string{unix.EPERM: "seccomp profile", unix.ENOSYS: "seccomp profile", unix.EMFILE: ""} {
		text, is := strings.CutPrefix(Explain(errno).Error(), errno.Error())
		if !is || !strings.Contains(text, advice) || advice == "" && text != "" {
			t.Errorf("%v is explained by %q, want %q", errno, text, advice)
		}
	}
}
