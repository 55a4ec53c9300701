package node

import (
	"encoding/json"
	"io"
	"net/http/httptest"
	"slices"
	"testing"
)

// TestStagesOfAReadMiss: each node notes what it does for the fault, in the order in which it does
// it, and the two agree about when that was.
func TestStagesOfAReadMiss(t *testing.T) {
	var logs [2]*StageLog
	c := start(t, setup{nodes: 2, change: func(cfg *Config) {
		log, err := NewStageLog(1 << 10)
		if err != nil {
			t.Fatal(err)
		}
		logs[cfg.Self], cfg.Stages = log, log
	}})
	a, b := c.members[0].join(), c.members[1].join()
	page := a.bind("x", 1)
	a.store(page, 0, 1)
	before := [2]int{len(logs[0].Records()), len(logs[1].Records())}
	b.load(page, 0)
	done := func() bool {
		return has(logs[1].Records()[before[1]:], StageDone, "install") && has(logs[0].Records()[before[0]:], StageSent, "Grant")
	}
	eventually(t, "the page is installed", done)
	asks, answers := logs[1].Records()[before[1]:], logs[0].Records()[before[0]:]
	from := int64(0)
	for _, step := range []struct {
		log   []StageRecord
		stage Stage
		what  string
	}{
		{asks, StageFault, ""}, {asks, StagePosted, "Request"}, {answers, StageReceived, "Request"},
		{answers, StageDone, "downgrade"}, {answers, StagePosted, "Grant"}, {asks, StageReceived, "Grant"}, {asks, StageDone, "install"},
	} {
		i := slices.IndexFunc(step.log, func(r StageRecord) bool {
			return r.Stage == step.stage && r.What == step.what && r.Page == uint64(page)
		})
		if i < 0 {
			t.Fatalf("no %s %s of page %d; the nodes noted %+v and %+v", step.stage, step.what, page, asks, answers)
		}
		if step.log[i].Nanos < from {
			t.Errorf("%s %s is %d ns before what precedes it", step.stage, step.what, from-step.log[i].Nanos)
		}
		from = step.log[i].Nanos
	}
	if !has(asks, StageSent, "Request") || !has(answers, StageSent, "Grant") {
		t.Errorf("what was sent was not noted: %+v and %+v", asks, answers)
	}
}

func has(records []StageRecord, s Stage, what string) bool {
	return slices.ContainsFunc(records, func(r StageRecord) bool { return r.Stage == s && r.What == what })
}

// TestStageLogKeepsTheLatest: and says so to whoever asks by HTTP.
func TestStageLogKeepsTheLatest(t *testing.T) {
	l, err := NewStageLog(3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(5) {
		l.add(StageRecord{Page: i, Stage: StageFault})
	}
	w := httptest.NewRecorder()
	l.ServeHTTP(w, httptest.NewRequest("GET", "/debug/stages", nil))
	var pages []uint64
	for in := json.NewDecoder(w.Body); ; {
		var r StageRecord
		if err := in.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, r.Page)
	}
	if !slices.Equal(pages, []uint64{2, 3, 4}) {
		t.Errorf("the log has the pages %d, want 2, 3 and 4", pages)
	}
	for _, capacity := range []int{0, MaxStages + 1} {
		if _, err := NewStageLog(capacity); err == nil {
			t.Errorf("a log of %d records can be had", capacity)
		}
	}
}
