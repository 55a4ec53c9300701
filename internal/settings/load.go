package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// DefaultFile is the configuration file that is read if it exists and no other is named.
const DefaultFile = "/etc/dsmd/dsmd.yaml"

// Sources is where values come from that are not given as flags.
type Sources struct {
	File   string                      // the configuration file; "": DefaultFile, if it exists
	Lookup func(string) (string, bool) // the environment, as os.LookupEnv is; nil: none
}

// ErrConfig is wrapped by the errors about a configuration that makes no sense. Each says where the
// value stands and what is allowed.
var ErrConfig = errors.New("configuration")

// Load gives every setting that no flag has set the value that the environment or the file has for
// it. All that is wrong is reported at once, also in values that count for nothing because a flag
// or a variable goes before them. Preconditions: v was registered with flags, which have been
// parsed; or flags is nil.
func (v *Values) Load(flags *pflag.FlagSet, from Sources) error {
	entries, err := readFile(from.File)
	if err != nil {
		return err
	}
	var problems []error
	for i := range All {
		s := &All[i]
		given := flags != nil && flags.Changed(s.Name)
		if given {
			v.origins[s.Name] = "flag " + s.Flag()
		}
		if e, ok := entries[s.Name]; ok {
			problems = append(problems, v.take(s, e.value, e.where, given))
		}
		if from.Lookup == nil {
			continue
		}
		if value, ok := from.Lookup(s.Variable()); ok {
			problems = append(problems, v.take(s, value, "environment "+s.Variable(), given))
		}
	}
	return errors.Join(problems...)
}

// take lets a value count, unless a flag goes before it.
func (v *Values) take(s *Setting, value, where string, overridden bool) error {
	if overridden {
		return checkValue(s, value, where)
	}
	delete(v.added, s.Name) // it replaces what the file or the default has
	if err := s.value(v).Set(value); err != nil {
		return fmt.Errorf("%w: %s: %s: %w", ErrConfig, where, s.Name, err)
	}
	v.origins[s.Name] = where
	return nil
}

// checkValue tries a value without letting it count.
func checkValue(s *Setting, value, where string) error {
	if err := s.value(blank()).Set(value); err != nil {
		return fmt.Errorf("%w: %s: %s: %w", ErrConfig, where, s.Name, err)
	}
	return nil
}

// readFile reads the file that is named, or the one that need not be there.
func readFile(name string) (map[string]entry, error) {
	optional := name == ""
	if optional {
		name = DefaultFile
	}
	f, err := os.Open(name)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the configuration file cannot be read: %w", ErrConfig, err)
	}
	defer f.Close()
	return parse(name, f)
}

// Unknown lists the variables of an environment (as os.Environ is) that look like settings, by
// their prefix, and are none. They are no error, because the prefix is used for other things too,
// but most often a mistake.
func Unknown(environ []string) []string {
	var unknown []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if name == EnvConfig || name == EnvSSH {
			continue
		}
		if setting, ok := strings.CutPrefix(name, envPrefix); ok && lookup(strings.ToLower(strings.ReplaceAll(setting, "_", "-"))) == nil {
			unknown = append(unknown, name)
		}
	}
	return unknown
}
