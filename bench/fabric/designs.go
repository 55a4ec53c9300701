//go:build rdma && cgo

package fabric

import (
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"dsmd/bench/table"
	"dsmd/internal/verbs"
)

// orderBytes is the length of an order in the source of the end that fetches.
const orderBytes = 32

// An order asks for a page. The end that serves it writes it to addr, or into the pool's slot if
// that is 0.
type order struct {
	page    uint32
	counted bool // false while caches fill
	addr    uint64
	key     uint32
}

func (o order) put(b []byte) {
	binary.NativeEndian.PutUint64(b, o.addr)
	binary.NativeEndian.PutUint32(b[8:], o.page)
	binary.NativeEndian.PutUint32(b[12:], o.key)
	b[16] = 0
	if o.counted {
		b[16] = 1
	}
}

func getOrder(b []byte) order {
	return order{addr: binary.NativeEndian.Uint64(b), page: binary.NativeEndian.Uint32(b[8:]), key: binary.NativeEndian.Uint32(b[12:]), counted: b[16] == 1}
}

// designEnd is an end that fetches pages of ordinary memory into ordinary memory, by one of the
// designs.
type designEnd struct {
	*link
	memory        *verbs.Memory
	registrations registrations
	random        *rand.Rand
	counted       served
	counting      bool
}

func newDesignEnd(l *link) (*designEnd, error) {
	memory, err := verbs.Map(l.spec.Pages*l.spec.Bytes, false)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	clear(memory.Bytes()) // What was never touched costs a registration more.
	d := &designEnd{link: l, memory: memory, random: rand.New(rand.NewPCG(1, 1))}
	d.registrations = registrations{pd: l.rig.pd, byPage: map[int]*list.Element{}}
	if l.spec.Operation == Cache {
		d.registrations.limit = l.spec.Cached
	}
	return d, nil
}

func (d *designEnd) close() error {
	return errors.Join(d.link.close(), d.registrations.shrink(0), d.memory.Close())
}

func (d *designEnd) page(i int) []byte { return d.memory.Bytes()[i*d.spec.Bytes : (i+1)*d.spec.Bytes] }

// drive fetches random pages of the working set, after all of them once, which fills a cache.
func (d *designEnd) drive() (Point, error) {
	for i := range d.spec.Pages {
		if d.spec.Operation != Cache {
			break
		}
		if err := d.fetch(i); err != nil {
			return Point{}, err
		}
	}
	d.counting = true
	p, err := sample(d.spec, 1, func() error { return d.fetch(d.random.IntN(d.spec.Pages)) })
	if d.counted.Messages > 0 {
		p.Registrations = float64(d.counted.Registrations) / float64(d.counted.Messages)
	}
	return p, err
}

// fetch gets one page from the other end.
func (d *designEnd) fetch(i int) error {
	before := d.registrations.made
	o := order{page: uint32(i), counted: d.counting}
	if d.spec.Operation != Pool {
		mr, err := d.registrations.of(i, d.page(i), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		if err != nil {
			return err
		}
		o.addr, o.key = mr.Addr(), mr.RKey()
	}
	if err := d.await(nil, sendDepth-1); err != nil {
		return err
	}
	o.put(d.rig.source())
	if err := d.post([]verbs.SendRequest{d.request(Send, orderBytes)}, false); err != nil {
		return err
	}
	if err := d.receiveOne(nil, Patience); err != nil {
		return err
	}
	if d.spec.Operation == Pool {
		copy(d.page(i), d.rig.target())
	}
	if d.counting {
		d.counted.Messages++
		d.counted.Registrations += d.registrations.made - before
	}
	return d.registrations.shrink(d.registrations.limit)
}

func (d *designEnd) receiveOne(stop *atomic.Bool, limit time.Duration) error {
	return spin(stop, limit, func() (bool, error) {
		n, _, err := d.arrived()
		return n > 0, err
	})
}

// serve writes the pages that are asked for.
func (d *designEnd) serve(stop *atomic.Bool) (served, error) {
	for {
		if err := d.receiveOne(stop, MaxTime+Patience); err != nil {
			return d.counted, stopped(err)
		}
		o := getOrder(d.rig.inbox())
		if int(o.page) >= d.spec.Pages {
			return served{}, fmt.Errorf("page %d was asked for, of %d", o.page, d.spec.Pages)
		}
		before := d.registrations.made
		if err := d.supply(stop, o); err != nil {
			return d.counted, stopped(err)
		}
		if o.counted {
			d.counted.Messages++
			d.counted.Registrations += d.registrations.made - before
		}
	}
}

// supply writes one page to where it was asked for.
func (d *designEnd) supply(stop *atomic.Bool, o order) error {
	page := d.page(int(o.page))
	r := d.request(WriteImm, d.spec.Bytes)
	r.Flags = 0 // Inlined, a small page would need no registration.
	if d.spec.Operation == Pool {
		copy(d.rig.source(), page)
	} else {
		mr, err := d.registrations.of(int(o.page), page, 0)
		if err != nil {
			return err
		}
		r.SGE[0].Addr, r.SGE[0].LKey = mr.Addr(), mr.LKey()
		r.RemoteAddr, r.RKey = o.addr, o.key
	}
	if err := d.post([]verbs.SendRequest{r}, true); err != nil {
		return err
	}
	// The slot, or the registration, is in use until then.
	if err := d.await(stop, 0); err != nil {
		return err
	}
	return d.registrations.shrink(d.registrations.limit)
}

// registrations are those of pages, at most limit of them between two fetches; the least recently
// used ones go first. With a limit of 0 each is ended after its transfer.
type registrations struct {
	pd     *verbs.PD
	limit  int
	byPage map[int]*list.Element
	order  list.List // of *registered, the last used first
	made   uint64
}

type registered struct {
	page int
	mr   *verbs.MR
}

// of returns the registration of a page.
func (r *registrations) of(page int, memory []byte, access verbs.Access) (*verbs.MR, error) {
	if e, ok := r.byPage[page]; ok {
		r.order.MoveToFront(e)
		return e.Value.(*registered).mr, nil
	}
	mr, err := r.pd.Register(memory, access)
	if err != nil {
		return nil, err
	}
	r.made++
	r.byPage[page] = r.order.PushFront(&registered{page, mr})
	return mr, nil
}

// shrink ends registrations until at most limit are left.
func (r *registrations) shrink(limit int) error {
	for r.order.Len() > limit {
		last := r.order.Remove(r.order.Back()).(*registered)
		delete(r.byPage, last.page)
		if err := last.mr.Close(); err != nil {
			return err
		}
	}
	return nil
}

const (
	// registrationSamples are taken of each size, or as many as registrationTime allows, but
	// minRegistrations.
	registrationSamples = 200
	minRegistrations    = 5
	registrationTime    = 200 * time.Millisecond
)

func (r *rig) registrations(sizes []int) ([]Registration, error) {
	var all []Registration
	for _, huge := range []bool{false, true} {
		for _, size := range sizes {
			one, err := r.registration(size, huge)
			if err != nil {
				return all, err
			}
			if one.Samples > 0 {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

// registration measures one size. There are no samples if huge pages are wanted and the machine has
// none.
func (r *rig) registration(size int, huge bool) (result Registration, err error) {
	memory, err := verbs.Map(size, huge)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	result = Registration{Bytes: size, Huge: huge}
	if memory.Huge() != huge {
		return result, nil
	}
	clear(memory.Bytes())
	var register, deregister []time.Duration
	for began := time.Now(); len(register) < minRegistrations || len(register) < registrationSamples && time.Since(began) < registrationTime; {
		start := time.Now()
		mr, err := r.pd.Register(memory.Bytes(), peerAccess)
		if err != nil {
			return result, err
		}
		middle := time.Now()
		if err := mr.Close(); err != nil {
			return result, err
		}
		register, deregister = append(register, middle.Sub(start)), append(deregister, time.Since(middle))
	}
	result.Samples = len(register)
	result.Register, result.Deregister = microseconds(table.Median(register)), microseconds(table.Median(deregister))
	return result, nil
}
