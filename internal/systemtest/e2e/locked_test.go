package e2e

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/require"
	"dsmd/internal/systemtest/testcluster"
)

// TestLockedMemory has programs that lock their memory into RAM, before they allocate shared memory
// and after it. The kernel then wants to fill pages by itself, and must not: each page comes by a
// fault, and no program has one that is out of date.
func TestLockedMemory(t *testing.T) {
	t.Parallel()
	require.Memlock(t)
	withEachTrap(t, func(t *testing.T, trap string) {
		c := serve(t, 2, 3, "--trap", trap)
		before, after, plain := join(t, c, 0, 0, 3), join(t, c, 0, 1, 3), join(t, c, 1, 2, 3)
		all := []*testcluster.Process{before, after, plain}
		before.Do(t, "ok", "mlockall all %d", unix.MCL_CURRENT|unix.MCL_FUTURE)
		for _, p := range all {
			p.Do(t, "ok", "alloc data 4")
		}
		plain.Do(t, "ok", "fill data 100")
		before.Do(t, "ok", "check data 100")
		before.Do(t, "ok", "fill data 200")
		plain.Do(t, "ok", "check data 200")
		// The kernel's faults trap with some ways to open a userfaultfd, and fail with others:
		// then the pages come later.
		if said := after.Ask(t, "mlock data"); said != "ok" && !strings.HasSuffix(said, unix.ENOMEM.Error()) {
			t.Errorf("mlock of shared memory: %s", said)
		}
		after.Do(t, "ok", "mlockall all %d", unix.MCL_CURRENT|unix.MCL_FUTURE)
		for round := 3; round < 6; round++ {
			for i, writer := range all {
				value := 1000*round + 100*i
				writer.Do(t, "ok", "fill data %d", value)
				for _, reader := range all {
					reader.Do(t, "ok", "check data %d", value)
				}
			}
		}
		for _, p := range all {
			p.Succeed(t)
		}
	})
}

// TestLockedMemoryAndLoss: a page is lost that a program would have made by itself if it could, by
// locking its memory. No program gets zeros in its place, and the daemon goes on.
func TestLockedMemoryAndLoss(t *testing.T) {
	t.Parallel()
	require.Memlock(t)
	c := serve(t, 3, 4, "--survive")
	locked, beside, other, doomed := join(t, c, 0, 0, 4), join(t, c, 0, 1, 4), join(t, c, 1, 2, 4), join(t, c, 2, 3, 4)
	locked.Do(t, "ok", "mlockall all %d", unix.MCL_CURRENT|unix.MCL_FUTURE)
	for _, p := range []*testcluster.Process{locked, beside, other, doomed} {
		p.Do(t, "ok", "alloc data 4")
	}
	doomed.Do(t, "ok", "put data 512 7")
	c.Daemons[2].Kill(t)
	for _, d := range c.Daemons[:2] {
		d.AwaitLog(t, "recovery is over")
	}
	for _, p := range []*testcluster.Process{beside, locked, other} {
		p.Do(t, "lost with node 2: byte 4096 of data", "get data 512")
	}
	locked.Do(t, "ok", "put data 0 1")
	other.Do(t, "1", "get data 0")
}
