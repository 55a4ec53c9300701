//go:build rdma && cgo

package fabric

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"dsmd/internal/require"
	"dsmd/internal/verbs/verbstest"
)

// TestRDMA measures everything, and holds the figures to what the operations are: how many
// registrations a design makes, and which operations there are.
func TestRDMA(t *testing.T) {
	verbstest.Require(t)
	s := local(t)
	o := brief(SectionNames()...)
	o.TCP, o.RDMA = false, true
	r, err := Run(t.Context(), s, o, func(string, int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(o.plan()); len(r.Points) != want || len(r.Devices) == 0 {
		t.Errorf("%d points of %d, %d devices", len(r.Points), want, len(r.Devices))
	}
	for _, p := range r.Points {
		if p.Samples < minSamples || p.Kind != RC || p.P50 <= 0 {
			t.Errorf("%+v", p)
		}
	}
	for _, p := range r.of(Designs) {
		low, high := 0.0, 0.0
		switch {
		case p.Operation == EachTransfer:
			low, high = 2, 2
		// half of the pages are in neither cache
		case p.Operation == Cache && p.Pages > cachedPages:
			low, high = 0.2, 2
		}
		if p.Registrations < low || p.Registrations > high || p.P50 <= 0 {
			t.Errorf("%d registrations per fetch at least and %d at most are wanted: %+v", int(low), int(high), p)
		}
	}
	for _, g := range r.Registrations {
		if g.Register <= 0 || g.Deregister <= 0 || g.Samples < minRegistrations {
			t.Errorf("%+v", g)
		}
	}
	if len(r.Registrations) < len(registrationSizes()) {
		t.Errorf("registrations of %d sizes", len(r.Registrations))
	}
}

// TestPerftest: perftest's programs are what fetches are compared with.
func TestPerftest(t *testing.T) {
	verbstest.Require(t)
	if _, err := exec.LookPath("ib_write_lat"); err != nil {
		require.Missing(t, "rdma", "needs perftest, which transport/rdma/testbed/run has")
	}
	s := local(t)
	o := brief(Fetches)
	o.TCP, o.RDMA, o.Perftest, o.Runs = false, true, true, 1
	r, err := Run(t.Context(), s, o, func(string, int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	f := r.Fetches
	if !strings.Contains(f[0].Name, "ib_write_lat -s 4096") || !strings.Contains(f[1].Name, "ib_send_lat -s 64") || f[2].Name != sumName || f[0].P50 <= 0 || f[1].P50 <= 0 {
		t.Errorf("%+v", f[:3])
	}
	if last := f[len(f)-1]; last.Name != "transport/rdma" || last.Ratio != last.P50/(f[0].P50+f[1].P50) {
		t.Errorf("%+v", last)
	}
}

// TestChoice: a device is named, or the next best one is taken.
func TestChoice(t *testing.T) {
	devices := verbstest.Require(t)
	for i := range 3 {
		if d, err := choose("", i); err != nil || d.Name != devices[min(i, len(devices)-1)].Name {
			t.Errorf("device %d is %q, %v", i, d.Name, err)
		}
	}
	if _, err := choose("nonesuch0", 0); err == nil || !strings.Contains(err.Error(), devices[0].Name) {
		t.Errorf("no such device: %v", err)
	}
	t.Cleanup(Quiet())
	s, err := Local(t.Context(), "nonesuch0", "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Measure(Spec{Kind: RC, Operation: Read, Measure: Latency, Bytes: 64, Connections: 1, Time: time.Millisecond}); err == nil {
		t.Error("a device that is not there was measured")
	}
}
