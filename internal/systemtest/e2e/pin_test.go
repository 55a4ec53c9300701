package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/sigsegv"
	"dsmd/internal/systemtest/testcluster"
)

// pinner has rank 0 give shared memory to system calls while all other ranks store to it all the
// time.
var pinner = testcluster.Define("pinner", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	const pages = 6
	memory, err := dsm.Alloc[byte](s.Ctx, c, "memory", pages*c.PageBytes())
	if err != nil {
		return err
	}
	words, err := dsm.Alloc[uint64](s.Ctx, c, "words", 2)
	if err != nil {
		return err
	}
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	if c.Rank() == 0 {
		err = pinRounds(s, c, memory[100:len(memory)-100], 15)
		atomic.StoreUint64(&words[0], 1)
	}
	for c.Rank() > 0 && atomic.LoadUint64(&words[0]) == 0 {
		for i := 0; i < len(memory); i += c.PageBytes() {
			memory[i+200]++
		}
	}
	return errors.Join(err, c.Barrier(s.Ctx), c.Close())
})

// pinRounds has rounds of pins.
func pinRounds(s *testcluster.Self, c *dsm.Cluster, memory []byte, rounds int) error {
	for round := range rounds {
		if err := pinRound(s, c, memory, byte(round)); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// pinRound reads bytes into pinned memory, and writes them from there, by system calls. Nobody else
// can change them meanwhile, unless this program is slow: then others may break the pin, and
// nothing is known of what system calls do.
func pinRound(s *testcluster.Self, c *dsm.Cluster, memory []byte, value byte) error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	defer out.Close()
	want, private := slices.Repeat([]byte{value}, len(memory)), make([]byte, len(memory))
	if _, err := out.Write(want); err != nil {
		return err
	}
	begun := time.Now()
	unpin, err := dsm.Pin(s.Ctx, c, memory, dsm.Write)
	if err != nil {
		return err
	}
	_, errIn := io.ReadFull(in, memory)
	_, errOut := out.Write(memory)
	if err := errors.Join(unpin(), unpin()); err != nil || time.Since(begun) > dsm.PinPatience {
		return err
	}
	if err := errors.Join(errIn, errOut); err != nil {
		return err
	}
	if _, err := io.ReadFull(in, private); err != nil {
		return err
	}
	if !slices.Equal(private, want) {
		return errors.New("pinned memory was changed")
	}
	begun = time.Now()
	if unpin, err = dsm.Pin(s.Ctx, c, memory, dsm.Read); err != nil {
		return err
	}
	_, errOut = out.Write(memory)
	if err := unpin(); err != nil || time.Since(begun) > dsm.PinPatience {
		return err
	}
	return errOut
}

// TestPin gives shared memory to system calls under either trap, as the user that runs the test:
// where faults inside system calls are not trapped they would fail.
func TestPin(t *testing.T) {
	for _, trap := range []string{"auto", "sigsegv"} {
		t.Run(trap, func(t *testing.T) {
			if err := sigsegv.Available(); err != nil && trap == "sigsegv" {
				t.Skip(err)
			}
			testcluster.Job{Nodes: 3, Flags: []string{"--trap", trap}, Program: pinner}.Succeed(t)
		})
	}
}
