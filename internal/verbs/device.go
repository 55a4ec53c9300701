//go:build rdma

package verbs

/*
#cgo LDFLAGS: -lrdmacm -libverbs
#include <stdlib.h>
#include "verbs.h"
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGIDs is how much of a device's address table is read. Tables have up to some hundred entries
// that are in use.
const maxGIDs = 1024

// Devices lists the RDMA devices of this machine that can be used. A kernel without RDMA has none,
// which is no error. The error says why, if there are devices and none can be used.
func Devices() ([]DeviceInfo, error) {
	names, err := deviceNames()
	if err != nil {
		return nil, err
	}
	var all []DeviceInfo
	var failed error
	for _, name := range names {
		info, err := describe(name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		all = append(all, info)
	}
	if len(all) == 0 {
		return nil, failed
	}
	return all, nil
}

func describe(name string) (DeviceInfo, error) {
	d, err := Open(name)
	if err != nil {
		return DeviceInfo{}, err
	}
	defer d.Close()
	return d.Info()
}

// withDevices calls f with the list of the machine's devices.
func withDevices(f func(list []*C.struct_ibv_device) error) error {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOENT) {
			return f(nil)
		}
		return fmt.Errorf("verbs: list the RDMA devices: %w", err)
	}
	defer C.ibv_free_device_list(list)
	return f(unsafe.Slice(list, int(n)))
}

func deviceNames() ([]string, error) {
	var names []string
	err := withDevices(func(list []*C.struct_ibv_device) error {
		for _, d := range list {
			names = append(names, C.GoString(C.ibv_get_device_name(d)))
		}
		return nil
	})
	return names, err
}

// Device is an opened device.
type Device struct {
	name  string
	iwarp bool
	ctx   *C.struct_ibv_context
}

// Open opens a device by its name. The error wraps ErrNoDevice if there is none of that name.
func Open(name string) (*Device, error) {
	var opened *Device
	err := withDevices(func(list []*C.struct_ibv_device) error {
		for _, d := range list {
			if C.GoString(C.ibv_get_device_name(d)) != name {
				continue
			}
			ctx, err := C.ibv_open_device(d)
			if ctx == nil {
				return fmt.Errorf("verbs: open device %s: %w; is /dev/infiniband accessible?", name, err)
			}
			opened = &Device{name: name, iwarp: d.transport_type == C.IBV_TRANSPORT_IWARP, ctx: ctx}
			return nil
		}
		return fmt.Errorf("verbs: open device %q: %w", name, ErrNoDevice)
	})
	if err != nil {
		return nil, err
	}
	if errno := C.dsmd_nonblock(opened.ctx.async_fd); errno != 0 {
		opened.Close()
		return nil, fmt.Errorf("verbs: device %s: %w", name, unix.Errno(errno))
	}
	return opened, nil
}

// Name is the device's name.
func (d *Device) Name() string { return d.name }

// Close closes the device. Everything made from it must be closed before.
func (d *Device) Close() error {
	if errno, _ := C.ibv_close_device(d.ctx); errno != 0 {
		return fmt.Errorf("verbs: close device %s: it is in use", d.name)
	}
	return nil
}

// Info asks the device for its limits, ports and addresses.
func (d *Device) Info() (DeviceInfo, error) {
	var attr C.struct_ibv_device_attr_ex
	if errno := C.ibv_query_device_ex(d.ctx, nil, &attr); errno != 0 {
		return DeviceInfo{}, fmt.Errorf("verbs: query device %s: %w", d.name, unix.Errno(errno))
	}
	a := &attr.orig_attr
	info := DeviceInfo{Name: d.name, Firmware: C.GoString(&a.fw_ver[0]), IWARP: d.iwarp, Limits: Limits{
		MaxQPs: int(a.max_qp), MaxWorkRequests: int(a.max_qp_wr), MaxSGE: int(a.max_sge),
		MaxCQs: int(a.max_cq), MaxCQEntries: int(a.max_cqe), MaxMRs: int(a.max_mr), MaxMRBytes: uint64(a.max_mr_size),
		MaxSRQs: int(a.max_srq), MaxSRQRequests: int(a.max_srq_wr), MaxReadsPerQP: min(int(a.max_qp_rd_atom), int(a.max_qp_init_rd_atom)),
		Atomics:        a.atomic_cap != C.IBV_ATOMIC_NONE,
		OnDemandPaging: attr.odp_caps.general_caps&C.IBV_ODP_SUPPORT != 0,
		MemoryWindows:  a.device_cap_flags&(C.IBV_DEVICE_MEM_WINDOW_TYPE_2A|C.IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0,
		PhysicalPorts:  int(a.phys_port_cnt), CompletionVectors: int(d.ctx.num_comp_vectors),
	}}
	gids, err := d.gids()
	if err != nil {
		return DeviceInfo{}, err
	}
	for number := 1; number <= info.Limits.PhysicalPorts; number++ {
		port, err := d.port(number)
		if err != nil {
			return DeviceInfo{}, err
		}
		port.GIDs = gids[number]
		info.Ports = append(info.Ports, port)
	}
	return info, nil
}

func (d *Device) port(number int) (PortInfo, error) {
	var attr C.struct_ibv_port_attr
	if errno := C.dsmd_query_port(d.ctx, C.uint8_t(number), &attr); errno != 0 {
		return PortInfo{}, fmt.Errorf("verbs: query port %d of device %s: %w", number, d.name, unix.Errno(errno))
	}
	p := PortInfo{Number: number, ActiveMTU: mtuBytes(attr.active_mtu), MaxMTU: mtuBytes(attr.max_mtu), LID: uint16(attr.lid),
		State: PortOther, Link: LinkUnknown}
	switch attr.state {
	case C.IBV_PORT_DOWN:
		p.State = PortDown
	case C.IBV_PORT_INIT:
		p.State = PortInit
	case C.IBV_PORT_ARMED:
		p.State = PortArmed
	case C.IBV_PORT_ACTIVE:
		p.State = PortActive
	}
	switch {
	case d.iwarp:
		p.Link = LinkIWARP
	case attr.link_layer == C.IBV_LINK_LAYER_ETHERNET:
		p.Link = LinkEthernet
	case attr.link_layer == C.IBV_LINK_LAYER_INFINIBAND || attr.link_layer == C.IBV_LINK_LAYER_UNSPECIFIED:
		p.Link = LinkInfiniBand
	}
	return p, nil
}

// gids reads the device's address table, by port.
func (d *Device) gids() (map[int][]GID, error) {
	entries := make([]C.struct_ibv_gid_entry, maxGIDs)
	n := int(C.dsmd_query_gids(d.ctx, &entries[0], maxGIDs))
	if n < 0 {
		return nil, fmt.Errorf("verbs: query the addresses of device %s: %w", d.name, unix.Errno(-n))
	}
	byPort := make(map[int][]GID)
	for _, e := range entries[:n] {
		g := GID{Index: int(e.gid_index), Addr: netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&e.gid)))}
		switch e.gid_type {
		case C.IBV_GID_TYPE_IB:
			g.Type = GIDInfiniBand
		case C.IBV_GID_TYPE_ROCE_V1:
			g.Type = GIDRoCEv1
		case C.IBV_GID_TYPE_ROCE_V2:
			g.Type = GIDRoCEv2
		}
		if e.ndev_ifindex != 0 {
			if i, err := net.InterfaceByIndex(int(e.ndev_ifindex)); err == nil {
				g.NetDev = i.Name
			}
		}
		byPort[int(e.port_num)] = append(byPort[int(e.port_num)], g)
	}
	return byPort, nil
}

func mtuBytes(mtu C.enum_ibv_mtu) int {
	if mtu < C.IBV_MTU_256 || mtu > C.IBV_MTU_4096 {
		return 0
	}
	return 128 << mtu
}

// mtuEnum is the inverse of mtuBytes, rounded down, and at least 256 bytes.
func mtuEnum(bytes int) C.enum_ibv_mtu {
	mtu := C.enum_ibv_mtu(C.IBV_MTU_256)
	for mtu < C.IBV_MTU_4096 && 256<<mtu <= bytes {
		mtu++
	}
	return mtu
}

// AsyncFD becomes readable when AsyncEvent has something.
func (d *Device) AsyncFD() int { return int(d.ctx.async_fd) }

// AsyncEvent says what has happened to a device apart from completions.
type AsyncEvent struct {
	Text string // the library's name of the event
	QPN  uint32 // the queue pair that it is about; 0 if it is about none
	// LastWQE: the queue pair has failed and takes no more receives of its SRQ.
	LastWQE bool
	// Port: the event is about a port, whose state may have changed.
	Port bool
	// Fatal: the device has failed, or a completion queue or a shared receive queue of it.
	Fatal bool
}

// AsyncEvent takes the next event, without waiting. ok is false if there is none.
func (d *Device) AsyncEvent() (e AsyncEvent, ok bool, err error) {
	var kind C.int
	var qpn C.uint32_t
	switch errno := unix.Errno(C.dsmd_get_async_event(d.ctx, &kind, &qpn)); errno {
	case 0:
	case unix.EAGAIN:
		return AsyncEvent{}, false, nil
	default:
		return AsyncEvent{}, false, fmt.Errorf("verbs: events of device %s: %w", d.name, errno)
	}
	e = AsyncEvent{Text: C.GoString(C.ibv_event_type_str(C.enum_ibv_event_type(kind))), QPN: uint32(qpn)}
	switch kind {
	case C.IBV_EVENT_QP_LAST_WQE_REACHED:
		e.LastWQE = true
	case C.IBV_EVENT_PORT_ACTIVE, C.IBV_EVENT_PORT_ERR, C.IBV_EVENT_GID_CHANGE, C.IBV_EVENT_LID_CHANGE:
		e.Port = true
	case C.IBV_EVENT_DEVICE_FATAL, C.IBV_EVENT_CQ_ERR, C.IBV_EVENT_SRQ_ERR:
		e.Fatal = true
	}
	return e, true, nil
}

func addressOf(port, gidIndex int, to Endpoint) C.struct_ibv_ah_attr {
	var attr C.struct_ibv_ah_attr
	attr.is_global = 1
	*(*[16]byte)(unsafe.Pointer(&attr.grh.dgid)) = to.GID.As16()
	attr.grh.sgid_index = C.uint8_t(gidIndex)
	attr.grh.hop_limit = 64
	attr.dlid = C.uint16_t(to.LID)
	attr.port_num = C.uint8_t(port)
	return attr
}

func closeError(what string, errno C.int) error {
	if errno != 0 {
		return fmt.Errorf("verbs: close %s: %w", what, unix.Errno(errno))
	}
	return nil
}

// sockaddr writes an address in the kernel's form.
func sockaddr(a netip.AddrPort, to *C.struct_sockaddr_storage) {
	*to = C.struct_sockaddr_storage{}
	b := unsafe.Slice((*byte)(unsafe.Pointer(to)), unsafe.Sizeof(*to))
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if addr := a.Addr().Unmap(); addr.Is4() {
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		ip := addr.As4()
		copy(b[4:], ip[:])
	} else {
		binary.NativeEndian.PutUint16(b, unix.AF_INET6)
		ip := addr.As16()
		copy(b[8:], ip[:])
	}
}
