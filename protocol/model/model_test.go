package model_test

import (
	"errors"
	"slices"
	"testing"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

func TestProgramRoundTrips(t *testing.T) {
	const text = "read 0; write 7; prefetch-read 1; prefetch-write 2; lock 3 cancel 2; unlock 3; intact 3; unlock 3; rlock 4; runlock 4; barrier 5 cancel 1; die"
	p, err := model.ParseProgram(text)
	if err != nil {
		t.Fatal(err)
	}
	if p.String() != text {
		t.Errorf("came back as %q, went in as %q", p, text)
	}
	for _, bad := range []string{"", "read", "read x", "read -1", "die 1", "jump 1", "read 1 cancel 1", "lock 1 cancel", "lock 1 cancel 300", "lock 1 abort 1"} {
		if p, err := model.ParseProgram(bad); !errors.Is(err, model.ErrSyntax) {
			t.Errorf("%q parsed to %v with error %v", bad, p, err)
		}
	}
}

func TestConfigRoundTrips(t *testing.T) {
	c := &model.Config{
		Nodes: 3, Pages: 64, HomeStripe: 2, Hold: 50, MaxHold: 500, Duplicates: 2, Strays: true, Fused: true, Late: true,
		ContentionThreshold: 3, TreeFrom: 2, TreeArity: 1, ManyReaders: 3, CheckEvery: 5, ExactNodes: 2, Pointers: 1, GroupNodes: 3, Replicas: 1,
		Moves: model.Moves{Crash: []protocol.NodeID{1}, Leave: []protocol.NodeID{2}, Join: []protocol.NodeID{1}},
		Plant: model.LostDone,
		Threads: []model.ThreadSpec{
			{Node: 2, Client: 4, Program: model.MustParseProgram("read 63; die")},
			{Node: 0, Client: 1, Program: model.MustParseProgram("lock 9 cancel 1; unlock 9")},
		},
		Before: []int{1, 0, 1}, Prompt: true,
	}
	back, err := model.ParseConfig(c.String())
	if err != nil {
		t.Fatal(err)
	}
	if back.String() != c.String() {
		t.Errorf("came back as\n%v\nwent in as\n%v", back, c)
	}
}

func TestPlantsRoundTrip(t *testing.T) {
	for _, p := range model.Plants() {
		if back, err := model.ParsePlant(p.String()); err != nil || back != p {
			t.Errorf("%v came back as %v with error %v", p, back, err)
		}
	}
	if _, err := model.ParsePlant("tulip"); !errors.Is(err, model.ErrSyntax) {
		t.Errorf("error %v, want ErrSyntax", err)
	}
}

// runFirst lets the first enabled action that is not optional happen until there is none.
func runFirst(t *testing.T, c *model.Cluster) {
	t.Helper()
	var out model.Outcome
	const tooMany = 1000
	for step := 0; ; step++ {
		var next *model.Action
		for _, a := range c.Enabled() {
			if !a.Kind.Optional() {
				next = &a
				break
			}
		}
		if next == nil || step == tooMany {
			break
		}
		if v := c.Do(*next, 0, &out); v != nil {
			t.Fatalf("%v: %v", next, v)
		}
	}
	if v := c.Stuck(); v != nil {
		t.Fatal(v)
	}
}

// TestBefore: a cluster begins where the operations of Before have happened, one after another, and
// nothing else has.
func TestBefore(t *testing.T) {
	config := &model.Config{
		Nodes: 2, Pages: 2, HomeStripe: 1, Hold: 10, MaxHold: 10,
		Threads: []model.ThreadSpec{
			{Node: 0, Client: 1, Program: model.MustParseProgram("lock 8; write 1; barrier 9; unlock 8")},
			{Node: 1, Client: 1, Program: model.MustParseProgram("barrier 9; write 1; lock 8")},
		},
		Before: []int{0, 0, 1, 0, 1},
	}
	c := model.NewCluster(config)
	if c.Begun != nil {
		t.Fatal(c.Begun)
	}
	if v := c.Ledger.Version(protocol.PageObject(1)); v != 2 || len(c.InFlight) > 0 {
		t.Errorf("version %d after two writes, and %d messages on their way", v, len(c.InFlight))
	}
	var texts []string
	for _, a := range c.Enabled() {
		texts = append(texts, a.String())
	}
	if want := []string{"n0.t0 unlock 8", "n1.t0 lock 8"}; !slices.Equal(texts, want) {
		t.Errorf("then %q can happen, want %q", texts, want)
	}
	runFirst(t, c)
	config.Plant = model.StaleSave
	if c := model.NewCluster(config); c.Begun == nil || c.Begun.Rule != model.RuleLastWrite {
		t.Errorf("with a planted bug the beginning leads to %v, want %s", c.Begun, model.RuleLastWrite)
	}
}

func TestBeforeIsRefused(t *testing.T) {
	const text = "nodes 3\npages 1\nstripe 1\njoin 2\nthread 0 1: read 0\nthread 2 1: read 0\nbefore "
	if _, err := model.ParseConfig(text + "0"); err != nil {
		t.Error(err)
	}
	for _, before := range []string{"x", "-1", "2", "1", "0 0"} {
		if _, err := model.ParseConfig(text + before); !errors.Is(err, model.ErrSyntax) {
			t.Errorf("before %s: error %v, want ErrSyntax", before, err)
		}
	}
}

// TestFusedAndSeparateEndAlike: whether the engine hears of an operation at once or later changes
// the order of things, and not what they come to.
func TestFusedAndSeparateEndAlike(t *testing.T) {
	for _, fused := range []bool{false, true} {
		c := model.NewCluster(&model.Config{
			Nodes: 2, Pages: 2, HomeStripe: 1, Hold: 10, MaxHold: 10, Fused: fused,
			Threads: []model.ThreadSpec{
				{Node: 0, Client: 1, Program: model.MustParseProgram("write 0; write 1; read 0")},
				{Node: 1, Client: 1, Program: model.MustParseProgram("write 1; write 0; read 1")},
			},
		})
		runFirst(t, c)
		for p := range uint64(2) {
			if v := c.Ledger.Version(protocol.PageObject(p)); v != 2 {
				t.Errorf("fused %t: page %d has version %d after two writes", fused, p, v)
			}
		}
	}
}

// TestCloneIsIndependent: the explorer goes on from a state many times.
func TestCloneIsIndependent(t *testing.T) {
	config := &model.Config{
		Nodes: 1, Pages: 4, HomeStripe: 1, Hold: 10, MaxHold: 10,
		Threads: []model.ThreadSpec{{Node: 0, Client: 1, Program: model.MustParseProgram("write 0; write 1; lock 2; unlock 2")}},
	}
	n := model.NewNode(config, 0)
	var out model.Outcome
	for !n.Done() {
		before := string(n.AppendState(nil))
		c := n.Clone()
		a := c.Local(nil)[0]
		if c.Do(a, 0, &out); out.Violation != nil {
			t.Fatalf("%v: %v", a, out.Violation)
		}
		if string(n.AppendState(nil)) != before {
			t.Fatalf("%v on a clone changed the original", a)
		}
		n.Do(a, 0, &out)
		if string(n.AppendState(nil)) != string(c.AppendState(nil)) {
			t.Fatalf("%v led to different states on a node and on its clone", a)
		}
	}
}

// TestLedgerRefuses: each rule of the observer can be broken.
func TestLedgerRefuses(t *testing.T) {
	config := &model.Config{
		Nodes: 2, Pages: 4, HomeStripe: 1, Moves: model.Moves{Cut: []protocol.NodeID{1}},
		Threads: []model.ThreadSpec{
			{Node: 0, Client: 1, Program: model.MustParseProgram("write 0; lock 1; unlock 1; barrier 2")},
			{Node: 1, Client: 1, Program: model.MustParseProgram("read 0; rlock 1; runlock 1; barrier 2")},
		},
	}
	write, lock, unlock, barrier := config.Threads[0].Program[0], config.Threads[0].Program[1], config.Threads[0].Program[2], config.Threads[0].Program[3]
	rlock := config.Threads[1].Program[1]
	wrote := model.Retirement{Kind: model.RetireAccess, Op: write}
	took := model.Retirement{Kind: model.RetireLock, Client: 1, Op: lock}
	died := model.Retirement{Kind: model.RetireDeath, Client: 1, Rank: 7}
	told := model.Retirement{Kind: model.RetireLock, Node: 1, Client: 1, Op: lock, Status: protocol.StatusOwnerDied, OwnerRank: 7}
	turnedAway := model.Retirement{Kind: model.RetireTurnedAway, Node: 1, Client: 1, Op: rlock, OwnerRank: 7}
	cut := model.Retirement{Kind: model.RetireCut, Node: 1}
	unrepairing := told
	unrepairing.Op = rlock
	arrive := model.Retirement{Kind: model.RetireArrive, Op: barrier}
	for name, c := range map[string]struct {
		history []model.Retirement
		rule    string // of the last
	}{
		"lost write":        {[]model.Retirement{{Kind: model.RetireAccess, Op: write}, {Kind: model.RetireAccess, Op: write}}, model.RuleLastWrite},
		"lost by itself":    {[]model.Retirement{wrote, {Kind: model.RetireLost, Op: write}}, model.RuleLost},
		"lost unwritten":    {[]model.Retirement{{Kind: model.RetireLost, Op: write}}, model.RuleLost},
		"lost with a node":  {[]model.Retirement{wrote, {Kind: model.RetireCrash, Node: 1}, {Kind: model.RetireLost, Op: write}}, ""},
		"lost by leaving":   {[]model.Retirement{wrote, {Kind: model.RetireLeave, Node: 1}, {Kind: model.RetireLost, Op: write}}, model.RuleLost},
		"two holders":       {[]model.Retirement{took, {Kind: model.RetireLock, Node: 1, Client: 1, Op: rlock}}, model.RuleLock},
		"unlock by another": {[]model.Retirement{took, {Kind: model.RetireUnlock, Node: 1, Client: 1, Op: unlock}}, model.RuleLock},
		"death untold":      {[]model.Retirement{took, died, {Kind: model.RetireLock, Node: 1, Client: 1, Op: rlock}}, model.RuleLock},
		"death invented":    {[]model.Retirement{told}, model.RuleLock},
		"death told":        {[]model.Retirement{took, died, told}, ""},
		"turned away":       {[]model.Retirement{took, died, turnedAway, turnedAway, told}, ""},
		"turned away early": {[]model.Retirement{took, turnedAway}, model.RuleLock},
		"turned away late":  {[]model.Retirement{took, died, told, turnedAway}, model.RuleLock},
		"turned away wrong": {[]model.Retirement{took, died, {Kind: model.RetireTurnedAway, Node: 1, Client: 1, Op: rlock, OwnerRank: 6}}, model.RuleLock},
		"reader repairs":    {[]model.Retirement{took, died, unrepairing}, model.RuleLock},
		"repaired apart":    {[]model.Retirement{took, died, cut, told, {Kind: model.RetireUnlock, Node: 1, Client: 1, Op: unlock}, took}, ""},
		"unrepaired apart":  {[]model.Retirement{took, died, cut, took}, model.RuleLock},
		"dies apart":        {[]model.Retirement{took, died, cut, told, {Kind: model.RetireDeath, Node: 1, Client: 1, Rank: 3}, took}, model.RuleLock},
		"barrier too early": {[]model.Retirement{arrive, {Kind: model.RetirePass, Op: barrier}}, model.RuleBarrier},
		"barrier payload":   {[]model.Retirement{arrive, {Kind: model.RetireArrive, Thread: 1, Op: barrier}, {Kind: model.RetirePass, Op: barrier}}, model.RuleBarrier},
	} {
		t.Run(name, func(t *testing.T) {
			l := model.NewLedger(config)
			for i := range c.history {
				v := l.Apply(&c.history[i])
				want := ""
				if i == len(c.history)-1 {
					want = c.rule
				}
				if got := ruleOf(v); got != want {
					t.Fatalf("step %d of %d: violation %v, want rule %q", i+1, len(c.history), v, want)
				}
			}
		})
	}
}

func ruleOf(v *model.Violation) string {
	if v == nil {
		return ""
	}
	return v.Rule
}
