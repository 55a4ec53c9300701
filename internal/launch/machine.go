package launch

import (
	"fmt"
	"syscall"
)

// role tells the children of a job apart.
type role int

const (
	program role = iota
	daemon
)

// childID names a child of a job on all machines.
type childID struct {
	Role  role `json:"role"`
	Index int  `json:"index"` // rank of a program, node of a daemon
}

func (id childID) String() string {
	if id.Role == daemon {
		return fmt.Sprintf("the daemon of node %d", id.Index)
	}
	return fmt.Sprintf("rank %d", id.Index)
}

// machine is where children of a job run: this machine, or one at the other end of a connection.
// The supervisor decides, and a machine carries out: every decision is made in one place, whatever
// the number of machines.
//
// One goroutine calls the methods, in this order: open, start, any of the next six, finish. No
// method waits; what comes of it is reported as events, to where the machine's maker said. The
// reports of a machine come in order.
type machine interface {
	// open makes the listening sockets of the machine's nodes. Reported: opened, or failed.
	open(openOrder)
	// start starts daemons and programs. It takes over the input, which is that of rank 0 if that
	// is among them. Reported for each child: ended and then reaped; for those that could not be
	// started, failed once and reaped each.
	start(startOrder, input)
	// signal sends a signal to a child's whole process group, if it still exists.
	signal(childID, syscall.Signal)
	// ask looks for a daemon that is about to end. Reported: suspected.
	ask()
	// halt stops all daemons, with SIGSTOP, as far as that can be done soon. Reported: halted.
	halt()
	// mourn tells the machine's daemons that a child, of whichever machine, is lost. Preconditions:
	// they take news.
	mourn(childID)
	// hurry gives nothing time any more: what the leader of a process group leaves behind is killed
	// with it.
	hurry()
	// abandon ends the connection to a machine that does not answer. What it runs ends when it
	// notices that. Reported: lost and finished. Nothing is called after it.
	abandon()
	// finish ends what the programs left behind. Preconditions: all children are reaped, or none
	// was started. Reported: finished, when all output has been passed on too. It is the last
	// report.
	finish()
}

// openOrder says what a machine has to know to prepare for a job.
type openOrder struct {
	Token   string `json:"token"`   // random; names the cluster and the sockets
	Nodes   []int  `json:"nodes"`   // that will run on the machine
	Program []byte `json:"program"` // looked for as a shell would
	// Dir is where to look, and to run; "": where the machine's process is.
	Dir []byte `json:"dir,omitempty"`
	// Data: address of the nodes' listening sockets: HOST:0, or chooseAddress.
	Data string `json:"data"`
	// of chooseAddress: the network, as a prefix; "": that of the connection
	Network string   `json:"network,omitempty"`
	Metrics []string `json:"metrics,omitempty"` // address for each of Nodes, or none at all
}

// chooseAddress stands for the address at which the launcher has reached a machine.
const chooseAddress = ""

// startOrder says what to start on a machine. The daemons come first.
type startOrder struct {
	Children []childOrder `json:"children"`
	// Command: the command line of the programs: once, however many there are.
	Command words `json:"command"`
	// Env is the programs' environment, NAME=VALUE, added to the machine's own.
	Env words `json:"env,omitempty"`
	// Bind: each of the machine's nodes has processors of its own.
	Bind bool `json:"bind,omitempty"`
}

// childOrder is one child to start.
type childOrder struct {
	ID     childID `json:"id"`
	Prefix string  `json:"prefix"`         // of each line of its output
	Args   words   `json:"args,omitempty"` // of a daemon, behind Commands.Daemon
	// Node: whose sockets a daemon gets, and to whose daemon a program attaches.
	Node  int          `json:"node"`
	Env   words        `json:"env,omitempty"`
	Files []secretFile `json:"files,omitempty"`
	Input bool         `json:"input,omitempty"` // it gets the job's standard input
	News  bool         `json:"news,omitempty"`  // a daemon is told who is lost
}

// secretFile is the value of a flag that names a file, but a file that is never on a disk.
type secretFile struct {
	Flag    string `json:"flag"`
	Content []byte `json:"content"`
}

// eventKind says what an event reports.
type eventKind int

const (
	opened eventKind = iota // Addresses says where its nodes listen
	// Err says why the job cannot be run there, Status what a shell would answer
	failed
	childEnded  // Exit says how; the process group may still be there
	childReaped // the process group is gone
	suspected   // Child and Exit are a daemon that is about to end, if Found
	halted      // all daemons stand still, or those that can
	// nothing of the job is left but Left processes, and all output was passed on
	finished
	outputLost // standard output or error cannot be written any more: Err and Status say why
	// the machine is not reached any more: Err. Only outputLost and finished may come after it
	lost
	// an agent ends because it cannot go on: Err. It goes no further than remote, which reports
	// lost
	parted
)

// event is a report from a machine.
type event struct {
	from machine // nil: from none

	Kind      eventKind `json:"kind"`
	Child     childID   `json:"child"`
	Exit      exit      `json:"exit"`
	Found     bool      `json:"found,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`
	Name      string    `json:"-"` // of a machine that has come by itself
	Left      int       `json:"left,omitempty"`
	Status    int       `json:"status,omitempty"`
	Err       string    `json:"err,omitempty"`
	Says      []byte    `json:"says,omitempty"` // a line of a program about itself
}

// eventRoom is how many events there can be at most, so that nobody ever waits to report one. Each
// of the children ends, is reaped, and loses the job's two outputs once; each machine makes one of
// every other report, loses the two outputs once, and has one more for a start that failed.
func eventRoom(machines, children int) int { return 4*children + 9*machines }
