package launch

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Style is how what a job prints looks. It is the value of a flag.
type Style string

// The styles.
const (
	// Prefixed has each line of a program behind its rank; "" is the same.
	Prefixed Style = "prefix"
	// Plain has the programs' lines as they are. Those of daemons have their prefix.
	Plain Style = "plain"
	// JSON has an object for each line: when it came, of which rank or node or whom else, from
	// which of its outputs, and the text. What is no UTF-8 in it is replaced by U+FFFD.
	JSON Style = "json"
)

// styles are all of them.
var styles = []string{string(Prefixed), string(Plain), string(JSON)}

// String implements pflag.Value.
func (s *Style) String() string { return string(*s) }

// Type implements pflag.Value: it is what a help text calls the value.
func (s *Style) Type() string { return strings.Join(styles, "|") }

// Set implements pflag.Value.
func (s *Style) Set(word string) error {
	if !slices.Contains(styles, word) {
		return fmt.Errorf("one of %s is wanted", strings.Join(styles, ", "))
	}
	*s = Style(word)
	return nil
}

// look makes lines of texts.
type look struct {
	style Style
	times bool               // each line has the time when it came before it
	whose map[string]childID // by prefix
}

// timeLayout is RFC 3339 to the microsecond, in the zone of this machine.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// begin appends what stands before a line.
func (l *look) begin(b []byte, prefix string) []byte {
	if l.times {
		b = append(time.Now().AppendFormat(b, timeLayout), ' ')
	}
	if id, is := l.whose[prefix]; is && l.style == Plain && id.Role == program {
		return b
	}
	return append(b, prefix...)
}

// record is a line as an object.
type record struct {
	Time   string `json:"time"`
	Rank   *int   `json:"rank,omitempty"`
	Node   *int   `json:"node,omitempty"`
	From   string `json:"from,omitempty"` // neither a program nor a daemon: a host, or dsmd itself
	Stream string `json:"stream"`
	Text   string `json:"text"`
}

// object appends a line as an object.
func (l *look) object(b []byte, s source, line []byte) []byte {
	r := record{Time: time.Now().Format(timeLayout), Stream: "stdout", Text: strings.TrimSuffix(string(line), "\n")}
	if s.errors {
		r.Stream = "stderr"
	}
	switch id, known := l.whose[s.prefix]; {
	case !known:
		r.From = strings.Trim(s.prefix, "[]: ")
	case id.Role == daemon:
		r.Node = &id.Index
	default:
		r.Rank = &id.Index
	}
	return append(append(b, mustEncode(r)...), '\n')
}

// look is how what a job prints looks.
func (p *plan) look(cfg *Config) look {
	l := look{style: cfg.Style, times: cfg.Timestamps, whose: map[string]childID{}}
	for node := range p.nodes() {
		l.whose[p.prefix(childID{daemon, node})] = childID{daemon, node}
	}
	for rank := range p.ranks {
		l.whose[p.prefix(childID{program, rank})] = childID{program, rank}
	}
	return l
}

// prefix is what stands before each line of a child.
func (p *plan) prefix(id childID) string {
	if id.Role == daemon {
		return fmt.Sprintf("[dsmd %*d] ", width(p.nodes()), id.Index)
	}
	return fmt.Sprintf("[%*d] ", width(p.ranks), id.Index)
}
