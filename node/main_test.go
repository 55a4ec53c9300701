package node

import (
	"os"
	"runtime"
	"testing"

	patient "dsmd/internal/patience"
)

func TestMain(m *testing.M) {
	patient.Beside(8) // some tests wait until one gives up waiting for a node
	// A reactor that sleeps in epoll_wait keeps its P until Go's monitor has noticed.
	runtime.GOMAXPROCS(max(8, runtime.GOMAXPROCS(0)))
	os.Exit(m.Run())
}
