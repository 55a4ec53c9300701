package kernel

import (
	"context"
	"errors"
	"fmt"

	"dsmd/dsm"
)

// Memory is the shared memory that a run has taken, to be given back together. The zero Memory is that of a run on ordinary
// memory: there is none. A Run that embeds a Memory has its Close. It is used by one goroutine at a time.
type Memory struct{ free []func() error }

// Share allocates n shared elements under the given name, for a run to have in *into until m is closed. Like dsm.Alloc it is
// collective. After an error, what was allocated before is still m's.
func Share[T any](ctx context.Context, m *Memory, c *dsm.Cluster, name string, n int, into *[]T) error {
	elements, err := dsm.Alloc[T](c, name, n, dsm.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("allocating %s: %w", name, err)
	}
	*into = elements
	m.free = append(m.free, func() error { return dsm.Free(c, elements) })
	return nil
}

// ShareAlone is Share of one value that lies alone on its page, as dsm.Isolate puts it.
func ShareAlone[T any](ctx context.Context, m *Memory, c *dsm.Cluster, name string, into **T) error {
	value, err := dsm.Isolate[T](c, name, dsm.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("allocating %s: %w", name, err)
	}
	*into = value
	m.free = append(m.free, func() error { return dsm.FreeIsolated(c, value) })
	return nil
}

// Close gives the memory back, all of it also if that fails for a part. On a cluster every rank calls it.
func (m *Memory) Close() error {
	var errs []error
	for _, free := range m.free {
		errs = append(errs, free())
	}
	m.free = nil
	return errors.Join(errs...)
}
