//go:build !rdma

package verbs

// Built reports whether this program can use RDMA devices at all.
const Built = false

// Available returns nil if this program was built with RDMA, else ErrNotBuilt.
func Available() error { return ErrNotBuilt }

// Devices lists the RDMA devices of this machine. In this build it returns ErrNotBuilt.
func Devices() ([]DeviceInfo, error) { return nil, ErrNotBuilt }
