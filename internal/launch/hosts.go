package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Host is a machine of a job.
type Host struct {
	// as ssh understands it: a name, an address, a name of ~/.ssh/config, USER@ before it
	Name  string
	Slots int // programs, all attached to the machine's one daemon; at least 1
}

// maxSlots bounds the programs of a host.
const maxSlots = maxAgentChildren / 2

// parseSlots bounds them before they are added up.
func parseSlots(word string) (n int, ok bool) {
	n, err := strconv.Atoi(word)
	return n, err == nil && n >= 1 && n <= maxSlots
}

// ParseHosts reads hosts, each NAME or NAME:SLOTS; an IPv6 address with slots is written in
// brackets. One that comes again adds to its slots, as mpirun counts it.
func ParseHosts(words []string) ([]Host, error) {
	var hosts []Host
	for _, word := range words {
		h, err := parseHost(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		if hosts, err = addHost(hosts, h); err != nil {
			return nil, err
		}
	}
	return hosts, nil
}

func addHost(hosts []Host, h Host) ([]Host, error) {
	for i := range hosts {
		at := &hosts[i]
		if at.Name != h.Name {
			continue
		}
		if at.Slots += h.Slots; at.Slots > maxSlots {
			return nil, fmt.Errorf("launch: host %s has %d slots; 1 to %d are possible", at.Name, at.Slots, maxSlots)
		}
		return hosts, nil
	}
	return append(hosts, h), nil
}

func parseHost(word string) (Host, error) {
	h := Host{Name: word, Slots: 1}
	name, slots, found := word, "", false
	switch colon := strings.LastIndexByte(word, ':'); {
	case strings.HasPrefix(word, "[") && strings.HasSuffix(word, "]"):
		h.Name = word[1 : len(word)-1]
	case strings.HasPrefix(word, "["):
		if name, slots, found = strings.Cut(word[1:], "]:"); !found {
			return Host{}, fmt.Errorf("launch: host %q: write [ADDRESS]:SLOTS", word)
		}
	case colon >= 0 && strings.Count(word, ":") == 1:
		name, slots, found = word[:colon], word[colon+1:], true
	}
	if found {
		n, ok := parseSlots(slots)
		if !ok {
			return Host{}, fmt.Errorf("launch: host %q: %q is no number of slots; write HOST:SLOTS, with 1 to %d", word, slots, maxSlots)
		}
		h = Host{Name: name, Slots: n}
	}
	if h.Name == "" || strings.HasPrefix(h.Name, "-") || strings.ContainsAny(h.Name, " \t") {
		return Host{}, fmt.Errorf("launch: %q is no name of a host", word)
	}
	return h, nil
}

// ReadHosts reads a file of hosts: one a line, as in ParseHosts or with slots=N behind the name, as
// in mpirun's; # begins a comment.
func ReadHosts(from io.Reader) ([]Host, error) {
	var hosts []Host
	lines := bufio.NewScanner(from)
	for number := 1; lines.Scan(); number++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		h, err := parseHost(fields[0])
		for _, f := range fields[1:] {
			slots, ok := strings.CutPrefix(f, "slots=")
			n, inRange := parseSlots(slots)
			if !ok || !inRange {
				err = errors.Join(err, fmt.Errorf("launch: %q: behind a host there may be slots=N, with 1 to %d", f, maxSlots))
			}
			h.Slots = n
		}
		if err == nil {
			hosts, err = addHost(hosts, h)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return hosts, lines.Err()
}
