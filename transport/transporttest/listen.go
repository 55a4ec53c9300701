package transporttest

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// listened counts the listeners that this process has opened.
var listened atomic.Uint32

// Listen opens a port on a loopback address that no other listener of these tests has. So whoever
// listens there anew, after the end of the test's first listener, finds the port free.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	n := listened.Add(1)
	host := net.IPv4(127, byte(1+os.Getpid()%200), byte(n>>8), byte(n))
	l, err := net.Listen("tcp", fmt.Sprintf("%v:0", host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
