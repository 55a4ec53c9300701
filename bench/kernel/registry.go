package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrUnknown is returned for a kernel that is not registered.
var ErrUnknown = errors.New("no such kernel")

// A Registry is a list of kernels, in the order in which they are shown.
type Registry []Kernel

// Find returns the kernel of that name, or an ErrUnknown that lists those there are.
func (r Registry) Find(name string) (Kernel, error) {
	i := slices.IndexFunc(r, func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return Kernel{}, fmt.Errorf("%w: %q; there are: %s", ErrUnknown, name, strings.Join(r.Names(), ", "))
	}
	return r[i], nil
}

// ThatRead lists the names of the kernels that read problems from files.
func (r Registry) ThatRead() []string {
	var names []string
	for _, k := range r {
		if k.Read != nil {
			names = append(names, k.Name)
		}
	}
	return names
}

// Names lists the kernels' names.
func (r Registry) Names() []string {
	names := make([]string, len(r))
	for i, k := range r {
		names[i] = k.Name
	}
	return names
}
