//go:build !rdma || !cgo

package fabric

import (
	"fmt"

	"dsmd/internal/verbs"
)

// rig would be an opened RDMA device. This build has none.
type rig struct{}

func openRig(string, int) (*rig, error) { return nil, noRDMA(verbs.ErrNotBuilt) }

func (*rig) newEnd(Spec) (end, error) { return nil, noRDMA(verbs.ErrNotBuilt) }

func (*rig) close() error { return nil }

func (*rig) registrations([]int) ([]Registration, error) { return nil, noRDMA(verbs.ErrNotBuilt) }

func (*Session) rdmaPair(int) (pair, error) { return pair{}, noRDMA(verbs.ErrNotBuilt) }

func (*Session) perftestEnds() ([2]perftestEnd, error) {
	return [2]perftestEnd{}, noRDMA(verbs.ErrNotBuilt)
}

// Devices lists the devices that can be measured. Without one, the error wraps ErrNoRDMA.
func Devices() ([]verbs.DeviceInfo, error) { return nil, noRDMA(verbs.ErrNotBuilt) }

func noRDMA(why error) error { return fmt.Errorf("%w: %w", ErrNoRDMA, why) }
