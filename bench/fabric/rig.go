//go:build rdma && cgo

package fabric

import (
	"errors"
	"fmt"

	"dsmd/internal/verbs"
)

const (
	// areaBytes is the size of each of a rig's three areas: the largest message, and a page's
	// message behind it.
	areaBytes = MaxBytes + MaxControl
	// peerAccess is what the other end may do with a rig's memory.
	peerAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	// maxReads is how many reads may be outstanding on a connection, if the device allows as many.
	maxReads = 16
)

// rig is an opened RDMA device with memory that is registered once. The memory has three areas: the
// source of messages, the target of the other end's writes, which is also where reads go, and the
// inbox, where messages are received.
type rig struct {
	info   verbs.DeviceInfo
	port   verbs.PortInfo
	gid    verbs.GID
	dev    *verbs.Device
	pd     *verbs.PD
	memory *verbs.Memory
	mr     *verbs.MR
}

// Devices lists the devices that can be measured. Without one, the error wraps ErrNoRDMA.
func Devices() ([]verbs.DeviceInfo, error) {
	all, err := verbs.Devices()
	if err != nil {
		return nil, noRDMA(err)
	}
	var usable []verbs.DeviceInfo
	for _, d := range all {
		if _, _, ok := d.UsablePort(); ok && !d.IWARP {
			usable = append(usable, d)
		}
	}
	if len(usable) == 0 {
		return nil, noRDMA(fmt.Errorf("none of %d devices has an active port with an address (iWARP is not measured); `dsmd doctor` says what to do", len(all)))
	}
	return usable, nil
}

func noRDMA(why error) error { return fmt.Errorf("%w: %w", ErrNoRDMA, why) }

// choose returns the device of the given name or, without a name, the one with the given number or
// the last.
func choose(name string, prefer int) (verbs.DeviceInfo, error) {
	all, err := Devices()
	if err != nil {
		return verbs.DeviceInfo{}, err
	}
	if name == "" {
		return all[min(prefer, len(all)-1)], nil
	}
	var names []string
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return verbs.DeviceInfo{}, noRDMA(fmt.Errorf("no usable device is called %q; there are %v", name, names))
}

func openRig(name string, prefer int) (_ *rig, err error) {
	info, err := choose(name, prefer)
	if err != nil {
		return nil, err
	}
	r := &rig{info: info}
	r.port, r.gid, _ = info.UsablePort()
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.dev, err = verbs.Open(info.Name); err != nil {
		return nil, err
	}
	if r.pd, err = r.dev.NewPD(); err != nil {
		return nil, err
	}
	if r.memory, err = verbs.Map(3*areaBytes, true); err != nil {
		return nil, err
	}
	r.mr, err = r.pd.Register(r.memory.Bytes(), peerAccess)
	return r, err
}

func (r *rig) close() error {
	var errs []error
	if r.mr != nil {
		errs = append(errs, r.mr.Close())
	}
	if r.memory != nil {
		errs = append(errs, r.memory.Close())
	}
	if r.pd != nil {
		errs = append(errs, r.pd.Close())
	}
	if r.dev != nil {
		errs = append(errs, r.dev.Close())
	}
	return errors.Join(errs...)
}

// The areas, as bytes and as the device's addresses.
func (r *rig) source() []byte { return r.memory.Bytes()[:areaBytes] }
func (r *rig) target() []byte { return r.memory.Bytes()[areaBytes : 2*areaBytes] }
func (r *rig) inbox() []byte  { return r.memory.Bytes()[2*areaBytes:] }

func (r *rig) region() region {
	return region{Source: r.mr.Addr(), Target: r.mr.Addr() + areaBytes, Key: r.mr.RKey()}
}

// reads is how many reads may be outstanding.
func (r *rig) reads() int { return min(maxReads, r.info.Limits.MaxReadsPerQP) }
