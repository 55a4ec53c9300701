package litmus

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd"
)

var (
	rounds = flag.Int("litmus.rounds", 60, "rounds of each litmus test on each size of cluster; the long run has 20000 and more")
	seed   = flag.Uint64("litmus.seed", 1, "of the placements, delays and states of pages")
	size   = flag.Int("litmus.nodes", 0, "nodes of the cluster; 0: two and then four")
	shared = flag.Int("litmus.reactors", 0, "reactors of each daemon; 0: one, and two where there are two nodes")
	// A round takes less than 1 ms on a machine that does nothing else.
	roundLimit = flag.Duration("litmus.round", 10*time.Millisecond, "what a round may take on average; more for a machine that is emulated")
)

// longRun is the number of rounds from which a test must have shown more than one outcome, and
// threads that overlap.
const longRun = 20000

func TestMain(m *testing.M) { testcluster.Main(m) }

var runAll = testcluster.Define("litmus", func(s *testcluster.Self) error {
	// A thread that waits for a page keeps its P.
	runtime.GOMAXPROCS(2 * maxThreads)
	rounds, err := strconv.Atoi(s.Args[0])
	seed, err2 := strconv.ParseUint(s.Args[1], 10, 64)
	c, err3 := dsm.Join(s.Ctx)
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	r, err := NewRunner(s.Ctx, c, seed)
	if err != nil {
		return err
	}
	for _, shape := range Shapes {
		for _, v := range variants {
			results, err := r.Run(shape, perVariant(rounds), v.atomic, v.place)
			if err != nil {
				return err
			}
			for _, res := range results {
				line, err := json.Marshal(res)
				if err != nil {
					return err
				}
				s.Say("%s", line)
			}
		}
	}
	return errors.Join(c.Barrier(s.Ctx), r.Close(), c.Close())
})

var variants = []struct {
	atomic bool
	place  Placement
}{{true, Apart}, {true, Together}, {true, Fresh}, {false, Apart}, {false, Together}, {false, Fresh}}

// perVariant deals rounds to the variants, rounding up.
func perVariant(rounds int) int { return (rounds + len(variants) - 1) / len(variants) }

// TestShapes runs all litmus tests on clusters of two and four nodes. On two nodes, threads share
// nodes, and each of two reactors serves every other page.
//
//	go test ./internal/systemtest/litmus -run TestShapes -v -timeout 60m -litmus.rounds 20000
func TestShapes(t *testing.T) {
	type cluster struct{ nodes, reactors int }
	clusters := []cluster{{2, 2}, {4, 1}}
	if !mayHaveSeveral() {
		clusters[0].reactors = 1
	}
	if *size > 0 || *shared > 0 {
		clusters = []cluster{{cmp.Or(*size, 2), max(*shared, 1)}}
	}
	for _, c := range clusters {
		t.Run(fmt.Sprintf("%d nodes, %d reactors", c.nodes, c.reactors), func(t *testing.T) {
			job := testcluster.Job{
				Nodes: c.nodes, Program: runAll, Flags: []string{"--output", "plain", "--reactors", strconv.Itoa(c.reactors), "--stripe", "1"},
				Args:  []string{strconv.Itoa(*rounds), strconv.FormatUint(*seed, 10)},
				Limit: testcluster.Patience + time.Duration(*rounds*len(Shapes))**roundLimit,
			}
			judge(t, results(t, job.Succeed(t).Output()))
		})
	}
}

// mayHaveSeveral reports whether daemons can have several reactors, which need userfaultfd.
func mayHaveSeveral() bool {
	fd, err := uffd.Open()
	if err != nil {
		return false
	}
	fd.Close()
	return !strings.Contains(os.Getenv(testcluster.FlagsEnv), "sigsegv")
}

// results reads what rank 0 has printed.
func results(t *testing.T, output string) (list []Result) {
	t.Helper()
	for line := range strings.Lines(output) {
		var res Result
		if err := json.Unmarshal([]byte(line), &res); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		list = append(list, res)
	}
	return list
}

// judge prints the outcomes of each shape, and fails the test for those that its model forbids.
func judge(t *testing.T, all []Result) {
	t.Helper()
	for _, s := range Shapes {
		sum := Result{Outcomes: map[Outcome]int{}}
		var forbidden []string
		for _, res := range all {
			if res.Shape == s.Name {
				forbidden = append(forbidden, s.violations(&res)...)
				sum.merge(&res)
			}
		}
		t.Logf("%s: %d rounds, %d%% of them overlapped\n%s", s.Name, sum.Rounds, 100*sum.Overlapped/max(sum.Rounds, 1), s.table(sum.Outcomes))
		for _, f := range forbidden {
			t.Errorf("%s: forbidden: %s", s.Name, f)
		}
		if want := perVariant(*rounds) * len(variants); sum.Rounds != want {
			t.Errorf("%s: %d rounds are told of, %d were to be run", s.Name, sum.Rounds, want)
		}
		if sum.Rounds >= longRun && len(sum.Outcomes) < 2 {
			t.Errorf("%s: %d rounds had only one outcome: the threads do not race", s.Name, sum.Rounds)
		}
		if sum.Rounds >= longRun && sum.Overlapped == 0 {
			t.Errorf("%s: in none of %d rounds did the threads overlap", s.Name, sum.Rounds)
		}
	}
}

// violations describes the outcomes that should not have been.
func (s *Shape) violations(res *Result) (list []string) {
	allowed := s.Allowed(res.Model)
	for _, o := range slices.Sorted(maps.Keys(res.Outcomes)) {
		if !allowed[o] {
			list = append(list, fmt.Sprintf("%s, %d of %d times (%d nodes, %s, atomic: %v, held to %s)",
				s.Describe(o), res.Outcomes[o], res.Rounds, res.Nodes, res.Placement, res.Atomic, res.Model))
		}
	}
	return list
}

func (res *Result) merge(other *Result) {
	res.Rounds += other.Rounds
	res.Overlapped += other.Overlapped
	for o, n := range other.Outcomes {
		res.Outcomes[o] += n
	}
}

// table is the histogram, with a star at what sequential consistency forbids and the processor
// allows within a node.
func (s *Shape) table(outcomes map[Outcome]int) string {
	sc := s.Allowed(SC)
	var b strings.Builder
	for _, o := range slices.Sorted(maps.Keys(outcomes)) {
		star := " "
		if !sc[o] {
			star = "*"
		}
		fmt.Fprintf(&b, "%9d %s %s\n", outcomes[o], star, s.Describe(o))
	}
	return b.String()
}

// TestModels checks the enumeration against what is known of the shapes.
func TestModels(t *testing.T) {
	// Of these, and of no other, TSO allows the outcome that sequential consistency forbids.
	relaxed := []string{"SB", "R", "RWC"}
	for _, s := range Shapes {
		sc, tso := s.Allowed(SC), s.Allowed(TSO)
		classic := s.outcome(t, s.Classic)
		if sc[classic] {
			t.Errorf("%s: sequential consistency is said to allow %s", s.Name, s.Classic)
		}
		if want := slices.Contains(relaxed, s.Name); tso[classic] != want {
			t.Errorf("%s: TSO allows %s: %v, want %v", s.Name, s.Classic, tso[classic], want)
		}
		for o := range sc {
			if !tso[o] {
				t.Errorf("%s: %s is allowed by SC and not by TSO, which is weaker", s.Name, s.Describe(o))
			}
		}
		if len(sc) < 2 {
			t.Errorf("%s: only %d outcomes are possible: nothing to race for", s.Name, len(sc))
		}
	}
	if n := len(Shapes[0].Allowed(SC)); Shapes[0].Name != "SB" || n != 3 {
		t.Errorf("SB has %d outcomes under SC, want 3", n)
	}
}

// outcome finds the outcome that Describe writes like this.
func (s *Shape) outcome(t *testing.T, text string) Outcome {
	t.Helper()
	var o Outcome
	for i, part := range strings.Fields(text) {
		o = o.with(i, int(part[strings.IndexByte(part, '=')+1]-'0'))
	}
	if got := s.Describe(o); s.Final && !strings.HasPrefix(got, text) || !s.Final && got != text {
		t.Fatalf("%s: %q is read as %q", s.Name, text, got)
	}
	return o
}

// TestJudge checks that a forbidden outcome and a value out of nowhere are found, whatever they are
// mixed with.
func TestJudge(t *testing.T) {
	mp := Shapes[1]
	fine := Result{Model: SC, Rounds: 3, Outcomes: map[Outcome]int{mp.outcome(t, "1:y=1 1:x=1"): 2, mp.outcome(t, "1:y=0 1:x=0"): 1}}
	if v := mp.violations(&fine); len(v) != 0 {
		t.Errorf("allowed outcomes are reported: %q", v)
	}
	fine.Outcomes[mp.outcome(t, mp.Classic)] = 1
	fine.Outcomes[Outcome(0).with(1, strange)] = 1
	if v := mp.violations(&fine); len(v) != 2 {
		t.Errorf("of two forbidden outcomes these are reported: %q", v)
	}
}
