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
func Find() (Limit, error) { return In(machine) }

// In is Find where the root folder is another.
func In(root fs.FS) (Limit, error) {
	least, err := ofMachine(root)
	if err != nil {
		return Limit{}, fmt.Errorf("memlimit: %w", err)
	}
	eachGroupAbove(root, func(at string, files groupFiles) {
		if n, ok := number(root, path.Join(at, files.limit)); ok && n < least.Bytes {
			least = Limit{n, "/" + path.Join(at, files.limit)}
		}
	})
	return least, nil
}

// Left finds how much memory this process can have besides what it has, and who says so: what the
// machine has left, or a control group, counting what the kernel can take back from the page cache.
func Left() (Limit, error) { return LeftIn(machine) }

// LeftIn is Left where the root folder is another.
func LeftIn(root fs.FS) (Limit, error) {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return Limit{}, fmt.Errorf("memlimit: %w (is /proc mounted?)", err)
	}
	kib, ok := fieldOf(string(text), "MemAvailable:")
	if !ok {
		return Limit{}, errors.New("memlimit: /proc/meminfo does not say MemAvailable")
	}
	least := Limit{kib << 10, "the machine"}
	eachGroupAbove(root, func(at string, files groupFiles) {
		if left, ok := files.left(root, at); ok && left < least.Bytes {
			least = Limit{left, "/" + path.Join(at, files.limit)}
		}
	})
	return least, nil
}

// groupFiles are where a control group says how much memory it may have and has, and under which
// keys memory.stat has how much of that is the page cache, and how much of this can't be taken
// back.
type groupFiles struct{ limit, usage, cache, shared string }

// left is how much memory a control group can have besides what it has. ok is false if it has no
// limit, or does not say.
func (g groupFiles) left(root fs.FS, at string) (left uint64, ok bool) {
	limit, ok := number(root, path.Join(at, g.limit))
	if !ok {
		return 0, false
	}
	used, ok := number(root, path.Join(at, g.usage))
	if !ok {
		return 0, false
	}
	cache, _ := field(root, path.Join(at, "memory.stat"), g.cache)
	shared, _ := field(root, path.Join(at, "memory.stat"), g.shared)
	used -= min(used, cache-min(cache, shared))
	return limit - min(limit, used), true
}

// number is what a file of a control group holds, if that is no "max".
func number(root fs.FS, name string) (uint64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false // the root group has none
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && n < noLimit
}

// Kills is how many processes the kernel has killed because memory was wanted that there was not:
// in this process's control group, or, if that does not tell, on this machine.
func Kills() uint64 { return killsIn(machine) }

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

// eachGroupAbove calls f for those groups and all above them, with the names of their files. In a
// container the group's own folder may be the root of what is mounted, and its path not be there.
func eachGroupAbove(root fs.FS, f func(at string, files groupFiles)) {
	eachGroup(root, func(mount, group string, second bool) {
		files := groupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ", "total_shmem "}
		if second {
			files = groupFiles{"memory.max", "memory.current", "file ", "shmem "}
		}
		for at := path.Join(mount, group); strings.HasPrefix(at, mount); at = path.Dir(at) {
			f(at, files)
		}
	})
}

// ofMachine is the memory of the machine.
func ofMachine(root fs.FS) (Limit, error) {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return Limit{}, fmt.Errorf("%w (is /proc mounted?)", err)
	}
	kib, ok := fieldOf(string(text), "MemTotal:")
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
	return fieldOf(string(text), key)
}

func fieldOf(text, key string) (uint64, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				n, err := strconv.ParseUint(words[0], 10, 54)
				return n, err == nil
			}
		}
	}
	return 0, false
}
