package launch

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Format is the format of what a job prints. It is the value of a flag.
type Format string

// The formats.
const (
	// Prefixed has each line of a program behind its rank; "" is the same.
	Prefixed Format = "prefix"
	// Plain has the programs' lines as they are. Those of daemons have their prefix.
	Plain Format = "plain"
	// JSON has an object for each line: when it came, of which rank or node or whom else, from
	// which of its outputs, and the text. What is no UTF-8 in it is replaced by U+FFFD.
	JSON Format = "json"
)

// inDirectory begins a Format that names a directory: each output of each program and daemon goes
// to a file of its own there. Everybody else's lines are as with Prefixed.
const inDirectory = "dir:"

// formats are those without a directory.
var formats = []string{string(Prefixed), string(Plain), string(JSON)}

// directory is the one that the format names, "" for none.
func (f Format) directory() string {
	dir, _ := strings.CutPrefix(string(f), inDirectory)
	if dir == string(f) {
		return ""
	}
	return dir
}

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value: it is what a help text calls the value.
func (f *Format) Type() string { return strings.Join(formats, "|") + "|" + inDirectory + "DIR" }

// Words are what shells complete the value to.
func (f *Format) Words() []string { return append(slices.Clone(formats), inDirectory) }

// Set implements pflag.Value.
func (f *Format) Set(word string) error {
	if !slices.Contains(formats, word) && Format(word).directory() == "" {
		return fmt.Errorf("one of %s is wanted, or %sDIR", strings.Join(formats, ", "), inDirectory)
	}
	*f = Format(word)
	return nil
}

// layout is how lines are written.
type layout struct {
	format     Format
	timestamps bool               // in front of each line; objects always have them
	children   map[string]childID // by prefix
	folder     *folder            // where children's lines go, or nil
}

// timeLayout is RFC 3339 to the microsecond, in the zone of this machine.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// begin appends what stands before a line.
func (l *layout) begin(b []byte, prefix string) []byte {
	if l.timestamps {
		b = append(time.Now().AppendFormat(b, timeLayout), ' ')
	}
	id, isChild := l.children[prefix]
	if isChild && (l.folder != nil || l.format == Plain && id.Role == program) {
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
func (l *layout) object(b []byte, s source, line []byte) []byte {
	r := record{Time: time.Now().Format(timeLayout), Stream: s.stream, Text: strings.TrimSuffix(string(line), "\n")}
	switch id, known := l.children[s.prefix]; {
	case !known:
		r.From = strings.Trim(s.prefix, "[]: ")
	case id.Role == daemon:
		r.Node = &id.Index
	default:
		r.Rank = &id.Index
	}
	return append(append(b, mustEncode(r)...), '\n')
}

// layout is how the lines of a job are written.
func (p *plan) layout(cfg *Config) (l layout, err error) {
	l = layout{format: cfg.Format, timestamps: cfg.Timestamps, children: map[string]childID{}}
	if dir := cfg.Format.directory(); dir != "" {
		l.folder, err = newFolder(dir, width(max(p.nodes(), p.ranks)))
	}
	for node := range p.nodes() {
		l.children[p.prefix(childID{daemon, node})] = childID{daemon, node}
	}
	for rank := range p.ranks {
		l.children[p.prefix(childID{program, rank})] = childID{program, rank}
	}
	return l, err
}

// prefix is what stands before each line of a child.
func (p *plan) prefix(id childID) string {
	if id.Role == daemon {
		return fmt.Sprintf("[dsmd %*d] ", width(p.nodes()), id.Index)
	}
	return fmt.Sprintf("[%*d] ", width(p.ranks), id.Index)
}
