package model_test

import (
	"errors"
	"testing"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

func TestProgramRoundTrips(t *testing.T) {
	const text = "read 0; write 7; prefetch-read 1; prefetch-write 2; lock 3 cancel 2; unlock 3; rlock 4; runlock 4; barrier 5 cancel 1; die"
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
		Nodes: 3, Pages: 64, HomeStripe: 2, Hold: 50, MaxHold: 500, Duplicates: 2, Strays: true, Fused: true, Early: true, Late: true,
		Plant: model.LostDone,
		Threads: []model.ThreadSpec{
			{Node: 2, Client: 4, Program: model.MustParseProgram("read 63; die")},
			{Node: 0, Client: 1, Program: model.MustParseProgram("lock 9 cancel 1; unlock 9")},
		},
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

// TestFusedAndSeparateEndAlike: whether the engine hears of an operation at once or later changes the
// order of things, and not what they come to.
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
		Nodes: 2, Pages: 4, HomeStripe: 1,
		Threads: []model.ThreadSpec{
			{Node: 0, Client: 1, Program: model.MustParseProgram("write 0; lock 1; unlock 1; barrier 2")},
			{Node: 1, Client: 1, Program: model.MustParseProgram("read 0; rlock 1; runlock 1; barrier 2")},
		},
	}
	write, lock, unlock, barrier := config.Threads[0].Program[0], config.Threads[0].Program[1], config.Threads[0].Program[2], config.Threads[0].Program[3]
	rlock := config.Threads[1].Program[1]
	took := model.Retirement{Kind: model.RetireLock, Client: 1, Op: lock}
	died := model.Retirement{Kind: model.RetireDeath, Client: 1, Rank: 7}
	told := model.Retirement{Kind: model.RetireLock, Node: 1, Client: 1, Op: rlock, Status: protocol.StatusOwnerDied, OwnerRank: 7}
	arrive := model.Retirement{Kind: model.RetireArrive, Op: barrier}
	for name, c := range map[string]struct {
		history []model.Retirement
		rule    string // of the last
	}{
		"lost write":        {[]model.Retirement{{Kind: model.RetireAccess, Op: write}, {Kind: model.RetireAccess, Op: write}}, model.RuleLastWrite},
		"two holders":       {[]model.Retirement{took, {Kind: model.RetireLock, Node: 1, Client: 1, Op: rlock}}, model.RuleLock},
		"unlock by another": {[]model.Retirement{took, {Kind: model.RetireUnlock, Node: 1, Client: 1, Op: unlock}}, model.RuleLock},
		"death untold":      {[]model.Retirement{took, died, {Kind: model.RetireLock, Node: 1, Client: 1, Op: rlock}}, model.RuleLock},
		"death invented":    {[]model.Retirement{told}, model.RuleLock},
		"death told":        {[]model.Retirement{took, died, told}, ""},
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
