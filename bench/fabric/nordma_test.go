//go:build !rdma || !cgo

package fabric

import (
	"errors"
	"testing"
	"time"

	"dsmd/internal/verbs"
)

// TestNoRDMA: a build without RDMA says so whenever it is asked for some.
func TestNoRDMA(t *testing.T) {
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrNoRDMA) || !errors.Is(err, verbs.ErrNotBuilt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := Devices()
	check("Devices", err)
	s := local(t)
	o := brief(Latencies)
	o.RDMA = true
	_, err = Run(t.Context(), s, o, func(string, int, int) {})
	check("Run", err)
	_, err = s.Registrations([]int{4096})
	check("Registrations", err)
	_, err = s.Measure(Spec{Kind: RC, Operation: Read, Measure: Latency, Bytes: 64, Connections: 1, Time: time.Millisecond})
	check("Measure", err)
}
