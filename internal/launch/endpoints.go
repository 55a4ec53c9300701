package launch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"
)

// endpoints are the listening sockets of a machine's nodes.
type endpoints struct {
	token     string
	nodes     []int
	addresses []string // at which the nodes listen for peers
	listening []nodeSockets
}

// nodeSockets are the listening sockets of one node.
type nodeSockets struct {
	data, socket *os.File
	metrics      *os.File // nil if there is none
}

// newEndpoints opens the sockets. Preconditions: order.Data is an address.
func newEndpoints(order openOrder) (_ *endpoints, err error) {
	e := &endpoints{token: order.Token, nodes: order.Nodes}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if err := tryLoopback(order); err != nil {
		return nil, err
	}
	for i, node := range order.Nodes {
		var at nodeSockets
		var addr string
		if at.data, addr, err = listenTCP(order.Data); err != nil {
			return nil, fmt.Errorf("launch: a port for node %d: %w", node, explainLimit(err))
		}
		e.listening, e.addresses = append(e.listening, at), append(e.addresses, addr)
		if e.listening[i].socket, err = listenUnix(e.socket(node)); err != nil {
			return nil, fmt.Errorf("launch: a socket for the programs of node %d: %w", node, explainLimit(err))
		}
		if len(order.Metrics) == 0 {
			continue
		}
		if e.listening[i].metrics, _, err = listenTCP(order.Metrics[i]); err != nil {
			return nil, fmt.Errorf("launch: the metrics of node %d: %w", node, explainLimit(err))
		}
	}
	return e, nil
}

// of are the sockets of a node. Preconditions: the node is one of the machine's.
func (e *endpoints) of(node int) nodeSockets { return e.listening[slices.Index(e.nodes, node)] }

// socket is the name of a node's Unix socket.
func (e *endpoints) socket(node int) string {
	return SocketPrefix + e.token + "-" + strconv.Itoa(node)
}

// sockets are the names of all.
func (e *endpoints) sockets() (names []string) {
	for _, node := range e.nodes {
		names = append(names, e.socket(node))
	}
	return names
}

// close may be called twice.
func (e *endpoints) close() {
	for _, at := range e.listening {
		// A nil file says that it is invalid, and a closed one that it is closed.
		_ = at.data.Close()
		_ = at.socket.Close()
		_ = at.metrics.Close()
	}
}

// metricsAddresses completes Config.Metrics: one for each node, or none at all.
func metricsAddresses(addrs []string, nodes int) (list []string, err error) {
	if len(addrs) == 0 {
		return nil, nil
	}
	for i := range nodes {
		addr, err := metricsAddress(addrs, i)
		if err != nil {
			return nil, err
		}
		list = append(list, addr)
	}
	return list, nil
}

// metricsAddress is the address for node i (see Config.Metrics).
func metricsAddress(addrs []string, i int) (string, error) {
	if len(addrs) > 1 {
		return LoopbackUnlessSaid(addrs[i])
	}
	addr, err := LoopbackUnlessSaid(addrs[0])
	if err != nil {
		return "", err
	}
	host, portText, _ := net.SplitHostPort(addr)
	port, err := net.LookupPort("tcp", portText)
	if err != nil {
		return "", fmt.Errorf("launch: metrics address %q: %w", addrs[0], err)
	}
	if port == 0 {
		return addr, nil
	}
	return net.JoinHostPort(host, strconv.Itoa(port+i)), nil
}

// LoopbackUnlessSaid completes an address that leaves out the host with the loopback address:
// metrics and profiles are for this machine unless somebody says otherwise, with a name, an address
// or 0.0.0.0.
func LoopbackUnlessSaid(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("launch: address %q: %w: write HOST:PORT or :PORT", addr, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// ListenTCP listens at an address that somebody has chosen, and says what to do if it cannot.
func ListenTCP(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	var unknown *net.DNSError // a name of a host or of a service
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w: choose another port, or end what listens there (`ss -ltnp` names it)", err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%w: ports below 1024 are for root: choose another", err)
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.As(err, &unknown):
		return nil, fmt.Errorf("%w: give HOST:PORT with an address of this machine, or :PORT", err)
	}
	return l, err
}

// chooseData is the address for a node's data: the one at which this machine was reached, or its
// address in a network.
func chooseData(reached, network string) (string, error) {
	if network == "" {
		if reached == "" {
			return "", errors.New("launch: the address by which this machine was reached is not known: name the network of the nodes with --data-network")
		}
		return net.JoinHostPort(reached, "0"), nil
	}
	within, err := netip.ParsePrefix(network)
	if err != nil {
		return "", fmt.Errorf("launch: --data-network: %w", err)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("launch: this machine's addresses: %w", err)
	}
	for _, a := range addrs {
		if own, err := netip.ParsePrefix(a.String()); err == nil && within.Contains(own.Addr()) {
			return net.JoinHostPort(own.Addr().String(), "0"), nil
		}
	}
	return "", fmt.Errorf("launch: --data-network %s: this machine has no address in it, only %v", network, addrs)
}

func listenTCP(addr string) (*os.File, string, error) {
	l, err := ListenTCP(addr)
	if err != nil {
		return nil, "", err
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	return f, l.Addr().String(), err
}

func listenUnix(name string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.File()
}

// inAFile is what to do with arguments and an environment that are too long.
const inAFile = "have the programs read in a file what is long"

// tryLoopback listens at the loopback interface and connects there, as the daemons of one machine
// do. Where that fails they would wait for each other for ever.
func tryLoopback(order openOrder) error {
	at, err := netip.ParseAddrPort(order.Data)
	if err != nil || !at.Addr().IsLoopback() {
		return nil
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(at.Addr(), 0).String())
	if err == nil {
		defer l.Close()
	}
	if err == nil && len(order.Nodes) > 1 {
		var c net.Conn
		if c, err = net.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("launch: the nodes of this machine cannot reach each other: %w", explainLoopback(explainLimit(err)))
	}
	return nil
}

// explainLoopback adds advice to an error about the loopback interface, which a new network
// namespace has without an address, and down.
func explainLoopback(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: the loopback interface has no such address: ip addr add 127.0.0.1/8 dev lo", err)
	case errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("%w: the loopback interface is down: ip link set lo up", err)
	}
	return err
}

// tryProc looks for /proc, by which this program starts itself as daemon and guard.
func tryProc() error {
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		return fmt.Errorf("launch: %w: dsmd needs /proc: mount -t proc proc /proc", err)
	}
	return nil
}

// explainLimit adds advice to an error about a limit of the kernel. Go raises the soft limit of
// descriptors to the hard one by itself.
func explainLimit(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE):
		var limit syscall.Rlimit
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
		return fmt.Errorf("%w: this process may have %d, and a job takes about 8 for each node: raise the hard limit (ulimit -Hn)", err, limit.Max)
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("%w: this user, or its control group, may have no more processes and threads: raise the limit (ulimit -u, pids.max)", err)
	case errors.Is(err, syscall.E2BIG):
		return fmt.Errorf("%w: its command line and environment are more than the kernel takes (ulimit -s bounds both): %s", err, inAFile)
	case errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%w: raise fs.file-max of this machine (sysctl)", err)
	default:
		return err
	}
}
