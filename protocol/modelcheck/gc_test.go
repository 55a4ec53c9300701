package modelcheck

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain has the collector run less often than usual. An exploration makes states all the time
// and keeps most of them, so a third of its time would be the collector's.
func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(8 << 30) // of which the full bound's largest clusters need a part
	}
	os.Exit(m.Run())
}
