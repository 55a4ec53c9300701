package rdma

import (
	"errors"
	"fmt"
	"net/netip"

	"dsmd/internal/verbs"
)

// ErrNoDevice is wrapped by the error of Probe when this node cannot use RDMA. See also
// ErrNotBuilt.
var ErrNoDevice = errors.New("no usable RDMA device")

// ErrNotBuilt is wrapped by the error of Probe when the reason is the build.
var ErrNotBuilt = verbs.ErrNotBuilt

// Device is a device with the port and the address that are used of it.
type Device struct {
	Info verbs.DeviceInfo
	Port verbs.PortInfo
	GID  verbs.GID
}

// String names the device, the port and the address.
func (d Device) String() string {
	return fmt.Sprintf("%s port %d at %v (%s, %s)", d.Info.Name, d.Port.Number, d.GID.Addr.Unmap(), d.Port.Link, d.GID.Type)
}

// Probe chooses a device: the one with the given name. If name is "", it is the one with the
// address local, else the first that can be used. The error wraps ErrNoDevice and says why none
// can.
func Probe(name string, local netip.Addr) (Device, error) {
	all, err := verbs.Devices()
	if err != nil {
		return Device{}, fmt.Errorf("rdma: %w: %w", ErrNoDevice, err)
	}
	return choose(all, name, local)
}

func choose(all []verbs.DeviceInfo, name string, local netip.Addr) (Device, error) {
	if len(all) == 0 {
		return Device{}, fmt.Errorf("rdma: %w: this machine has none that its kernel knows; see dsmd doctor", ErrNoDevice)
	}
	var usable []Device
	var reasons error
	for _, info := range all {
		if name != "" && info.Name != name {
			continue
		}
		d, err := use(info)
		if err != nil {
			reasons = errors.Join(reasons, err)
			continue
		}
		usable = append(usable, d)
	}
	switch {
	case len(usable) > 0:
	case reasons != nil:
		return Device{}, fmt.Errorf("rdma: %w: %w", ErrNoDevice, reasons)
	default:
		return Device{}, fmt.Errorf("rdma: %w: there is none of the name %q; see dsmd doctor", ErrNoDevice, name)
	}
	for _, d := range usable {
		for _, g := range d.Port.GIDs {
			if local.IsValid() && g.Addr.Unmap() == local.Unmap() {
				d.GID = g
				return d, nil
			}
		}
	}
	return usable[0], nil
}

// use is what would be used of a device, or why it cannot be used.
func use(info verbs.DeviceInfo) (Device, error) {
	port, gid, ok := info.UsablePort()
	switch {
	case !ok:
		return Device{}, fmt.Errorf("device %s has no active port with an address (link-local ones of IPv6 do not count on Ethernet)", info.Name)
	case info.Limits.MaxSRQs == 0:
		return Device{}, fmt.Errorf("device %s has no shared receive queues", info.Name)
	}
	return Device{Info: info, Port: port, GID: gid}, nil
}
