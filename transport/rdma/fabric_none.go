//go:build !rdma

package rdma

import (
	"fmt"

	"dsmd/internal/verbs"
)

// openFabric needs the binding to libibverbs, which this build has not.
func openFabric(d Device, _ bool) (fabric, error) {
	return nil, fmt.Errorf("rdma: device %s: %w", d.Info.Name, verbs.ErrNotBuilt)
}
