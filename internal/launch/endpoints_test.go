package launch

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestExplainLimit: who meets a limit of the kernel is told which one to raise.
func TestExplainLimit(t *testing.T) {
	for errno, advice := range map[syscall.Errno]string{
		syscall.EMFILE: "ulimit -Hn",
		syscall.EAGAIN: "ulimit -u",
		syscall.E2BIG:  "ulimit -s",
		syscall.ENFILE: "fs.file-max",
		syscall.EPERM:  "",
	} {
		err := os.NewSyscallError("fork", errno)
		text, advised := strings.CutPrefix(explainLimit(err).Error(), fmt.Sprint(err))
		if !advised || !strings.Contains(text, advice) || advice == "" && text != "" {
			t.Errorf("%v is explained by %q, want %q", err, text, advice)
		}
	}
}

// TestStatusOfAJobThatIsNotStarted: only a program that may not be executed is not executable.
// Where a container forbids what a daemon needs, such as memfd_create, it is the job's start.
func TestStatusOfAJobThatIsNotStarted(t *testing.T) {
	for _, test := range []struct {
		role   role
		errno  syscall.Errno
		status int
	}{
		{program, syscall.EACCES, StatusNotExecutable},
		{program, syscall.ENOEXEC, StatusNotExecutable},
		{program, syscall.EAGAIN, StatusSystem},
		{daemon, syscall.EPERM, StatusSystem},
	} {
		if got := startStatus(test.role, fmt.Errorf("starting: %w", test.errno)); got != test.status {
			t.Errorf("role %d, %v: status %d, want %d", test.role, test.errno, got, test.status)
		}
	}
}
