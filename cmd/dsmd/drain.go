package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"dsmd/internal/attach"
	"dsmd/internal/settings"
)

func newDrain() *cobra.Command {
	socket := settings.DefaultSocket()
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Have a node leave its cluster, with nothing that others need",
		Long: `Tells the daemon at --socket to hand over to the other nodes all pages, directories and locks that it has,
and to end, and waits until its process has ended. Programs on other nodes notice nothing but time. Programs
on this node must have ended before.

It takes a cluster whose nodes were started with --survive. Started anew with --rejoin, the node comes back:
docs/operations.md shows a rolling restart. The exit status is 1, and the daemon goes on, if it cannot leave.`,
		Example: `  dsmd drain
  dsmd drain --socket /run/dsmd/dsmd.sock`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return tellToLeave(ctx, cmd.OutOrStdout(), socket)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", socket, "the daemon's socket, a path or an abstract name (@NAME)")
	return cmd
}

// tellToLeave waits until the daemon has left, which takes as long as it takes to move what it has,
// and then until its process has ended, so that it can be started anew. A user who does not wait
// that long does not undo it.
func tellToLeave(ctx context.Context, w io.Writer, socket string) error {
	c, welcome, err := meetInTime(ctx, socket, "dsmd drain")
	if err != nil {
		return fmt.Errorf("the daemon at %s: %w", socket, err)
	}
	defer c.Close()
	defer c.Discard()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	lives, _, err := givePipe(c, 1) // the daemon has it until its process ends
	if err != nil {
		return fmt.Errorf("the daemon at %s: %w", socket, err)
	}
	defer lives.Close()
	if err := c.Write(attach.AppendCall(nil, &attach.Call{Op: attach.OpDrain, Ticket: 2})); err != nil {
		return fmt.Errorf("the daemon at %s: %w", socket, err)
	}
	reply, err := expect(c, attach.KindReply, attach.DecodeReply)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("node %d still leaves, and nobody waits for it any more: \"dsmd status --socket %s\" shows when its daemon has ended", welcome.Node, socket)
	case err != nil:
		return fmt.Errorf("node %d, at %s: %w", welcome.Node, socket, err)
	case reply.Status != attach.StatusOK:
		return fmt.Errorf("node %d does not leave: %s", welcome.Node, reply.Payload)
	}
	if err := awaitEnd(ctx, lives); err != nil {
		return fmt.Errorf("node %d has left, and the others have all that it had, but %w: wait for its end before you start it anew", welcome.Node, err)
	}
	_, err = fmt.Fprintf(w, "node %d has left; the others have all that it had\n", welcome.Node)
	return err
}

// endWithin bounds how long the process of a daemon is waited for whose node has left. What it does
// by then, such as telling others that it ends, takes some seconds at most.
var endWithin = 10 * time.Second

// awaitEnd waits for the end of a process by the end of a pipe that only that one writes to.
func awaitEnd(ctx context.Context, pipe *os.File) error {
	_ = pipe.SetReadDeadline(time.Now().Add(endWithin))
	defer context.AfterFunc(ctx, func() { _ = pipe.SetReadDeadline(time.Now()) })()
	_, err := io.Copy(io.Discard, pipe)
	switch {
	case ctx.Err() != nil:
		return errors.New("its daemon may not have ended yet")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("its daemon has not ended within %v: its log may say why", endWithin)
	}
	return err
}
