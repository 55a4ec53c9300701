package top

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

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
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID)); err == nil {
			if used, ok := processorTime(text); ok {
				s.Used[p.PID] = used
			}
		}
	}
}

// tick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 wherever Linux runs Go.
const tick = time.Second / 100

// processorTime is utime and stime of a /proc/PID/stat, see proc_pid_stat(5).
func processorTime(stat []byte) (used time.Duration, ok bool) {
	const utime, stime = 14 - 3, 15 - 3 // behind the name, which may have blanks and parentheses
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= stime {
		return 0, false
	}
	for _, field := range fields[utime : stime+1] {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, false
		}
		used += time.Duration(ticks) * tick
	}
	return used, true
}
