package collections

import (
	"context"
	"errors"
	"fmt"

	"dsmd/dsm"
)

// owner is who changes pages: a handle of a map. Its id stands in the lock words of pages, and as
// long as it lives its program holds a lock of the cluster with that number. So others can ask
// whether the program is dead whose id stands in a page.
type owner struct {
	c    cluster
	name string // of the map
	id   uint64
	life *dsm.Mutex
}

// newOwner takes the next of the ids that draw returns, one that nobody else has. draw never
// returns one again, as it is committed before it is used; but memory of this name that was freed
// may have had it.
func newOwner(ctx context.Context, c cluster, name string, draw func() (uint64, error)) (*owner, error) {
	died := errors.New("its owner has died")
	for {
		id, err := draw()
		if err := errors.Join(err, c.Commit(ctx)); err != nil {
			return nil, err
		}
		o := &owner{c: c, name: name, id: id}
		o.life = o.lifeOf(id)
		err = o.life.LockRepair(ctx, func(by *dsm.OwnerDiedError) error {
			if by.Node >= 0 {
				return nil // which is said of new locks, too, whose home was there
			}
			return died
		})
		switch {
		case err == nil:
			return o, nil
		case !errors.Is(err, died):
			return nil, err
		}
	}
}

func (o *owner) lifeOf(id uint64) *dsm.Mutex {
	return dsm.NewMutex(o.c.Cluster, fmt.Sprintf("%s/owner/%d", o.name, id))
}

// looksPerDoubt is after how many looks at a page one asks whether who changes it is dead: some
// 100 ms.
const looksPerDoubt = 100

// await waits for who changes a page, before a look. If that program is dead, it takes the lock
// over, sees to it that the page is as it should be, and gives it back.
func (o *owner) await(ctx context.Context, p page, look int, mend func(p page)) error {
	if err := pause(ctx, look); err != nil || look%looksPerDoubt != looksPerDoubt-1 {
		return err
	}
	other := p[lockWord].Load()
	if other == 0 || other == o.id {
		return nil
	}
	life := o.lifeOf(other)
	switch gone, err := life.TryLock(ctx); {
	case errors.Is(err, dsm.ErrOwnerDied):
	case err != nil:
		return err
	case !gone:
		return nil
	default: // its handle was freed, or died before a checkpoint
		if err := life.Unlock(); err != nil {
			return err
		}
	}
	if p[lockWord].CompareAndSwap(other, o.id) {
		p.begin()
		mend(p)
		p.unlock()
	}
	return nil
}

// begin and end are around changes of a page that is locked: readers in between look again.
func (p page) begin() { p.set(versionWord, p[versionWord].Load()|1) }

func (p page) end() { p.set(versionWord, (p[versionWord].Load()|1)+1) }

// unlock gives back a page that is locked, changed or not.
func (p page) unlock() {
	if p[versionWord].Load()%2 == 1 {
		p.end()
	}
	p[lockWord].Store(0)
}
