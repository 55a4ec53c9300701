package pagetable_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
)

func TestFakeConforms(t *testing.T) {
	for _, async := range []bool{false, true} {
		name := "Done"
		if async {
			name = "Pending"
		}
		t.Run(name, func(t *testing.T) {
			runSuite(t, func(testing.TB) Fixture {
				f := pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: RegionPages, Async: async})
				return Fixture{Table: f, Start: func(t testing.TB, proc pagetable.ProcID) Program {
					if err := f.Attach(proc, -1, 0); err != nil {
						t.Fatal(err)
					}
					return fakeProgram{f, proc}
				}}
			})
		})
	}
}

type fakeProgram struct {
	fake *pagetabletest.Fake
	proc pagetable.ProcID
}

func (p fakeProgram) Load(page pagetable.Page, off int) *Access {
	a := NewAccess()
	go func() {
		var b [8]byte
		err := p.fake.Load(p.proc, page, off, b[:])
		a.Finish(binary.NativeEndian.Uint64(b[:]), err)
	}()
	return a
}

func (p fakeProgram) Store(page pagetable.Page, off int, v uint64) *Access {
	a := NewAccess()
	go func() {
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], v)
		a.Finish(0, p.fake.Store(p.proc, page, off, b[:]))
	}()
	return a
}

func (p fakeProgram) Restart() { p.fake.Restart(p.proc) }
func (p fakeProgram) Remap()   { p.fake.Remap(p.proc) }

// Lock has the kernel load each page, one after the other.
func (p fakeProgram) Lock() *Access {
	a := NewAccess()
	go func() {
		var err error
		for page := range pagetable.Page(p.fake.Pages()) {
			err = errors.Join(err, p.fake.Load(p.proc, page, 0, make([]byte, 1)))
		}
		a.Finish(0, err)
	}()
	return a
}
func (p fakeProgram) Kill() { p.fake.Kill(p.proc) }
