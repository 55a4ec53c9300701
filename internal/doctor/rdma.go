package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// rdmaName is the finding that decides whether pages can move by RDMA.
	rdmaName = "RDMA"

	// wantLocked is how much memory the transport's pool of registered slots may take with its
	// default options.
	wantLocked = 64 << 20

	// maxGIDs is how many addresses of a port are listed. Devices with many virtual functions have
	// hundreds.
	maxGIDs = 4

	// sysRDMA has a folder for each device; Documentation/ABI/stable/sysfs-class-infiniband says
	// what is in it.
	sysRDMA = "sys/class/infiniband"
)

// tryDevice opens a device file as libibverbs does.
func tryDevice(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// rdmaFindings looks at RDMA devices through the kernel's own description of them, so that a build
// without RDMA can say what another build would find. try opens a device file.
func rdmaFindings(files fs.FS, try func(string) error) []Finding {
	whole := Finding{Name: rdmaName, Verdict: Missing, Consequence: "pages move by TCP"}
	ports, err := rdmaPorts(files)
	if err != nil {
		whole.Verdict, whole.Detail = Unknown, err.Error()
		return []Finding{whole}
	}
	if len(ports) == 0 {
		whole.Detail = "no RDMA device"
		if !rdmaBuilt {
			whole.Detail += ", and this build could not use one (it was made without -tags rdma)"
		}
		whole.Remedy = "the driver of a network card that has RDMA; or, to try it, in software: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
		return []Finding{whole}
	}
	details := []Finding{deviceFiles(files, try), lockedMemory(files)}
	var usable []string
	for _, p := range ports {
		f := p.finding()
		if details = append(details, f); f.Verdict == OK {
			usable = append(usable, p.String())
		}
	}
	switch {
	case !rdmaBuilt:
		whole.Detail = fmt.Sprintf("%s, but this build has no RDMA", strings.Join(names(ports), ", "))
		whole.Remedy = "apt-get install libibverbs-dev librdmacm-dev, and build with cgo and -tags rdma"
	case details[0].Verdict != OK || details[1].Verdict != OK || len(usable) == 0:
		whole.Detail = fmt.Sprintf("%s, but not usable as it is", strings.Join(names(ports), ", "))
		whole.Remedy = "see below"
	default:
		whole = Finding{Name: rdmaName, Verdict: OK, Detail: "by " + strings.Join(usable, ", ")}
	}
	return append([]Finding{whole}, details...)
}

// An rdmaPort is one port of a device, as the kernel describes it.
type rdmaPort struct {
	device, port string
	state        string // ACTIVE, DOWN, INIT, ARMED, ACTIVE_DEFER
	physical     string // LinkUp, Disabled, Polling and so on
	linkLayer    string // InfiniBand or Ethernet
	rate         string
	gids         []gid
	network      string // the network device whose port this is, if it is one
	unreadable   string // why it could not be looked at; empty if it could
}

// A gid is an address that peers can name this port by.
type gid struct {
	index   int
	address netip.Addr
	kind    string // "RoCE v2", "IB/RoCE v1", or empty
	network string
}

// String is the name for people.
func (p rdmaPort) String() string { return p.device + " port " + p.port }

func names(ports []rdmaPort) []string {
	var all []string
	for _, p := range ports {
		all = append(all, p.String())
	}
	return all
}

func rdmaPorts(files fs.FS) ([]rdmaPort, error) {
	devices, err := fs.ReadDir(files, sysRDMA)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ports []rdmaPort
	for _, d := range devices {
		at := path.Join(sysRDMA, d.Name(), "ports")
		numbers, err := fs.ReadDir(files, at)
		if err != nil {
			ports = append(ports, rdmaPort{device: d.Name(), port: "?", unreadable: err.Error()})
			continue
		}
		for _, n := range numbers {
			ports = append(ports, readPort(files, d.Name(), n.Name(), path.Join(at, n.Name())))
		}
	}
	return ports, nil
}

func readPort(files fs.FS, device, port, at string) rdmaPort {
	p := rdmaPort{device: device, port: port}
	var errs []error
	read := func(name string) string {
		text, err := readText(files, path.Join(at, name))
		errs = append(errs, err)
		return text
	}
	p.state, p.physical = afterColon(read("state")), afterColon(read("phys_state"))
	p.linkLayer, p.rate = read("link_layer"), read("rate")
	if err := errors.Join(errs...); err != nil {
		p.unreadable = err.Error()
	}
	p.gids = readGIDs(files, at)
	p.network, _ = readText(files, path.Join(at, "gid_attrs/ndevs/0"))
	return p
}

// afterColon is the word in "4: ACTIVE".
func afterColon(text string) string {
	_, word, ok := strings.Cut(text, ":")
	if !ok {
		return text
	}
	return strings.TrimSpace(word)
}

// readGIDs lists the addresses of a port. Places of the table that are empty are zero, and their
// attributes can't be read.
func readGIDs(files fs.FS, at string) []gid {
	entries, err := fs.ReadDir(files, path.Join(at, "gids"))
	if err != nil {
		return nil
	}
	var all []gid
	for _, e := range entries {
		index, errIndex := strconv.Atoi(e.Name())
		text, errRead := readText(files, path.Join(at, "gids", e.Name()))
		address, errParse := netip.ParseAddr(text)
		if errors.Join(errIndex, errRead, errParse) != nil || address.IsUnspecified() {
			continue
		}
		g := gid{index: index, address: address.Unmap()}
		g.kind, _ = readText(files, path.Join(at, "gid_attrs/types", e.Name()))
		g.network, _ = readText(files, path.Join(at, "gid_attrs/ndevs", e.Name()))
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b gid) int { return cmp.Compare(a.index, b.index) })
	return all
}

// String describes the address for people.
func (g gid) String() string {
	text := fmt.Sprintf("%d: %v", g.index, g.address)
	if more := strings.Join(strings.Fields(g.kind+" "+g.network), " "); more != "" {
		text += " (" + more + ")"
	}
	return text
}

// finding reports whether peers can reach this port.
func (p rdmaPort) finding() Finding {
	f := Finding{Name: p.String(), Verdict: Missing, Consequence: "pages do not move by this port"}
	if p.unreadable != "" {
		return Finding{Name: f.Name, Verdict: Unknown, Detail: p.unreadable}
	}
	f.Detail = fmt.Sprintf("%s (%s), %s, %s", strings.ToLower(p.state), p.physical, p.linkLayer, p.rate)
	network := cmp.Or(p.network, "the network device below it")
	ethernet := p.linkLayer == "Ethernet"
	switch {
	case p.state == "INIT" && !ethernet:
		f.Remedy = "a subnet manager on this fabric: systemctl start opensm, on one machine or the switch"
	case p.state != "ACTIVE" && ethernet:
		f.Remedy = fmt.Sprintf("ip link set %s up, and a cable with a live end", network)
	case p.state != "ACTIVE":
		f.Remedy = "a cable with a live end; ibstat says more of the link"
	case !p.addressed():
		f.Detail += "; no address"
		f.Remedy = fmt.Sprintf("an IP address, by which peers are found: ip addr add ADDRESS/LENGTH dev %s", network)
	default:
		return Finding{Name: f.Name, Verdict: OK, Detail: f.Detail + "; GIDs " + listed(p.gids)}
	}
	return f
}

// addressed reports whether peers can find the port: on Ethernet by an IP address, on InfiniBand by
// the port's own.
func (p rdmaPort) addressed() bool {
	if p.linkLayer != "Ethernet" {
		return len(p.gids) > 0
	}
	return slices.ContainsFunc(p.gids, func(g gid) bool { return g.address.Is4In6() || !g.address.IsLinkLocalUnicast() })
}

func listed(gids []gid) string {
	var all []string
	for _, g := range gids[:min(len(gids), maxGIDs)] {
		all = append(all, g.String())
	}
	text := strings.Join(all, ", ")
	if more := len(gids) - maxGIDs; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// deviceFiles tries what libibverbs and librdmacm open. The names of uverbs devices are those in
// sysfs.
func deviceFiles(files fs.FS, try func(string) error) Finding {
	f := Finding{Name: "RDMA device files", Verdict: OK}
	tried := []string{"/dev/infiniband/rdma_cm"}
	devices, _ := fs.ReadDir(files, "sys/class/infiniband_verbs")
	for _, d := range devices {
		if strings.HasPrefix(d.Name(), "uverbs") { // abi_version lies there too
			tried = append(tried, "/dev/infiniband/"+d.Name())
		}
	}
	if len(tried) == 1 {
		f.Verdict, f.Detail = Missing, "the kernel offers no verbs to programs"
		f.Consequence, f.Remedy = "programs cannot use RDMA devices", "modprobe ib_uverbs"
		return f
	}
	f.Detail = strings.Join(tried, ", ")
	for _, name := range tried {
		err := try(name)
		if err == nil {
			continue
		}
		f.Verdict, f.Detail, f.Consequence = Missing, err.Error(), "programs cannot use RDMA devices"
		switch {
		case errors.Is(err, fs.ErrPermission):
			f.Remedy = "membership in the group of " + name + " (often rdma), or chmod a+rw " + name
		case name == tried[0]:
			f.Remedy = "modprobe rdma_ucm; in a container: --device /dev/infiniband"
		default:
			f.Remedy = "modprobe ib_uverbs; in a container: --device /dev/infiniband"
		}
		return f
	}
	return f
}

// capIPCLock is the number of the capability with which the limit of locked memory does not bind,
// capabilities(7).
const capIPCLock = 14

// lockedMemory looks at how much memory may be registered: all that is, is locked.
func lockedMemory(files fs.FS) Finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return Finding{Name: lockedName, Verdict: Unknown, Detail: err.Error()}
	}
	return lockedWithin(limit, hasCapability(files, capIPCLock))
}

const lockedName = "locked memory"

func lockedWithin(limit unix.Rlimit, privileged bool) Finding {
	f := Finding{Name: lockedName, Verdict: OK, Detail: "at most " + limitText(limit.Cur) + " (RLIMIT_MEMLOCK)"}
	if limit.Cur != limit.Max {
		f.Detail = fmt.Sprintf("at most %s (RLIMIT_MEMLOCK; ulimit -l may raise it to %s)", limitText(limit.Cur), limitText(limit.Max))
	}
	switch {
	case privileged:
		f.Detail += ", which does not bind who has CAP_IPC_LOCK"
	case limit.Cur < wantLocked:
		f.Verdict = Missing
		f.Consequence = fmt.Sprintf("the pool of registered slots, up to %d MiB, cannot be registered", wantLocked>>20)
		f.Remedy = "ulimit -l unlimited (memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, docker run --ulimit memlock=-1)"
	}
	return f
}

func limitText(bytes uint64) string {
	if bytes == unix.RLIM_INFINITY {
		return "any amount"
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

// hasCapability reports whether this process has a capability; not, if that can't be read.
func hasCapability(files fs.FS, number int) bool {
	text, _ := readText(files, "proc/self/status")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && set>>number&1 == 1
		}
	}
	return false
}
