// Package loopback gives each cluster of a test a network of its own on loopback, so that clusters
// which find their nodes by gossip, at ports that are the same everywhere, never meet: neither
// those of one test binary nor those of several that run at the same time.
package loopback

import (
	"fmt"
	"net"
	"os"
	"sync"
)

// taken are the networks of this process. A listener at the last address of each says so to other
// processes, until this one ends.
var taken struct {
	sync.Mutex
	last      int
	listeners []net.Listener
}

const (
	networks = 254 * 256 // 127.1.0 to 127.254.255; what people use themselves is in 127.0
	mark     = "255:7399"
)

// Network takes a network that no other caller on this machine has, and returns the first three
// numbers of its addresses, as in "127.7.42.". It panics if there is none.
func Network() (prefix string) {
	taken.Lock()
	defer taken.Unlock()
	if taken.last == 0 {
		taken.last = os.Getpid() * 31 // so that processes rarely ask for the same one
	}
	for range networks {
		taken.last++
		n := taken.last % networks
		prefix = fmt.Sprintf("127.%d.%d.", 1+n/256, n%256)
		if l, err := net.Listen("tcp", prefix+mark); err == nil {
			taken.listeners = append(taken.listeners, l)
			return prefix
		}
	}
	panic("loopback: all networks on loopback are taken")
}
