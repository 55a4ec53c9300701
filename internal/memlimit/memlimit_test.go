package memlimit

import (
	"testing"
	"testing/fstest"
)

// TestFind: the least limit counts, of the machine, the own control group and those above it.
func TestFind(t *testing.T) {
	const machine = "MemFree:  1 kB\nMemTotal:       1000 kB\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  Limit
	}{
		"no groups":    {nil, Limit{1000 << 10, "the machine"}},
		"no limit":     {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, Limit{1000 << 10, "the machine"}},
		"own":          {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "4096\n"}, Limit{4096, "/sys/fs/cgroup/a/b/memory.max"}},
		"one above":    {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/a/b/memory.max": "8192\n"}, Limit{4096, "/sys/fs/cgroup/a/memory.max"}},
		"more than is": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1024001\n"}, Limit{1000 << 10, "the machine"}},
		"a container":  {map[string]string{"proc/self/cgroup": "0::/x/y\n", "sys/fs/cgroup/memory.max": "12288\n"}, Limit{12288, "/sys/fs/cgroup/memory.max"}},
		"version 1":    {map[string]string{"proc/self/cgroup": "5:cpu,memory:/a\n1:cpuset:/b\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096\n"}, Limit{4096, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"}},
		"none of 1":    {map[string]string{"proc/self/cgroup": "5:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, Limit{1000 << 10, "the machine"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{"proc/meminfo": {Data: []byte(machine)}}
			for file, text := range test.files {
				root[file] = &fstest.MapFile{Data: []byte(text)}
			}
			if got, err := In(root); err != nil || got != test.want {
				t.Errorf("%+v, %v, want %+v", got, err, test.want)
			}
		})
	}
	if _, err := In(fstest.MapFS{"proc/meminfo": {Data: []byte("Mem: 5\n")}}); err == nil {
		t.Error("a machine that does not say how much it has")
	}
}

// TestKills: the own control group tells, of either version, or else the machine does.
func TestKills(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"nobody tells": {nil, 0},
		"the machine":  {map[string]string{"proc/self/cgroup": "0::/a\n", "proc/vmstat": "oom_kill 7\n"}, 7},
		"its group":    {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": "oom 9\noom_kill 2\noom_group_kill 1\n", "proc/vmstat": "oom_kill 7\n"}, 2},
		"version 1":    {map[string]string{"proc/self/cgroup": "4:memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.oom_control": "under_oom 0\noom_kill 3\n"}, 3},
	} {
		root := fstest.MapFS{}
		for file, text := range test.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := killsIn(root); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestHere: this machine has some memory.
func TestHere(t *testing.T) {
	if l, err := Find(); err != nil || l.Bytes < 64<<20 || l.From == "" {
		t.Errorf("%+v, %v", l, err)
	}
}
