//go:build rdma && cgo

package fabric

import (
	"errors"
	"fmt"
	"net/netip"

	"dsmd/transport"
	"dsmd/transport/rdma"
	"dsmd/transport/tcp"
)

// perftestEnds says what perftest's programs must know of the two devices.
func (s *Session) perftestEnds() (ends [2]perftestEnd, err error) {
	if s.local == nil {
		return ends, fmt.Errorf("%w: it is run only with both ends on this machine", ErrPerftest)
	}
	for i, name := range []string{s.maker.device, s.peerDevice} {
		info, err := choose(name, i)
		if err != nil {
			return ends, err
		}
		_, gid, _ := info.UsablePort()
		ends[i] = perftestEnd{info.Name, gid.Index}
	}
	return ends, nil
}

// rdmaPair makes two nodes in this process that are connected by RDMA, from this end's device to
// the other's.
func (s *Session) rdmaPair(pageBytes int) (p pair, err error) {
	var devices [2]rdma.Device
	for i, name := range []string{s.maker.device, s.peerDevice} {
		info, err := choose(name, i)
		if err != nil {
			return p, err
		}
		if devices[i], err = rdma.Probe(info.Name, netip.Addr{}); err != nil {
			return p, err
		}
	}
	bases, err := connectTCP(tcp.Config{PageBytes: pageBytes, Hello: rdma.Hello})
	if err != nil {
		return p, err
	}
	first, err := rdma.New(rdma.Config{Base: bases[0], Device: devices[0], MaxQueuedBytes: tcp.DefaultMaxQueuedBytes, Required: true})
	if err != nil {
		return p, errors.Join(err, bases[0].Close(), bases[1].Close())
	}
	second, err := rdma.New(rdma.Config{Base: bases[1], Device: devices[1], MaxQueuedBytes: tcp.DefaultMaxQueuedBytes, Required: true})
	if err != nil {
		return p, errors.Join(err, first.Close(), bases[1].Close())
	}
	check := func(pages int) error {
		if n := first.LinkStats().PayloadsReceived; n != uint64(pages) {
			return fmt.Errorf("of %d pages that were fetched %d came by RDMA", pages, n)
		}
		return nil
	}
	return pair{[2]transport.Transport{first, second}, check}, nil
}
