package fabric

import "net"

// A maker makes the ends of one side. It belongs to one goroutine at a time.
type maker struct {
	// device is the name of the RDMA device, or empty: the usable one with the number prefer,
	// counted from 0, or the last.
	device string
	prefer int
	// remoteHost is where the other end is. It is empty on the serving end, which listens at
	// localHost.
	remoteHost, localHost string

	rig *rig // the RDMA device, when it has been opened
}

// at notes where the two ends of the control connection are.
func (m *maker) at(conn net.Conn, serves bool) error {
	address := conn.RemoteAddr().String()
	if serves {
		address = conn.LocalAddr().String()
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if serves {
		m.localHost = host
	} else {
		m.remoteHost = host
	}
	return nil
}

func (m *maker) make(spec Spec) (end, error) {
	if spec.Kind == TCP {
		return newTCPEnd(spec, m)
	}
	r, err := m.open()
	if err != nil {
		return nil, err
	}
	return r.newEnd(spec)
}

// open opens the RDMA device, or returns the opened one.
func (m *maker) open() (*rig, error) {
	if m.rig != nil {
		return m.rig, nil
	}
	r, err := openRig(m.device, m.prefer)
	if err != nil {
		return nil, err
	}
	m.rig = r
	return r, nil
}

func (m *maker) close() error {
	if m.rig == nil {
		return nil
	}
	err := m.rig.close()
	m.rig = nil
	return err
}
