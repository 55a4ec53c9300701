package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/big"
	"reflect"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// fields are those of an object, as encoding/json reads them, with numbers digit by digit.
type fields map[string]any

func read(t *rapid.T, text []byte) (f fields) {
	if !utf8.Valid(text) {
		t.Fatalf("no UTF-8, which other readers refuse: %q", text)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&f); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("there is something behind %q", text)
	}
	return f
}

// time takes away a time, and checks that it is ns nanoseconds.
func (f fields) time(t *rapid.T, name string, ns int64) {
	text, _ := f[name].(json.Number)
	delete(f, name)
	got, ok := new(big.Rat).SetString(text.String())
	if want := big.NewRat(ns, 1000); !ok || got.Cmp(want) != 0 {
		t.Fatalf("%s is %q, not %v µs", name, text, want)
	}
}

// anyText is any bytes, with more of those that JSON has words for.
var anyText = rapid.OneOf(
	rapid.String(), rapid.StringMatching(`[ -~]*`),
	rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) }),
)

// TestEvents: encoding/json reads an event as what encoding/json would have written, whatever its
// texts and numbers are, and its times to the nanosecond.
func TestEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := event{
			phase: rapid.SampledFrom([]string{complete, instant}).Draw(t, "phase"), name: anyText.Draw(t, "name"),
			category: anyText.Draw(t, "category"), process: rapid.Int().Draw(t, "process"), thread: rapid.IntRange(0, 3).Draw(t, "thread"),
			at: rapid.Int64Min(1-math.MaxInt64).Draw(t, "at"), duration: rapid.Int64Min(0).Draw(t, "duration"),
			flow: rapid.Uint64Max(3).Draw(t, "flow"), binds: anyText.Draw(t, "binds"), scope: anyText.Draw(t, "scope"),
		}
		args, waited := anyArguments(t, &e)
		want, err := json.Marshal(struct {
			Phase    string         `json:"ph"`
			Name     string         `json:"name"`
			Category string         `json:"cat,omitempty"`
			Process  int            `json:"pid"`
			Thread   int            `json:"tid,omitempty"`
			Flow     uint64         `json:"id,omitempty"`
			Binds    string         `json:"bp,omitempty"`
			Scope    string         `json:"s,omitempty"`
			Args     map[string]any `json:"args,omitempty"`
		}{e.phase, e.name, e.category, e.process, e.thread, e.flow, e.binds, e.scope, args})
		if err != nil {
			t.Fatal(err)
		}
		text := object("{")
		e.appendTo(&text)
		text.end()
		got := read(t, text)
		got.time(t, "ts", e.at)
		if e.phase == complete {
			got.time(t, "dur", e.duration)
		}
		if waited > 0 {
			fields(got["args"].(map[string]any)).time(t, "granted after µs", waited)
		}
		if !reflect.DeepEqual(got, read(t, want)) {
			t.Fatalf("%s, and not %s", text, want)
		}
	})
}

// anyArguments gives an event arguments, and returns them, but for a time, which is granted.
func anyArguments(t *rapid.T, e *event) (args map[string]any, granted int64) {
	number := rapid.Uint32Max(3)
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		name := anyText.Draw(t, "title")
		e.args, args = title(name), map[string]any{"name": name}
	case 1:
		text := anyText.Draw(t, "label")
		e.args, args = label(text), map[string]any{"labels": text}
	case 2:
		index := rapid.Int().Draw(t, "order")
		e.args, args = order(index), map[string]any{"sort_index": index}
	case 3:
		d := departure{Page: rapid.Uint64().Draw(t, "page"), By: number.Draw(t, "by")}
		args = map[string]any{"page": d.Page, "by node": d.By}
		if rapid.Bool().Draw(t, "compared") {
			d.Written = []uint64{5, 1 << 63}
			args["words changed here"] = 3
		}
		e.args = &d
	case 4:
		f := faultlog.Fault{Page: rapid.Uint64().Draw(t, "page"), From: faultlog.NoNode, Taker: faultlog.NoNode}
		x := wait{category: runstats.Memory, fault: &f, line: "main.go:7"}
		e.args, args = &x, map[string]any{"page": f.Page, "line": x.line}
		if rapid.Bool().Draw(t, "known") {
			x.element, f.From, f.Granted = anyText.Draw(t, "element")+"[1]", number.Draw(t, "from"), time.Duration(rapid.Int64Min(1).Draw(t, "granted"))
			args["element"], args["from node"], granted = x.element, f.From, int64(f.Granted)
		}
		if rapid.Bool().Draw(t, "taken") {
			f.Taker, f.TakerAccess = number.Draw(t, "taker"), faultlog.Upgrade
			args["taken by node"], args["taken for"] = f.Taker, "upgrade"
		}
	}
	return args, granted
}
