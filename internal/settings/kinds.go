package settings

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"dsmd/node"
)

// kind is what a value looks like. It is a pflag.Value that refuses what is out of range, so that
// flags, environment and file have the same limits.
type kind[T any] struct {
	to    *T
	name  string // of the placeholder in --help
	parse func(string) (T, error)
	show  func(T) string
}

func (k kind[T]) Set(s string) error {
	v, err := k.parse(s)
	if err == nil {
		*k.to = v
	}
	return err
}
func (k kind[T]) String() string { return k.show(*k.to) }
func (k kind[T]) Type() string   { return k.name }

// text is any text that check, if there is one, has nothing against.
func text(to *string, name string, check func(string) error) pflag.Value {
	return kind[string]{to, name, func(s string) (string, error) {
		if check == nil {
			return s, nil
		}
		return s, check(s)
	}, func(s string) string { return s }}
}

// oneOf is one of some names.
type oneOf struct {
	pflag.Value
	names []string
}

// Words are all that the value can be, for shells to complete.
func (o oneOf) Words() []string { return o.names }

// Choice is a value that is one of some names. placeholder stands for it in --help.
func Choice(to *string, placeholder string, names []string) pflag.Value {
	return oneOf{text(to, placeholder, func(s string) error {
		if !slices.Contains(names, s) {
			return fmt.Errorf("%q is not possible; available are %s", s, strings.Join(names, ", "))
		}
		return nil
	}), names}
}

// maxItems bounds a list: more than a cluster has nodes.
const maxItems = 1 << 12

// list is some texts, separated by commas; given again as a flag, it adds to what was given before.
// It is that of the setting in of; placeholder is for --help.
func list(of *Values, setting string, to *[]string, placeholder string) pflag.Value {
	return kind[[]string]{to, placeholder, func(s string) ([]string, error) {
		var items []string
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
		if of.added[setting] {
			items = append(slices.Clone(*to), items...)
		}
		if len(items) > maxItems {
			return nil, fmt.Errorf("%d items; at most %d are possible", len(items), maxItems)
		}
		of.added[setting] = true
		return items, nil
	}, func(items []string) string { return strings.Join(items, ",") }}
}

// number is a whole number from low to high, or none, which is written as the text unset.
func number(to *int, low, high int, unset string, none int) pflag.Value {
	return kind[int]{to, "N", func(s string) (int, error) {
		if s == unset {
			return none, nil
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			either := ""
			if unset != "" {
				either = ", or " + unset
			}
			return 0, fmt.Errorf("%q is not possible: %d to %d%s", s, low, high, either)
		}
		return n, nil
	}, func(n int) string {
		if n == none {
			return unset
		}
		return strconv.Itoa(n)
	}}
}

// size is a number of bytes, in whole pages, from least, or one page if that is 0, to most.
func size(to *Bytes, least, most Bytes) pflag.Value {
	return kind[Bytes]{to, "SIZE", func(s string) (n Bytes, err error) {
		if err := n.Set(s); err != nil {
			return 0, err
		}
		page := Bytes(os.Getpagesize())
		least := max(least, page)
		switch {
		case n%page != 0:
			return 0, fmt.Errorf("%s is not a whole number of pages of %d bytes", n, page)
		case n < least || n > most:
			return 0, fmt.Errorf("%s is not possible: %s to %s", n, least, most)
		}
		return n, nil
	}, Bytes.String}
}

// unlimited is the word for no bound.
const unlimited = "unlimited"

// rate is a number of bits per second from least to most, or unlimited.
func rate(to *Rate, least, most Rate) pflag.Value {
	return kind[Rate]{to, "RATE", func(s string) (r Rate, err error) {
		if s == unlimited {
			return 0, nil
		}
		if err := r.Set(s); err != nil {
			return 0, err
		}
		if r < least || r > most {
			return 0, fmt.Errorf("%s is not possible: %v to %v, or %s", s, least, most, unlimited)
		}
		return r, nil
	}, func(r Rate) string {
		if r == 0 {
			return unlimited
		}
		return r.String()
	}}
}

// room is a number of bytes, in whole pages, or one of two words.
func room(to *Bytes) pflag.Value {
	bytes := Bytes(0)
	plain := size(&bytes, node.MinMemoryBytes, mostMemory)
	return kind[Bytes]{to, "SIZE", func(s string) (Bytes, error) {
		switch s {
		case "auto":
			return AutoMemory, nil
		case unlimited:
			return UnlimitedMemory, nil
		}
		if err := plain.Set(s); err != nil {
			return 0, fmt.Errorf("%w, or auto, or %s", err, unlimited)
		}
		return bytes, nil
	}, func(n Bytes) string {
		switch n {
		case AutoMemory:
			return "auto"
		case UnlimitedMemory:
			return unlimited
		}
		return n.String()
	}}
}

// span is a duration.
func span(to *time.Duration, least, most time.Duration) pflag.Value {
	return kind[time.Duration]{to, "DURATION", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, fmt.Errorf("%q is no duration: write a number and a unit, like 20µs or 1m30s", s)
		}
		if d < least || d > most {
			return 0, fmt.Errorf("%v is not possible: %v to %v", d, least, most)
		}
		return d, nil
	}, time.Duration.String}
}

// truth is true or false. As a flag it needs no value.
func truth(to *bool) pflag.Value {
	return kind[bool]{to, "bool", func(s string) (bool, error) {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return false, fmt.Errorf("%q is neither true nor false", s)
		}
		return b, nil
	}, strconv.FormatBool}
}
