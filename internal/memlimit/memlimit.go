// Package memlimit finds how much memory this process and its like can have: that of the machine,
// or of a control group that it is in, if that is less.
package memlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// Limit is how much memory there is, and who says so.
type Limit struct {
	Bytes uint64
	From  string // "the machine", or the file that has the limit of a control group
}

// noLimit is where the first version of control groups begins to mean that there is no limit.
const noLimit = 1 << 62

// ForPages is what a node takes of it for shared pages by itself, if so many nodes share it: three
// quarters, in whole pages. The rest is for programs, and for what a node does not count.
func (l Limit) ForPages(nodes int) uint64 {
	page := uint64(os.Getpagesize())
	return l.Bytes / 4 * 3 / uint64(nodes) / page * page
}

// Find finds the least limit that holds for this process.
func Find() (Limit, error) { return In(os.DirFS("/")) }

// In is Find where the root folder is another.
func In(root fs.FS) (Limit, error) {
	least, err := ofMachine(root)
	if err != nil {
		return Limit{}, fmt.Errorf("memlimit: %w", err)
	}
	eachGroup(root, func(mount, group string, second bool) {
		if second {
			least = ofGroups(root, least, mount, group, "memory.max")
		} else {
			least = ofGroups(root, least, mount, group, "memory.limit_in_bytes")
		}
	})
	return least, nil
}

// Kills is how many processes the kernel has killed because memory was wanted that there was not:
// in this process's control group, or, if that does not tell, on this machine.
func Kills() uint64 { return killsIn(os.DirFS("/")) }

func killsIn(root fs.FS) uint64 {
	kills, told := uint64(0), false
	eachGroup(root, func(mount, group string, second bool) {
		name := "memory.oom_control"
		if second {
			name = "memory.events"
		}
		if n, ok := field(root, path.Join(mount, group, name), "oom_kill "); ok {
			kills, told = kills+n, true
		}
	})
	if !told {
		kills, _ = field(root, "proc/vmstat", "oom_kill ")
	}
	return kills
}

// eachGroup calls f for the control groups that account this process's memory: where groups of that
// kind are mounted, which one it is, and whether it is of the second version.
func eachGroup(root fs.FS, f func(mount, group string, second bool)) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return // a kernel without control groups
	}
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path; the second version has no controllers there
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[1] == "":
			f("sys/fs/cgroup", parts[2], true)
		case strings.Contains(","+parts[1]+",", ",memory,"):
			f("sys/fs/cgroup/memory", parts[2], false)
		}
	}
}

// ofGroups is the least of a limit and those of a control group and all above it. In a container
// the group's own folder may be the root of what is mounted, and its path not be there.
func ofGroups(root fs.FS, least Limit, mount, group, file string) Limit {
	for at := path.Join(mount, group); strings.HasPrefix(at, mount); at = path.Dir(at) {
		name := path.Join(at, file)
		text, err := fs.ReadFile(root, name)
		if err != nil {
			continue // the root group has none
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && n < noLimit && n < least.Bytes { // else it is "max"
			least = Limit{n, "/" + name}
		}
	}
	return least
}

// ofMachine is the memory of the machine.
func ofMachine(root fs.FS) (Limit, error) {
	kib, ok := field(root, "proc/meminfo", "MemTotal:")
	if !ok || kib == 0 {
		return Limit{}, errors.New("/proc/meminfo does not say MemTotal")
	}
	return Limit{kib << 10, "the machine"}, nil
}

// field is the number behind a key at the beginning of a line of a file.
func field(root fs.FS, name, key string) (uint64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				n, err := strconv.ParseUint(words[0], 10, 54)
				return n, err == nil
			}
		}
	}
	return 0, false
}
