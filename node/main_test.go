package node

import (
	"os"
	"testing"

	patient "dsmd/internal/patience"
)

func TestMain(m *testing.M) {
	patient.Beside(8) // some tests wait until one gives up waiting for a node
	os.Exit(m.Run())
}
