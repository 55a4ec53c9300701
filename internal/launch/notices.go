package launch

import (
	"fmt"
	"sync"
	"time"
)

// maxNotices bounds the supervisor's own lines that wait for a standard error that does not take
// them, with one more for each child. There are fewer in a job; were there more, they would be
// dropped, for the supervisor must not block on them.
const maxNotices = 32

// flushTime is how long the end of the job waits for a standard error that does not take the last
// lines.
const flushTime = time.Second

// notices are the supervisor's own lines on their way to standard error.
type notices struct {
	lines   chan string
	printed sync.WaitGroup
}

// newNotices prints the lines of a supervisor with so many children.
func newNotices(to output, children int) *notices {
	n := &notices{lines: make(chan string, maxNotices+children)}
	n.printed.Go(func() {
		for line := range n.lines {
			_ = to.write("dsmd: ", []byte(line+"\n"))
		}
	})
	return n
}

// notice prints a line of the supervisor's own, without ever waiting for it.
func (n *notices) notice(format string, args ...any) {
	select {
	case n.lines <- fmt.Sprintf(format, args...):
	default:
	}
}

// close waits for the lines to be printed, but not for long.
func (n *notices) close() {
	close(n.lines)
	soon(n.printed.Wait)
}

// Say prints a line of dsmd's own, as Run prints those of its own. It is for what there is to say
// before Run and after it.
func (cfg *Config) Say(format string, args ...any) {
	s := newSink(cfg.Stderr)
	s.layout = layout{format: cfg.Format, timestamps: cfg.Timestamps}
	_ = s.take(source{"dsmd: ", "stderr"}, fmt.Appendf(nil, format+"\n", args...))
}

// soon waits until f has returned, but not for long.
func soon(f func()) {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(flushTime):
	}
}
