package trace

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// object is JSON under way, whose innermost object is open. A trace has tens of thousands of small
// objects for each second of a job, on processors that the job needs; by reflection, as
// encoding/json writes them, each takes several times as long.
type object []byte

// key begins a field. The name stands as it is.
func (o *object) key(name string) {
	if b := *o; b[len(b)-1] != '{' {
		*o = append(b, ',')
	}
	*o = append(append(append(*o, '"'), name...), `":`...)
}

func (o *object) begin(name string) {
	o.key(name)
	*o = append(*o, '{')
}

func (o *object) end() { *o = append(*o, '}') }

func (o *object) int(name string, v int64) {
	o.key(name)
	*o = strconv.AppendInt(*o, v, 10)
}

func (o *object) uint(name string, v uint64) {
	o.key(name)
	*o = strconv.AppendUint(*o, v, 10)
}

// micros writes a time of ns nanoseconds in microseconds, with all digits, which a float64 may not
// have.
func (o *object) micros(name string, ns int64) {
	o.key(name)
	b := *o
	if ns < 0 {
		b, ns = append(b, '-'), -ns
	}
	b = strconv.AppendInt(b, ns/1000, 10)
	if part := ns % 1000; part != 0 {
		b = append(b, '.', byte('0'+part/100), byte('0'+part/10%10), byte('0'+part%10))
	}
	*o = b
}

// optional writes a text, unless there is none.
func (o *object) optional(name, text string) {
	if text != "" {
		o.text(name, text)
	}
}

func (o *object) text(name, text string) {
	o.key(name)
	b, start := append(*o, '"'), len(*o)
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c >= utf8.RuneSelf:
			quoted, _ := json.Marshal(text) // which no text makes fail
			*o = append(b[:start], quoted...)
			return
		default:
			b = append(b, c)
		}
	}
	*o = append(b, '"')
}
