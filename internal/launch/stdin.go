package launch

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// input is the standard input of rank 0.
type input struct {
	file  *os.File // nil: nothing
	owned bool     // file is the child's end of a pipe, to be closed once it is inherited
}

func (in input) close() {
	if in.owned {
		in.file.Close()
	}
}

// openInput is openStdin. Tests change it.
var openInput = openStdin

// openStdin decides what rank 0 reads. A file or a pipe is passed on as it is. A terminal is not:
// the programs are not in its foreground process group, for Ctrl-C must reach the supervisor alone,
// and the kernel stops a process that reads from the background. So the supervisor reads the
// terminal and passes it on through a pipe, unless it was itself started in the background.
func openStdin(terminal *os.File) (input, error) {
	if terminal == nil {
		return input{}, nil
	}
	foreground, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return input{file: terminal}, nil // not a terminal, or not ours
	}
	if foreground != unix.Getpgrp() {
		return input{}, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return input{}, fmt.Errorf("launch: making a pipe for the input of rank 0: %w", err)
	}
	go func() {
		// Ends with rank 0 at the first key typed after that, or with the process: nothing can
		// interrupt a read from a terminal.
		_, _ = io.Copy(w, terminal)
		w.Close()
	}()
	return input{file: r, owned: true}, nil
}
