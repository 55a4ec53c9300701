package dsm

import (
	"os"
	"reflect"
	"regexp"
	"runtime"
	"testing"
	"time"

	"dsmd/internal/attach"
)

// TestStatsHaveAllFields: each field is one of the daemon's counters, and no two are the same one.
func TestStatsHaveAllFields(t *testing.T) {
	source, err := os.ReadFile("stats.go")
	if err != nil {
		t.Fatal(err)
	}
	counts, err := os.ReadFile("../node/counters.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile("../node/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	counted := string(counts) + string(more)
	n := map[string]uint64{attach.ContendedIn + "grid": 3}
	for _, m := range regexp.MustCompile(`\bn\["([a-z_]+)"\]`).FindAllStringSubmatch(string(source), -1) {
		if n[m[1]] != 0 {
			t.Errorf("%s stands in two fields", m[1])
		}
		n[m[1]] = uint64(len(n)) + 10
		if !regexp.MustCompile(`"` + m[1] + `"`).MatchString(counted) {
			t.Errorf("the daemon counts no %s", m[1])
		}
	}
	s := newStats(n)
	for _, part := range []any{s.Faults, s.Traffic, s.Sync} {
		v := reflect.ValueOf(part)
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%v.%s is of no counter", v.Type(), v.Type().Field(i).Name)
			}
		}
	}
	if s.FalseSharing["grid"] != 3 || len(s.FalseSharing) != 1 || s.Faults.Remote() != s.Faults.Read+s.Faults.Write+s.Faults.Upgrade {
		t.Errorf("%+v", s)
	}
	if v, ok := s.Counter("faults_read"); !ok || v != s.Faults.Read {
		t.Errorf("faults_read is %d, %v", v, ok)
	}
	if v, ok := s.Counter("nothing"); ok || v != 0 {
		t.Errorf("nothing is %d", v)
	}
	if all := s.Counters(); !reflect.DeepEqual(all, n) {
		t.Errorf("all are %v", all)
	}
}

// TestProgramsQueue: what workers of the garbage collector wait for a processor is no wait of the
// program. They are known, and wait as long as other threads do.
func TestProgramsQueue(t *testing.T) {
	before := markingTime()
	if runtime.GC(); markingTime() <= before {
		t.Error("a collection takes no time")
	}
	for _, x := range []struct{ queue, cpu, marking, want time.Duration }{
		{0, 0, 0, 0},
		{0, 4, 2, 0},
		{4, 4, 0, 4},
		{16, 4, 15, 4}, // three of four threads mark, and all wait four fifths of their time
		{4, 4, 9, 0},   // they are not measured at the same moment
	} {
		if got := programsQueue(x.queue*time.Second, x.cpu*time.Second, x.marking*time.Second); got != x.want*time.Second {
			t.Errorf("%+v: %v", x, got)
		}
	}
}
