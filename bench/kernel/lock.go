package kernel

import (
	"context"
	"sync"
)

// Mutex is a lock as threads of a kernel use it. *dsm.Mutex is one for threads of all nodes, and
// NewMutex makes one for goroutines on ordinary memory; the body of a kernel is given either.
type Mutex interface {
	// Lock returns nil when the caller has the lock, or ctx's error.
	Lock(ctx context.Context) error
	// Unlock gives it back.
	Unlock() error
}

// NewMutex returns a Mutex for goroutines of one process. Its Lock does not end with the context:
// what kernels do while they hold a lock is short, and waits for nobody.
func NewMutex() Mutex { return &localMutex{} }

type localMutex struct{ mu sync.Mutex }

func (m *localMutex) Lock(context.Context) error { m.mu.Lock(); return nil }

func (m *localMutex) Unlock() error { m.mu.Unlock(); return nil }
