package protocol

// Limits on what an engine remembers for programs and peers. Pages need none: a region has so many
// and no more. Everything else that somebody can make up (names, tickets) is bounded here, far
// above what jobs use, so that neither a broken program nor a peer that lies makes a daemon eat the
// machine's memory.
const (
	// MaxLocks bounds the locks that a node knows, as user or home: 200 MB. More are refused: a
	// program is told StatusNoSpace, a peer is parted with.
	MaxLocks = 1 << 22
	// MaxHeld bounds the locks that one program holds or waits for, each as often as it does. More
	// are answered by StatusNoSpace.
	MaxHeld = 1 << 18
	// MaxPending bounds the objects with something under way for which a home takes requests: 300
	// MB. A peer that wants more is parted with.
	MaxPending = 1 << 20
	// MaxArrivals bounds the arrivals that wait at one home of barriers: 280 MB if all bring
	// MaxContribution bytes. More are answered by StatusNoSpace. It bounds too what one member says
	// about barriers while this node recovers; a member that says more is parted with.
	MaxArrivals = 1 << 18
	// MaxNames bounds the names of allocations, those that are being freed included (but see runs):
	// 300 MB if all have the longest signature. More are answered by StatusNoSpace. It bounds too
	// what one member asks about names while this node recovers; a member that asks more is parted
	// with.
	MaxNames = 1 << 16
	// MaxUses bounds the uses of names, each by a program. More are answered by StatusNoSpace.
	MaxUses = 1 << 20
	// MaxPast bounds what a node that comes is told of what may be lost, and of who came when, in
	// bytes: the runs of MaxNames names, each with the two views of a cluster of hundred nodes, or
	// of 16,000 in the largest. The member that says more is parted with.
	MaxPast = 64 << 20
)

// limits are the constants above, but in tests, which reach them sooner.
type limits struct{ locks, held, pending, arrivals, names, uses, past int }

// runs bounds the runs of memory that are bound or being freed: as many as there are names, and
// after a loss what lies between these.
func (l *limits) runs() int { return 2*l.names + 1 }

var allLimits = limits{MaxLocks, MaxHeld, MaxPending, MaxArrivals, MaxNames, MaxUses, MaxPast}

const (
	// maxNameEntry and maxReportEntry are more than the longest entries of a report have, in bytes:
	// a name with its signature, or two lists of all nodes.
	maxNameEntry   = MaxName + MaxSignature + 64
	maxReportEntry = max(maxNameEntry, 4*MaxNodes+64)
	// reportRest is for what is said once, in bytes.
	reportRest = 64
	runBytes   = 16
)

// pieces is how many messages of at most MaxPayload bytes there can be with so many bytes in all,
// in entries of at most maxReportEntry.
func pieces(bytes int) int { return bytes/(MaxPayload-maxReportEntry) + 1 }

var _ = [MaxPayload - 2*maxReportEntry]struct{}{} // a message has room for several
