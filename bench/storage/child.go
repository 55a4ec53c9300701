package storage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// childGrace is how long a bare program may take to end by itself.
const childGrace = 3 * time.Second

// A Child is a running bare program, which answers requests. It ends with its standard input, so
// with this process at the latest, and with the context that it was started with. It belongs to one
// goroutine.
type Child struct {
	ctx  context.Context
	role Role
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
}

// StartChild starts a bare program of that command line. Close must be called.
func StartChild(ctx context.Context, role Role, command ...string) (*Child, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = childGrace
	cmd.Stderr = os.Stderr
	// A thread that waits in a system call leaves its P to nobody that needs one, and has it again
	// at once. The signals by which Go preempts a goroutine would interrupt system calls.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=32", "GODEBUG=asyncpreemptoff=1")
	// A group of its own, so that a terminal's Ctrl-C reaches only the driver, which ends the rest.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the %s: %w", role, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the %s: %w", role, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the %s: %w", role, err)
	}
	return &Child{ctx: ctx, role: role, cmd: cmd, in: in, out: json.NewDecoder(out)}, nil
}

// PID is its process's id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Ask sends a request, and waits for the answer.
func (c *Child) Ask(request, answer any) error {
	if err := json.NewEncoder(c.in).Encode(request); err != nil {
		return c.failure(err)
	}
	return c.Hear(answer)
}

// Hear waits for what it says next.
func (c *Child) Hear(answer any) error {
	if err := c.out.Decode(answer); err != nil {
		return c.failure(err)
	}
	return nil
}

// failure says why it does not answer. What went wrong there it has said on standard error.
func (c *Child) failure(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) {
		err = errors.New("it has ended")
	}
	return cmp.Or(context.Cause(c.ctx), fmt.Errorf("the bare %s does not answer: %w", c.role, err))
}

// Close ends it.
func (c *Child) Close() error {
	late := time.AfterFunc(childGrace, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	err := c.in.Close()
	if err := cmp.Or(c.cmd.Wait(), err); err != nil && c.ctx.Err() == nil {
		return fmt.Errorf("the bare %s: %w", c.role, err)
	}
	return nil
}
