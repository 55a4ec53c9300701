//go:build !rdma

package rdma

import (
	"runtime"
	"testing"

	"dsmd/transport/transporttest"
)

func TestMain(m *testing.M) {
	// Who sleeps on WaitFD keeps one of Go's processors for up to 10 ms.
	runtime.GOMAXPROCS(4 * runtime.GOMAXPROCS(0))
	transporttest.Main(m)
}
