package patience

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Still is how long a test may wait in one place. It is far longer than any wait that Or bounds, so
// that those say by themselves what they have waited for, and than any test that waits in one place
// again and again, which looks the same.
func Still() time.Duration { return 5 * Or(time.Minute) }

// A test binary that imports this package is watched: a test that waits in one place for longer
// than Still, for a channel, a socket, a process or a condition, ends the run, which says where the
// test waits and what all goroutines do. The go command's own limit comes after ten minutes, and
// only says that they are over. With -timeout 0 nobody watches.
func init() {
	if testing.Testing() && limited(os.Args[1:]) {
		go watch(Still())
	}
}

// limited reports whether the arguments of a test binary bound its run. It looks at them itself:
// package testing defines and parses its flags while the watch may run already.
func limited(args []string) bool {
	for i, arg := range args {
		name, value, found := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || name != "test.timeout" {
			continue
		}
		if !found && i+1 < len(args) {
			value = args[i+1]
		}
		d, err := time.ParseDuration(value)
		return err == nil && d > 0
	}
	return false
}

func watch(still time.Duration) {
	w := watcher{}
	for {
		time.Sleep(still / 20)
		if report := w.look(time.Now(), stacks(), still); report != "" {
			fmt.Fprint(os.Stderr, report)
			os.Exit(1)
		}
	}
}

// stacks is what all goroutines do.
func stacks() string {
	for size := 1 << 20; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return string(buf[:n])
		}
	}
}

// watcher knows since when tests wait where they do: by their goroutine and its stack.
type watcher map[string]time.Time

// head is the first line of what runtime.Stack says of a goroutine: its number, and what it waits
// for.
var head = regexp.MustCompile(`^goroutine (\d+) (?:gp=\S+ m=\S+ (?:mp=\S+ )?)?\[([^],]+)`)

// look notes which tests wait, and reports one that has waited for too long: "" if there is none.
func (w watcher) look(now time.Time, dump string, still time.Duration) (report string) {
	waiting := map[string]bool{}
	for _, block := range strings.Split(dump, "\n\n") {
		first, stack, _ := strings.Cut(block, "\n")
		m := head.FindStringSubmatch(first)
		// Whoever is in package testing waits for other tests.
		if m == nil || m[2] == "running" || strings.HasPrefix(stack, "testing.") || !strings.Contains(stack, "\ntesting.tRunner(") {
			continue
		}
		key := m[1] + stack
		since, known := w[key]
		if m[2] == "runnable" && !known { // as who polls is at times
			continue
		}
		waiting[key] = true
		switch {
		case !known:
			w[key] = now
		case now.Sub(since) >= still && report == "":
			report = fmt.Sprintf("patience: a test has waited in one place for %v (%s), and nothing bounds that wait:\n\n%s\n\nAll goroutines:\n\n%s\n",
				now.Sub(since).Round(time.Second), m[2], block, dump)
		}
	}
	for key := range w {
		if !waiting[key] {
			delete(w, key)
		}
	}
	return report
}
