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

// TestLeft: the machine's memory that is left counts, or what a group above this process may have
// besides what it has and could give back.
func TestLeft(t *testing.T) {
	const v2, v1 = "sys/fs/cgroup/a/", "sys/fs/cgroup/memory/a/"
	for name, test := range map[string]struct {
		files map[string]string
		want  Limit
	}{
		"no groups": {nil, Limit{500 << 10, "the machine"}},
		"a group": {map[string]string{"proc/self/cgroup": "0::/a/b\n", v2 + "memory.max": "100000\n", v2 + "memory.current": "90000\n",
			v2 + "memory.stat": "anon 1\nfile 50000\nkernel 5\nshmem 45000\n", v2 + "b/memory.max": "max\n", v2 + "b/memory.current": "7\n"},
			Limit{15000, "/" + v2 + "memory.max"}},
		"more than it may": {map[string]string{"proc/self/cgroup": "0::/a\n", v2 + "memory.max": "100000\n", v2 + "memory.current": "120000\n"}, Limit{0, "/" + v2 + "memory.max"}},
		"version 1": {map[string]string{"proc/self/cgroup": "5:memory:/a\n", v1 + "memory.limit_in_bytes": "100000\n", v1 + "memory.usage_in_bytes": "90000\n",
			v1 + "memory.stat": "cache 1\nshmem 2\ntotal_cache 20000\ntotal_shmem 15000\n"}, Limit{15000, "/" + v1 + "memory.limit_in_bytes"}},
		"it does not say": {map[string]string{"proc/self/cgroup": "0::/a\n", v2 + "memory.max": "100000\n"}, Limit{500 << 10, "the machine"}},
	} {
		root := fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal: 1000 kB\nMemAvailable:     500 kB\n")}}
		for file, text := range test.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, err := LeftIn(root); err != nil || got != test.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, test.want)
		}
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
