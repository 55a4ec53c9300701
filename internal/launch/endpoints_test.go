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
