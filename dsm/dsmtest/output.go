package dsmtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

var (
	// ofRank is a line of a rank, in the output of `dsmd run`.
	ofRank = compiled(`^\[(\d+)\] ?(.*)$`)
	// blamed is the line in which `dsmd run` says which rank has failed.
	blamed = compiled(`^dsmd: rank (\d+) .*`)
	// killed is such a line about a rank that `dsmd run --survive` goes on without, since somebody
	// has killed it or its daemon (status 70), which is no failure.
	killed = compiled(`^dsmd: rank \d+ (was killed by signal|exited with status 70 ).* ranks are left`)
	// without is the line in which `dsmd run --survive` says which ranks it has gone on without.
	without = compiled(`^dsmd: \d+ of \d+ ranks have succeeded, without (.*): exit status 0`)
	number  = compiled(`\d+`)
	// routine is what a test binary says of every test.
	routine = compiled(`^(=== (RUN|PAUSE|CONT|NAME) .*|\s*--- (PASS|FAIL|SKIP): .*|PASS|FAIL|testing: warning: no tests to run|coverage: .*)?$`)
)

// compiled compiles an expression when it is first wanted: a rank, which wants none, starts sooner.
func compiled(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// output is what `dsmd run` and its ranks print.
type output struct{ said bytes.Buffer }

// Write keeps what comes, and passes it on to people who debug.
func (o *output) Write(p []byte) (int, error) {
	if os.Getenv(envDebug) != "" {
		os.Stderr.Write(p)
	}
	return o.said.Write(p)
}

// verdict judges how n ranks have ended: failed is how `dsmd run` has.
func (o *output) verdict(n int, failed error) (skipped bool, err error) {
	done, skips := map[string]bool{}, 0
	for line := range strings.Lines(o.said.String()) {
		if m := without().FindStringSubmatch(line); m != nil {
			for _, rank := range number().FindAllString(m[1], -1) {
				done[rank] = true // as somebody intended
			}
		}
		m := ofRank().FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			continue
		}
		done[m[1]] = done[m[1]] || m[2] == saidDone || m[2] == saidSkipped
		if m[2] == saidSkipped {
			skips++
		}
	}
	var missing []error
	for rank := range n {
		if !done[strconv.Itoa(rank)] {
			missing = append(missing, fmt.Errorf("dsmtest: rank %d has ended before the body did", rank))
		}
	}
	switch {
	case failed != nil && o.blamed() != "":
		return false, fmt.Errorf("rank %s has failed", o.blamed())
	case failed != nil:
		return false, failed
	case len(missing) > 0:
		return false, errors.Join(missing...)
	case skips > 0 && skips < n:
		return false, fmt.Errorf("dsmtest: %d of %d ranks have skipped the test", skips, n)
	}
	return skips > 0, nil
}

// blamed is the rank that has failed first, or of those that were killed the first, if none has:
// "" if that is not known.
func (o *output) blamed() (rank string) {
	for line := range strings.Lines(o.said.String()) {
		switch m := blamed().FindStringSubmatch(line); {
		case m == nil:
		case !killed().MatchString(line):
			return m[1]
		case rank == "":
			rank = m[1]
		}
	}
	return rank
}

// text is what people read of it, what the rank that has failed said before the rest.
func (o *output) text() string {
	var first, rest strings.Builder
	blame := o.blamed()
	for line := range strings.Lines(o.said.String()) {
		m := ofRank().FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		switch {
		case m == nil:
			rest.WriteString(line)
		case m[2] == saidDone, m[2] == saidSkipped, routine().MatchString(m[2]):
		case m[1] == blame:
			first.WriteString(line)
		default:
			rest.WriteString(line)
		}
	}
	return strings.TrimRight(first.String()+rest.String(), "\n")
}
