package dsm

import (
	"encoding/json"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/runstats"
)

// stacksWithin bounds how long stacks are written to somebody who does not read them.
const stacksWithin = 10 * time.Second

// maxStacks bounds the text of all stacks, in bytes.
const maxStacks = 16 << 20

// writeStacks writes the stacks of all goroutines to a file, which it closes. To take them the
// runtime stops the program for a moment. It cannot stop a thread that waits for a page, and all
// others would wait for that; so while there are blocked threads it only writes who waits in calls.
func (a *attendant) writeStacks(fd, blocked int) {
	_ = unix.SetNonblock(fd, true) // so that it can be given up
	f := os.NewFile(uintptr(fd), "stacks")
	now := time.Now()
	s := runstats.Dump{Rank: a.state(now), Blocked: blocked}
	if blocked == 0 {
		s.Text = string(allStacks())
	}
	go func() {
		defer f.Close()
		// A file without deadlines does not block, and who has closed the other end wants nothing.
		_ = f.SetWriteDeadline(now.Add(stacksWithin))
		_ = json.NewEncoder(f).Encode(s)
	}()
}

func allStacks() []byte {
	for size := 64 << 10; ; size *= 2 {
		b := make([]byte, size)
		if n := runtime.Stack(b, true); n < size || size >= maxStacks {
			return b[:n]
		}
	}
}
