package hostile

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/attach"
	"dsmd/internal/systemtest/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// honest is a program that counts in shared memory under a lock: "add N" counts N times, "sum"
// tells the count.
var honest = testcluster.Define("honest", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	words, err := dsm.Alloc[uint64](s.Ctx, c, "words", 1024) // two pages, whose home is node 0
	if err != nil {
		return err
	}
	s.Say("ready")
	lock := dsm.NewMutex(c, s.Args[0])
	for {
		line, err := s.Next()
		switch {
		case errors.Is(err, io.EOF):
			return c.Close()
		case err != nil:
			return err
		}
		var n int
		if _, err := fmt.Sscanf(line, "add %d", &n); err != nil {
			return err
		}
		for range n {
			if err := lock.Lock(s.Ctx); err != nil {
				return err
			}
			words[0]++
			words[1023] += 2
			if err := lock.Unlock(); err != nil {
				return err
			}
		}
		if err := lock.Lock(s.Ctx); err != nil {
			return err
		}
		s.Say("%d %d", words[0], words[1023])
		if err := lock.Unlock(); err != nil {
			return err
		}
	}
})

// lockAt is the name of a lock whose home is the given node.
func lockAt(node, nodes uint64) string {
	for i := 0; ; i++ {
		// As protocol.Config.Home has it: the hash without its top bit.
		if name := fmt.Sprint("lock", i); attach.NameHash(attach.NameLock, name)<<1>>1%nodes == node {
			return name
		}
	}
}

// alarms are what the log of a daemon must never have.
var alarms = []string{"panic:", "fatal error:", "SIGSEGV", "SIGBUS", "goroutine "}

// sound checks that a daemon has not crashed, whatever else has become of it.
func sound(t *testing.T, p *testcluster.Process) {
	t.Helper()
	for _, a := range alarms {
		if strings.Contains(p.Errors(), a) {
			t.Errorf("the daemon has crashed:\n%s", p.Errors())
			return
		}
	}
}
