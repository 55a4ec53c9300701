package stages

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dsmd/bench/micro"
)

// fault is what two daemons note of a read miss that begins at a time; every stage takes as many
// microseconds as it has in front of it, and one.
func fault(start int64, page uint64) (access Access, asks, answers []Record) {
	at := start
	next := func(stage, what string) Record {
		at += 1000 * int64(1+len(asks)+len(answers))
		return Record{at, page, stage, what}
	}
	asks = append(asks, next("fault", ""))
	asks = append(asks, next("posted", "Request"))
	answers = append(answers, next("received", "Request"))
	answers = append(answers, next("done", "downgrade"))
	answers = append(answers, next("posted", "Grant"))
	asks = append(asks, next("received", "Grant"))
	asks = append(asks, next("done", "install"))
	return Access{start, at + 8000}, asks, answers
}

func readMiss(t *testing.T) micro.Micro {
	m, err := micro.Choose([]string{"read_miss"})
	if err != nil {
		t.Fatal(err)
	}
	return m[0]
}

// sample is the operation of three faults, among which lie an access that did not fault and what
// the daemons have noted of other pages.
func sample(t *testing.T) Operation {
	var accesses []Access
	var asks, answers []Record
	for i := range int64(3) {
		access, a, b := fault(1+i*1e6, uint64(i))
		accesses = append(accesses, access)
		asks, answers = slices.Concat(asks, a), slices.Concat(answers, b)
		// in front of, among and behind those of the next one
		for _, other := range []int64{10, 11, 12} {
			asks = append(asks, Record{access.End + other, 77, "done", "install"})
			answers = append(answers, Record{access.End + other, 77, "received", "Request"})
		}
	}
	accesses = append(accesses, Access{500_000, 500_100})
	o, err := Summarise(readMiss(t), accesses, asks, answers)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestStagesOfAFaultAreItsWholeTime(t *testing.T) {
	o := sample(t)
	if o.Samples != 3 || o.LeftOut != 1 || o.P50 != 36 || o.P99 != 36 || o.Slowest != 36 {
		t.Errorf("the operation is %+v", o)
	}
	for i, s := range o.Stages {
		if want := float64(i + 1); s.P50 != want || s.P99 != want || math.Abs(s.Slowest-want) > 1e-9 {
			t.Errorf("stage %d is %+v, want %v µs", i, s, want)
		}
	}
}

// TestWokenBeforeTheCallReturns: the time after the thread goes on is not that of its access.
func TestWokenBeforeTheCallReturns(t *testing.T) {
	access, asks, answers := fault(0, 5)
	access.End = asks[len(asks)-1].Nanos - 3000
	o, err := Summarise(readMiss(t), []Access{access}, asks, answers)
	if err != nil {
		t.Fatal(err)
	}
	if last := len(o.Stages) - 1; o.P50 != 25 || o.Stages[last].P50 != 0 || o.Stages[last-1].P50 != 4 {
		t.Errorf("the operation is %+v", o)
	}
}

// TestAnotherWay: a fault of which something is missing, or whose access began later, is not taken
// apart.
func TestAnotherWay(t *testing.T) {
	access, asks, answers := fault(0, 5)
	for i := range asks {
		if _, err := Summarise(readMiss(t), []Access{access}, slices.Delete(slices.Clone(asks), i, i+1), answers); !errors.Is(err, ErrNoPath) {
			t.Errorf("without %+v: %v", asks[i], err)
		}
	}
	for i := range answers {
		if _, err := Summarise(readMiss(t), []Access{access}, asks, slices.Delete(slices.Clone(answers), i, i+1)); !errors.Is(err, ErrNoPath) {
			t.Errorf("without %+v: %v", answers[i], err)
		}
	}
	access.Start = 2000
	if _, err := Summarise(readMiss(t), []Access{access}, asks, answers); !errors.Is(err, ErrNoPath) {
		t.Errorf("of an access that began after its fault: %v", err)
	}
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	r := Result{[]Operation{sample(t), sample(t), sample(t)}}
	if err := r.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "stages.json"))
	var back Result
	if err != nil || json.Unmarshal(text, &back) != nil || len(back.Operations) != 3 || len(back.Operations[2].Stages) != len(steps) {
		t.Errorf("stages.json has %s, %v", text, err)
	}
	for _, s := range []string{r.Text(), r.Markdown()} {
		if !strings.Contains(s, "thread goes on") || !strings.Contains(s, "36.0") {
			t.Errorf("the text lacks a stage or the whole:\n%s", s)
		}
	}
	for _, name := range []string{"stages-faults.png", "stages-faults.svg", "stages.md"} {
		if i, err := os.Stat(filepath.Join(dir, name)); err != nil || i.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
