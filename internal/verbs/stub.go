//go:build !rdma

package verbs

// Devices lists the RDMA devices of this machine. In this build it returns ErrNotBuilt.
func Devices() ([]DeviceInfo, error) { return nil, ErrNotBuilt }
