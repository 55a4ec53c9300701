package settings

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// A kind is what a value looks like. It is a pflag.Value that refuses what is out of range, so that
// flags, environment and file have the same limits.

// text is any text that check, if there is one, has nothing against.
type text struct {
	to    *string
	name  string // of the placeholder in --help
	check func(string) error
}

func (k text) Set(s string) error {
	if k.check != nil {
		if err := k.check(s); err != nil {
			return err
		}
	}
	*k.to = s
	return nil
}
func (k text) String() string { return *k.to }
func (k text) Type() string   { return k.name }

// choice is one of some names.
type choice struct {
	to    *string
	names []string
}

func (k choice) Set(s string) error {
	if !slices.Contains(k.names, s) {
		return fmt.Errorf("%q is not possible; available are %s", s, strings.Join(k.names, ", "))
	}
	*k.to = s
	return nil
}
func (k choice) String() string { return *k.to }
func (k choice) Type() string   { return "NAME" }

// list is some texts, separated by commas; given again as a flag, it adds to what was given before.
type list struct {
	of   *Values
	name string // of the setting
	to   *[]string
	kind string // of the placeholder in --help
}

func (k list) Set(s string) error {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	if k.of.added[k.name] {
		items = append(slices.Clone(*k.to), items...)
	}
	if len(items) > maxItems {
		return fmt.Errorf("%d items; at most %d are possible", len(items), maxItems)
	}
	k.of.added[k.name] = true
	*k.to = items
	return nil
}
func (k list) String() string { return strings.Join(*k.to, ",") }
func (k list) Type() string   { return k.kind }

// maxItems bounds a list: more than a cluster has nodes.
const maxItems = 1 << 12

// number is a whole number from min to max, or none, which is written as the text unset.
type number struct {
	to       *int
	min, max int
	unset    string
	none     int
}

func (k number) Set(s string) error {
	if s == k.unset {
		*k.to = k.none
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < k.min || n > k.max {
		either := ""
		if k.unset != "" {
			either = ", or " + k.unset
		}
		return fmt.Errorf("%q is not possible: %d to %d%s", s, k.min, k.max, either)
	}
	*k.to = n
	return nil
}
func (k number) String() string {
	if *k.to == k.none {
		return k.unset
	}
	return strconv.Itoa(*k.to)
}
func (k number) Type() string { return "N" }

// size is a number of bytes, in whole pages.
type size struct {
	to  *Bytes
	max Bytes
}

func (k size) Set(s string) error {
	var n Bytes
	if err := n.Set(s); err != nil {
		return err
	}
	page := Bytes(os.Getpagesize())
	switch {
	case n%page != 0:
		return fmt.Errorf("%s is not a whole number of pages of %d bytes", n, page)
	case n == 0 || n > k.max:
		return fmt.Errorf("%s is not possible: 1 page (%d bytes) to %s", n, page, k.max)
	}
	*k.to = n
	return nil
}
func (k size) String() string { return k.to.String() }
func (k size) Type() string   { return "SIZE" }

// span is a duration.
type span struct {
	to       *time.Duration
	min, max time.Duration
}

func (k span) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is no duration: write a number and a unit, like 20µs or 1m30s", s)
	}
	if d < k.min || d > k.max {
		return fmt.Errorf("%v is not possible: %v to %v", d, k.min, k.max)
	}
	*k.to = d
	return nil
}
func (k span) String() string { return k.to.String() }
func (k span) Type() string   { return "DURATION" }

// truth is true or false. As a flag it needs no value.
type truth struct{ to *bool }

func (k truth) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", s)
	}
	*k.to = b
	return nil
}
func (k truth) String() string   { return strconv.FormatBool(*k.to) }
func (k truth) Type() string     { return "bool" }
func (k truth) IsBoolFlag() bool { return true }

var _ = []pflag.Value{text{}, choice{}, list{}, number{}, size{}, span{}, truth{}}
