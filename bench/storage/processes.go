package storage

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// clock reads a clock, in nanoseconds.
func clock(id int32) (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(id, &now); err != nil {
		return 0, fmt.Errorf("reading clock %d: %w", id, err)
	}
	return now.Nano(), nil
}

// processorTime is what processes have used of processors, in nanoseconds: in user mode and in the
// kernel, by all of their threads, also those that have ended. The clock of a process is exact,
// where /proc/PID/stat counts ticks of 10 ms, and anybody may read it.
func processorTime(pids []int) (nanos int64, err error) {
	for _, pid := range pids {
		// Linux's clock_getcpuclockid(3): MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
		const cpuclockSched = 2
		n, err := clock(int32(^pid<<3 | cpuclockSched))
		if err != nil {
			return 0, fmt.Errorf("the processor time of process %d: %w", pid, err)
		}
		nanos += n
	}
	return nanos, nil
}

// Daemon is the id of the process that is the daemon of this rank's node. It was started by the
// process that started this one, with the number of the node as an argument.
func Daemon(rank int) (int, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	for _, p := range all {
		// What has ended meanwhile is not it.
		if stat, err := p.Stat(); err != nil || stat.PPID != os.Getppid() {
			continue
		}
		args, _ := p.CmdLine()
		if i := slices.Index(args, "--id"); slices.Contains(args, "serve") && i >= 0 && i+1 < len(args) && args[i+1] == strconv.Itoa(rank) {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("found no daemon of node %d among the processes that process %d has started", rank, os.Getppid())
}

// Cores parts the processors that this process may use between the sides. With only one there is
// nothing to part, and ok is false.
func Cores() (storage, reader, all unix.CPUSet, ok bool, err error) {
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return storage, reader, all, false, fmt.Errorf("asking which processors this process may use: %w", err)
	}
	count := all.Count()
	for cpu, seen := 0, 0; seen < count; cpu++ {
		switch {
		case !all.IsSet(cpu):
			continue
		case seen < count/2:
			storage.Set(cpu)
		default:
			reader.Set(cpu)
		}
		seen++
	}
	return storage, reader, all, count > 1, nil
}

// bindings is how often threads are bound, and bindingPause how long lies between two times.
const (
	bindings     = 2
	bindingPause = time.Millisecond
)

// Bind keeps the threads that processes have, and those that these make, on processors. A daemon's
// thread that changes its core (netio.ChangeCore) lets itself use all again that it could use
// before, so it may get away once.
func Bind(pids []int, cpus *unix.CPUSet) error {
	for range bindings {
		for _, pid := range pids {
			if err := bind(pid, cpus); err != nil {
				return fmt.Errorf("binding process %d: %w", pid, err)
			}
		}
		time.Sleep(bindingPause)
	}
	return nil
}

func bind(pid int, cpus *unix.CPUSet) error {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, cpus); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
