package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"dsmd/internal/attach"
	"dsmd/internal/certs"
	"dsmd/internal/launch"
	"dsmd/internal/runstats"
	"dsmd/internal/settings"
)

// askTimeout bounds the conversation with a daemon. One that takes longer is stuck, which is what
// the user wants to know.
var askTimeout = 3 * time.Second

// daemonStatus is what one daemon says of itself. All text is printable, because the daemon may be
// anybody's.
type daemonStatus struct {
	Socket string `json:"socket"`
	// Error: if it did not answer; then all below is empty.
	Error       string            `json:"error,omitempty"`
	Node        uint32            `json:"node"`
	Nodes       uint32            `json:"nodes"`
	Ranks       uint32            `json:"ranks"`
	Trap        string            `json:"trap"`
	Transport   string            `json:"transport"`
	Priority    string            `json:"priority"`
	Reactors    int               `json:"reactors"`
	RegionBytes uint64            `json:"region_bytes"`
	PageBytes   uint32            `json:"page_bytes"`
	Counters    map[string]uint64 `json:"counters"` // by name, as in the metrics
	programsStatus
	usageStatus

	foreign bool // it belongs to another user, and would not answer
}

func newStatus() *cobra.Command {
	var (
		socket string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the daemons on this machine are doing",
		Long: `Asks the daemons on this machine for their counters, the programs that are attached, and how much
of each allocation their nodes have: that at --socket, or else those of all jobs that run here
("dsmd run"), job by job, and the one at the default socket. One that serves at another socket is
not found without --socket. Those of other users answer only root, and are left out. A daemon that
does not answer, because its job is ending or it is of another version, is named on standard error,
and the others are shown. The exit status is 1 if there is no daemon, or none answers.

OWNED are pages of which the node is the owner, COPIES those that it has only for reading. SPILLED
are those of both that are not in memory, but in its spill file (--spill), or in the mapped file or
checkpoint from which they came. Of each node the largest allocations are shown.

A node without a quorum, whose programs wait because too few others are left or can be reached, is
named under the table. MEMBERS is then how many there were before.`,
		Example: `  dsmd status
  dsmd status --json | jq '.[].counters.faults_read'
  dsmd status --json | jq '.[].allocations[] | {name, owned_bytes}'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := findDaemons(socket)
			if err != nil {
				return err
			}
			return status(cmd.OutOrStdout(), cmd.ErrOrStderr(), list, asJSON)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "the daemon's socket, a path or an abstract name (@NAME)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON, with all counters and allocations")
	return cmd
}

// askAll asks the daemons, all at once.
func askAll(sockets []string) []daemonStatus {
	list := make([]daemonStatus, len(sockets))
	var asking sync.WaitGroup
	for i, socket := range sockets {
		asking.Go(func() { list[i] = askOrExplain(socket, os.Geteuid()) })
	}
	asking.Wait()
	return list
}

func errNoDaemon() error {
	return fmt.Errorf("no daemon of yours serves at %s; if one %s; else start one with \"dsmd serve\", or a job with \"dsmd run\"", searched(), atAnother)
}

// searched is where daemons are found that no --socket names.
func searched() string {
	return fmt.Sprintf("the sockets of jobs (\"dsmd run\") or the default one, %s", settings.DefaultSocket())
}

// atAnother is how to reach a daemon that is not found there.
const atAnother = "serves at another socket, name that by --socket"

// status prints what daemons have said, and to warnings which of them gave no answer.
func status(w, warnings io.Writer, list []daemonStatus, asJSON bool) error {
	_, silent := answersOf(list, warnings)
	var err error
	switch {
	case asJSON && len(list) > 0:
		err = writeJSON(w, list)
	case silent == nil:
		err = printStatus(w, list)
	}
	return cmp.Or(err, silent)
}

// findSockets lists the sockets at which daemons of this machine listen, as far as they can be
// found.
func findSockets() ([]string, error) {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("looking for daemons: %w: name one with --socket", err)
	}
	sockets := listeningSockets(string(table))
	if _, err := os.Stat(settings.DefaultSocket()); err == nil {
		sockets = append(sockets, settings.DefaultSocket())
	}
	return sockets, nil
}

// listeningSockets picks the jobs' abstract sockets out of /proc/net/unix, in the order of jobs and
// nodes.
func listeningSockets(table string) (sockets []string) {
	// __SO_ACCEPTCON, in the column Flags; connections have the name of their listener too
	const accepting = 1 << 16
	for line := range strings.Lines(table) {
		// Num RefCount Protocol Flags Type St Inode Path
		fields := strings.Fields(line)
		if len(fields) != 8 || !strings.HasPrefix(fields[7], launch.SocketPrefix) {
			continue
		}
		if flags, err := strconv.ParseUint(fields[3], 16, 32); err == nil && flags&accepting != 0 {
			sockets = append(sockets, fields[7])
		}
	}
	// Shorter names first puts node 10 behind node 9; all jobs' tokens have the same length.
	slices.SortFunc(sockets, func(a, b string) int {
		jobA, _, _ := strings.Cut(strings.TrimPrefix(a, launch.SocketPrefix), "-")
		jobB, _, _ := strings.Cut(strings.TrimPrefix(b, launch.SocketPrefix), "-")
		return cmp.Or(strings.Compare(jobA, jobB), len(a)-len(b), strings.Compare(a, b))
	})
	return slices.Compact(sockets)
}

// askOrExplain asks on behalf of a user. It puts an error into the answer, so that one silent
// daemon does not hide the others.
func askOrExplain(socket string, user int) daemonStatus {
	ctx, cancel := answered(context.Background())
	defer cancel()
	d, err := ask(ctx, socket, user)
	if err == nil {
		return d
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return daemonStatus{Socket: certs.Printable(socket), Error: certs.Printable(err.Error()), foreign: errors.Is(err, errForeign)}
}

// answered is ctx for a daemon that is to answer. Its cause says why one may not.
func answered(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("no answer within %v: it waits for its peers, or is stuck", askTimeout))
}

// errForeign: the daemon is not asked, because it answers only root and the user who runs it.
var errForeign = errors.New("it belongs to another user")

// meetInTime is meet for who talks with a daemon for longer than it may take to answer at first.
func meetInTime(ctx context.Context, socket, command string) (*attach.Conn, attach.Welcome, error) {
	meeting, cancel := answered(ctx)
	defer cancel()
	c, welcome, err := meet(meeting, socket, os.Geteuid(), command)
	if err != nil && meeting.Err() != nil {
		err = context.Cause(meeting)
	}
	return c, welcome, err
}

// meet begins the conversation of an observer with a daemon: one that says Hello, as this command,
// but never passes a userfaultfd, so that it takes part in nothing. The conversation ends with ctx,
// or when the caller closes and discards the connection.
func meet(ctx context.Context, socket string, user int, command string) (_ *attach.Conn, welcome attach.Welcome, err error) {
	c, err := attach.Dial(ctx, socket)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		err = fmt.Errorf("%w: it has ended, or never ran, or serves at another socket, which --socket names; \"dsmd status\", without --socket, shows the daemons at %s", err, searched())
	}
	if err != nil {
		return nil, welcome, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer func() {
		stop()
		if err != nil {
			c.Discard()
			c.Close()
		}
	}()
	if owner, err := ownerOf(c); err != nil {
		return nil, welcome, err
	} else if user != 0 && user != owner {
		return nil, welcome, fmt.Errorf("%w (%d): ask as that user, or as root", errForeign, owner)
	}
	hello := attach.AppendHello(nil, &attach.Hello{Version: attach.Version, PID: uint32(os.Getpid()), Rank: attach.NoRank, Program: command})
	if err := c.Write(hello); err != nil {
		return nil, welcome, err
	}
	if welcome, err = expect(c, attach.KindWelcome, attach.DecodeWelcome); err != nil {
		return nil, welcome, err
	}
	if fd, err := c.TakeFD(); err == nil {
		_ = os.NewFile(uintptr(fd), "memory").Close() // none of our business
	}
	return c, welcome, nil
}

// ask asks a daemon for its counters, and how much of each allocation it has.
func ask(ctx context.Context, socket string, user int) (daemonStatus, error) {
	c, welcome, err := meet(ctx, socket, user, "dsmd status")
	if err != nil {
		return daemonStatus{}, err
	}
	defer c.Close()
	defer c.Discard()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	counters, err := call(c, attach.Call{Op: attach.OpStats, Ticket: 1}, attach.DecodeCounters)
	if err != nil {
		return daemonStatus{}, err
	}
	programs, err := call(c, attach.Call{Op: attach.OpPrograms, Ticket: 2}, attach.DecodePrograms)
	if err != nil {
		return daemonStatus{}, err
	}
	usage, err := call(c, attach.Call{Op: attach.OpUsage, Ticket: 3}, attach.DecodeUsage)
	if err != nil && ctx.Err() == nil { // a busy daemon may need more time to count than it has
		return daemonStatus{}, err
	}
	counted := err == nil
	_ = c.Write(attach.AppendBye(nil)) // a courtesy
	d := daemonStatus{
		Socket: certs.Printable(socket), Node: welcome.Node, Nodes: welcome.Nodes, Ranks: welcome.Size,
		Trap: certs.Printable(welcome.Trap), Transport: certs.Printable(welcome.Transport), Priority: certs.Printable(welcome.Priority), Reactors: int(welcome.Reactors),
		RegionBytes: welcome.RegionBytes, PageBytes: welcome.PageBytes, Counters: map[string]uint64{},
		programsStatus: newProgramsStatus(&programs),
	}
	if counted {
		d.usageStatus = newUsageStatus(&usage, uint64(welcome.PageBytes))
	}
	for _, counter := range counters {
		d.Counters[certs.Printable(counter.Name)] = counter.Value
	}
	return d, nil
}

// call makes a call, the only one that is open, and reads its answer.
func call[T any](c *attach.Conn, what attach.Call, decode func([]byte) (T, error)) (answer T, err error) {
	if err = c.Write(attach.AppendCall(nil, &what)); err != nil {
		return answer, err
	}
	reply, err := expect(c, attach.KindReply, attach.DecodeReply)
	if err != nil {
		return answer, err
	}
	return decode(reply.Payload)
}

// givePipe gives a daemon the end of a pipe to which one writes (OpFile), by the only call that is
// open. The caller closes the other end.
func givePipe(c *attach.Conn, ticket uint64) (from *os.File, number uint32, err error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, 0, err
	}
	err = c.Write(attach.AppendCall(nil, &attach.Call{Op: attach.OpFile, Ticket: ticket}), int(to.Fd()))
	to.Close()
	var file attach.Reply
	if err == nil {
		file, err = expect(c, attach.KindReply, attach.DecodeReply)
	}
	if err != nil {
		from.Close()
		return nil, 0, err
	}
	return from, file.Rank, nil
}

// ownerOf is the user who runs the daemon at the other end.
func ownerOf(c *attach.Conn) (user int, err error) {
	outer := c.Socket(func(fd int) {
		var uid uint32
		_, uid, err = attach.Peer(fd)
		user = int(uid)
	})
	return user, errors.Join(outer, err)
}

// expect reads a frame of the given kind.
func expect[T any](c *attach.Conn, kind attach.Kind, decode func([]byte) (T, error)) (T, error) {
	var none T
	f, err := c.ReadFrame()
	switch {
	case errors.Is(err, io.EOF):
		return none, fmt.Errorf("it closed the connection instead of sending %v", kind)
	case err != nil:
		return none, err
	case f.Kind == kind:
		return decode(f.Body)
	case f.Kind == attach.KindRefuse:
		refuse, err := attach.DecodeRefuse(f.Body)
		if err != nil {
			return none, err
		}
		return none, fmt.Errorf("it refuses: %s", refuse.Reason)
	case f.Kind == attach.KindLost:
		reason, err := attach.DecodeLost(f.Body)
		if err != nil {
			return none, err
		}
		return none, fmt.Errorf("its cluster is broken: %s", reason)
	default:
		return none, fmt.Errorf("it sent %v instead of %v", f.Kind, kind)
	}
}

// statusColumns are the counters in the table for people.
var statusColumns = []struct{ title, counter string }{
	{"EPOCH", "epoch"}, {"MEMBERS", "members"}, {"PROGRAMS", "programs"}, {"READ-FAULTS", "faults_read"}, {"WRITE-FAULTS", "faults_write"}, {"UPGRADES", "faults_upgrade"},
	{"COLD", "remote_faults_cold"}, {"RETAKEN", "remote_faults_retaken"}, {"LATE", "remote_faults_late"}, {"UNPREDICTED", "remote_faults_unpredicted"},
	{"PAGES-IN", "pages_received"}, {"PAGES-OUT", "pages_sent"}, {"MESSAGES", "messages_sent"}, {"PENDING", "pending_objects"},
}

// printStatus prints one cluster after the other, for people.
func printStatus(w io.Writer, list []daemonStatus) error {
	for i, cluster := range byCluster(list) {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := printCluster(w, cluster); err != nil {
			return err
		}
	}
	return nil
}

func printCluster(w io.Writer, list []daemonStatus) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "NODE\tPID\tAGE\tTRAP\tTRANSPORT\tPRIORITY\tREGION\tMEMORY\t")
	for _, c := range statusColumns {
		fmt.Fprint(t, c.title+"\t")
	}
	fmt.Fprintln(t, "  SOCKET")
	for _, d := range list {
		if d.Error != "" {
			fmt.Fprintf(t, "?\t?\t?\t?\t?\t?\t?\t?\t%s  %s\n", strings.Repeat("?\t", len(statusColumns)), d.Socket)
			continue
		}
		region := settings.Bytes(d.RegionBytes)
		fmt.Fprintf(t, "%d/%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t", d.Node, d.Nodes, d.PID, age(d.Age), d.Trap, d.Transport, d.Priority, region.String(), d.memory())
		for _, c := range statusColumns {
			fmt.Fprintf(t, "%d\t", d.Counters[c.counter])
		}
		fmt.Fprintf(t, "  %s\n", d.Socket)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := printNoQuorum(w, list); err != nil {
		return err
	}
	if err := printPrograms(w, list); err != nil {
		return err
	}
	if err := printUsage(w, list); err != nil {
		return err
	}
	return printContended(w, list)
}

// printNoQuorum names the daemons that grant nothing, and says what to do about it.
func printNoQuorum(w io.Writer, list []daemonStatus) error {
	for _, d := range list {
		if d.Counters["no_quorum"] == 0 {
			continue
		}
		const what = "node %d: it has no quorum: of the %d members it reaches too few, and its programs wait. If the others go on, end its programs and start its daemon anew with --rejoin; if nobody does, start all daemons anew without\n"
		if _, err := fmt.Fprintf(w, what, d.Node, d.Counters["members"]); err != nil {
			return err
		}
	}
	return nil
}

// memory is how much a daemon has for pages, of how much it may have.
func (d *daemonStatus) memory() string {
	size := func(counter string) string {
		return settings.Bytes(d.Counters[counter] * uint64(d.PageBytes)).String()
	}
	if d.Counters["pages_room"] == 0 {
		return "unlimited"
	}
	return size("pages") + " of " + size("pages_room")
}

// printContended names the allocations that are falsely shared, those of each daemon with the worst
// first.
func printContended(w io.Writer, list []daemonStatus) error {
	for _, d := range list {
		var names []string
		for counter := range d.Counters {
			name, ok := strings.CutPrefix(counter, attach.ContendedIn)
			x := runstats.Item{Count: d.Counters[attach.WaitsIn+name], Taken: d.Counters[counter]}
			if ok && x.FalselyShared() {
				names = append(names, name)
			}
		}
		contended := func(name string) uint64 { return d.Counters[attach.ContendedIn+name] }
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(cmp.Compare(contended(b), contended(a)), strings.Compare(a, b))
		})
		for _, name := range names {
			if _, err := fmt.Fprintf(w, "node %d: pages of %q were taken %d times by other nodes that write beside this one (false sharing)\n", d.Node, name, contended(name)); err != nil {
				return err
			}
		}
	}
	return nil
}
