//go:build !rdma

package rdma

import (
	"testing"

	"dsmd/transport/transporttest"
)

func TestMain(m *testing.M) { transporttest.Main(m) }
