package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"dsmd/bench/table"
)

// unknown is what a report says of what could not be found out.
const unknown = "unknown"

// about describes this command, its source and this machine.
func about(ctx context.Context) table.Origin {
	return table.Origin{
		Command: "bench " + strings.Join(os.Args[1:], " "),
		Commit:  commit(ctx),
		Machine: fmt.Sprintf("%d × %s, Linux %s", runtime.NumCPU(), processor(), strings.TrimSpace(textOf("/proc/sys/kernel/osrelease"))),
		Go:      runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Began:   time.Now(),
	}
}

// commit is that of the source in the current directory, if this is the module: `go run` leaves
// none in its executables.
func commit(ctx context.Context) string {
	if !insideModule(ctx) {
		return unknown
	}
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return unknown
	}
	return strings.TrimSpace(string(out))
}

// processor is the model's name, from proc_cpuinfo(5). Not all architectures give one.
func processor() string {
	for line := range strings.Lines(textOf("/proc/cpuinfo")) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH + " processor"
}

// loadAverage is the machine's load average of the last minute, from proc_loadavg(5), or 0.
func loadAverage() float64 {
	first, _, _ := strings.Cut(textOf("/proc/loadavg"), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}

// textOf is a file's contents. What can't be read is empty: a report without it is still one.
func textOf(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}
