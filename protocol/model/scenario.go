package model

import (
	"fmt"
	"slices"
	"strings"

	"dsmd/protocol"
)

// A Scenario is one story of a cluster: a configuration, and the actions that happen, in order. As
// text it is
//
//	# what the story shows
//	nodes 2
//	...                          the configuration, as Config.String writes it
//	---
//	# what to see here
//	n0.t0 fault: read 1          an action, as Action.String writes it
//	  send Request n0>n1 ...     what followed from it (not read back, only compared)
//	...
//	= quiescent                  how it ended: see Run
//
// An action is found by its text among those that are enabled, so a scenario can only tell what can
// happen. Who writes a scenario may write "..." for all that follows from what was begun, until no
// more does unless a thread begins another operation. Run puts the actions in its place.
type Scenario struct {
	Comment string // lines that begin with #
	Config  *Config
	Actions []string // and comments between them, which begin with #
	// Loop, if not 0, says that the last Loop actions lead back to the state before them.
	Loop int
}

// ParseScenario reads a scenario. Lines that are indented or begin with = are results, and are
// skipped, but for "= round in circles: the last N actions" which sets Loop. Errors wrap ErrSyntax.
func ParseScenario(text string) (*Scenario, error) {
	head, body, ok := strings.Cut(text, "\n---\n")
	if !ok {
		return nil, fmt.Errorf("%w: a scenario needs a line --- between configuration and actions", ErrSyntax)
	}
	config, err := ParseConfig(head)
	if err != nil {
		return nil, err
	}
	s := &Scenario{Config: config}
	for line := range strings.SplitSeq(head, "\n") {
		if strings.HasPrefix(line, "#") {
			s.Comment += line + "\n"
		}
	}
	for line := range strings.SplitSeq(body, "\n") {
		switch {
		case strings.HasPrefix(line, loopPrefix):
			if _, err := fmt.Sscanf(strings.TrimPrefix(line, loopPrefix), "%d", &s.Loop); err != nil {
				return nil, fmt.Errorf("%w: line %q: %w", ErrSyntax, line, err)
			}
		case line == "" || line[0] == ' ' || line[0] == '=':
		default:
			s.Actions = append(s.Actions, line)
		}
	}
	return s, nil
}

const loopPrefix = "= round in circles: the last "

// Run replays a scenario and returns its text with all results filled in, and the violation with
// which it ended, if any. The error says that the scenario does not fit the engine any more: an
// action was not enabled, or more actions follow on a violation.
func (s *Scenario) Run() (string, *Violation, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%v---\n", s.Comment, s.Config)
	c := NewCluster(s.Config)
	if v := c.Begun; v != nil {
		fmt.Fprintf(&b, "= violation: %v\n", v)
		return b.String(), v, nil
	}
	t := teller{cluster: c, allowed: make([]int, len(s.Config.Threads)), text: &b}
	var before string
	for i, text := range s.Actions {
		if s.Loop > 0 && i == len(s.Actions)-s.Loop {
			before = string(c.AppendState(nil))
		}
		v, err := t.tell(text)
		switch {
		case err != nil:
			return b.String(), nil, fmt.Errorf("action %d of %d: %w", i+1, len(s.Actions), err)
		case v == nil:
			continue
		}
		fmt.Fprintf(&b, "= violation: %v\n", v)
		if i+1 < len(s.Actions) {
			return b.String(), v, fmt.Errorf("action %d of %d is a violation already", i+1, len(s.Actions))
		}
		return b.String(), v, nil
	}
	v := s.end(c, before, &b)
	return b.String(), v, nil
}

// teller replays actions and writes down what follows from each.
type teller struct {
	cluster *Cluster
	allowed []int // by thread: how many operations it has begun
	text    *strings.Builder
	out     Outcome
}

// tell has one line of a scenario happen.
func (t *teller) tell(line string) (*Violation, error) {
	switch {
	case line[0] == '#':
		fmt.Fprintln(t.text, line)
		return nil, nil
	case line == "...":
		return t.cluster.settle(t.allowed, t.do), nil
	}
	a, err := t.cluster.find(line)
	if err != nil {
		return nil, err
	}
	if a.ofThread() {
		thread := &t.cluster.Nodes[a.Node].threads[a.Thread]
		t.allowed[thread.index] = max(t.allowed[thread.index], thread.pc+1)
	}
	return t.do(a), nil
}

func (t *teller) do(a Action) *Violation {
	v := t.cluster.Do(a, 0, &t.out)
	fmt.Fprintln(t.text, a)
	for i := range t.out.Effects {
		fmt.Fprintf(t.text, "  %s\n", FormatEffect(&t.out.Effects[i]))
	}
	for i := range t.out.Retired {
		fmt.Fprintf(t.text, "  %s\n", t.out.Retired[i].String())
	}
	return v
}

// end says how a scenario ended that did not end in a violation of one action.
func (s *Scenario) end(c *Cluster, before string, b *strings.Builder) *Violation {
	if s.Loop > 0 && string(c.AppendState(nil)) == before {
		v := violated(RuleNoProgress, "no thread has retired an access in %d actions, and all is as it was before them", s.Loop)
		fmt.Fprintf(b, "%s%d actions lead back to the state before them\n= violation: %v\n", loopPrefix, s.Loop, v)
		return v
	}
	if v := c.Stuck(); v != nil {
		fmt.Fprintf(b, "= violation: %v\n", v)
		return v
	}
	quiescent := true
	for _, a := range c.Enabled() {
		quiescent = quiescent && a.Kind.Optional()
	}
	if quiescent {
		b.WriteString("= quiescent\n")
	} else {
		b.WriteString("= under way\n")
	}
	return nil
}

// find returns the enabled action with this text.
func (c *Cluster) find(text string) (Action, error) {
	enabled := c.Enabled()
	for _, a := range enabled {
		if a.String() == text {
			return a, nil
		}
	}
	words := make([]string, len(enabled))
	for i, a := range enabled {
		words[i] = "\n\t" + a.String()
	}
	return Action{}, fmt.Errorf("%q can not happen here; possible are:%s", text, strings.Join(words, ""))
}

// AppendState appends a canonical encoding of the whole cluster.
func (c *Cluster) AppendState(b []byte) []byte {
	for _, n := range c.Nodes {
		b = n.AppendState(b)
	}
	b = c.Ledger.AppendState(b)
	return appendFlights(b, c.InFlight)
}

// appendFlights encodes a multiset of messages.
func appendFlights(b []byte, flights []Flight) []byte {
	keys := make([]string, len(flights))
	for i := range flights {
		keys[i] = string(flights[i].Append(nil))
	}
	slices.Sort(keys)
	for _, k := range keys {
		b = append(b, 'm', byte(len(k)), byte(len(k)>>8))
		b = append(b, k...)
	}
	return b
}

// retired says of each kind of Retirement that needs no more words what happened.
var retired = [...]string{
	RetireLock: "obtained", RetireUnlock: "given back", RetireArrive: "arrived", RetireWithdraw: "withdrawn",
	RetireBind: "bound", RetireUnbind: "unbound", RetireDeath: "died", RetireCrash: "lost", RetireLeave: "is to leave",
	RetireCut: "cut off", RetireEnd: "ended", RetireLost: "told that it is lost", RetireBegin: "begins",
	RetireCommitting: "commits", RetireCommit: "committed",
}

// String says what retired, without who: the action says that.
func (r *Retirement) String() string {
	switch {
	case r.Kind == RetireAccess:
		return fmt.Sprintf("retired on version %d", r.Contents)
	case r.Kind == RetireLock && r.Status == protocol.StatusOwnerDied:
		return fmt.Sprintf("obtained from the dead program of rank %d", r.OwnerRank)
	case r.Kind == RetireTurnedAway:
		return fmt.Sprintf("turned away, because of the dead program of rank %d", r.OwnerRank)
	case r.Kind == RetirePass:
		return fmt.Sprintf("passed with %x", r.Payload)
	}
	return retired[r.Kind]
}
