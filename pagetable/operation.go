package pagetable

import "fmt"

// Operation is an operation on a single page.
type Operation struct {
	Op       Op // OpInstall, OpMakeWritable, OpDowngrade, OpRevoke, OpMap or OpLose
	Page     Page
	Writable bool   // OpInstall, OpMap
	Proc     ProcID // OpInstall, OpMap
	Data     []byte // OpInstall: the contents; nil: all zeros
	Into     []byte // OpRevoke: receives the last contents; nil: nobody wants them
}

// Perform asks a table for an operation. o is read before it returns, with what Data holds; Into
// must stay valid until the operation is done.
func Perform(t Table, o *Operation) (Outcome, error) {
	switch o.Op {
	case OpInstall:
		return t.Install(o.Page, o.Data, o.Writable, o.Proc)
	case OpMakeWritable:
		return t.MakeWritable(o.Page)
	case OpDowngrade:
		return t.Downgrade(o.Page)
	case OpRevoke:
		return t.Revoke(o.Page, o.Into)
	case OpMap:
		return t.Map(o.Page, o.Writable, o.Proc)
	case OpLose:
		return t.Lose(o.Page)
	}
	panic(fmt.Sprintf("pagetable: %v of page %d is no operation on a single page", o.Op, o.Page))
}

// At is what the run does to its page i, counted from 0.
func (r *Run) At(i, pageBytes int) Operation {
	o := Operation{Op: r.Op, Page: r.First + Page(i), Writable: r.Writable, Proc: r.Proc, Data: r.data(i, pageBytes)}
	if r.Into != nil {
		o.Into = r.Into[i]
	}
	return o
}
