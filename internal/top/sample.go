package top

import (
	"time"

	"github.com/prometheus/procfs"

	"dsmd/internal/attach"
)

// Sample is what one daemon has said at one moment.
type Sample struct {
	Socket string
	// Cluster is what the daemons of one cluster have in common: the number of a job, or a socket.
	Cluster string
	Error   string // why it has not answered; then all below is empty
	At      time.Time

	Node, Nodes uint32
	PageBytes   uint32
	Counters    map[string]uint64
	Programs    attach.Programs
	Waits       attach.Waits
	// Used is the processor time of the programs' processes, as far as this machine knows them.
	Used map[uint32]time.Duration
}

// ReadUsed adds the processor time of the programs to a sample.
func (s *Sample) ReadUsed() {
	s.Used = map[uint32]time.Duration{}
	for _, p := range s.Programs.Attached {
		if used, ok := processorTime(int(p.PID)); ok {
			s.Used[p.PID] = used
		}
	}
}

// processorTime is what a process has used, unless it has ended.
func processorTime(pid int) (used time.Duration, ok bool) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, false
	}
	stat, err := process.Stat()
	return time.Duration(stat.UTime+stat.STime) * tick, err == nil
}

// tick is the unit of those times: USER_HZ, which is 100 wherever Linux runs Go.
const tick = time.Second / 100
