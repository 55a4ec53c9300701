package pagetabletest

import (
	"encoding/binary"
	"testing"

	"dsmd/pagetable"
)

func TestFakeConforms(t *testing.T) {
	for _, async := range []bool{false, true} {
		name := "Done"
		if async {
			name = "Pending"
		}
		t.Run(name, func(t *testing.T) {
			Run(t, func(testing.TB) Fixture {
				f := NewFake(FakeConfig{Pages: RegionPages, Async: async})
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
	fake *Fake
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
func (p fakeProgram) Kill()    { p.fake.Kill(p.proc) }
