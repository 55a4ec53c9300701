package model

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"dsmd/protocol"
)

// OpKind is one kind of step of a thread's program.
type OpKind uint8

const (
	// OpRead reads a page: its contents must be those of the last write in the cluster.
	OpRead OpKind = iota + 1
	// OpWrite writes a page: it adds one to the contents, which must be the latest too, because a
	// store changes some bytes of a page and keeps the others.
	OpWrite
	// OpPrefetchRead asks for a page for reading on behalf of nobody, and goes on.
	OpPrefetchRead
	// OpPrefetchWrite asks for a page for writing on behalf of nobody, and goes on.
	OpPrefetchWrite
	// OpEvict says that the node has no room for its copy of a page, and goes on. What the node
	// owns it offers to the page's home, or if it is the home, to the next node.
	OpEvict
	// OpLock and OpRLock take a lock, alone or with other readers; OpUnlock and OpRUnlock give it
	// back. If the last holder died holding the lock, OpLock repairs, and OpRLock and OpIntact do
	// not get it: the thread goes on behind the operation that would give it back. Otherwise
	// OpIntact is as OpLock.
	OpLock
	OpRLock
	OpIntact
	OpUnlock
	OpRUnlock
	// OpBarrier waits for all threads whose programs name the same barrier.
	OpBarrier
	// OpBind binds a name to a run of two pages, which must be Number, modulo the region's pages,
	// and the next; OpUnbind gives it up. Programs that touch the memory need a barrier between the
	// one and the other, both ways: without it nobody could tell whether the memory is new, or
	// which. Where no memory is left, the thread ends, and so it does when its last cancel has
	// ended the wait.
	OpBind
	OpUnbind
	// OpCommit waits until what was written on the node to replicated pages is at their backups.
	OpCommit
	// OpDie ends the whole client of this thread, whatever its threads were about to do.
	OpDie
	// OpExpel parts with the client of this thread: it counts as dead, and its other threads go on
	// as long as their accesses go through. It needs Config.Spaces.
	OpExpel
)

var opNames = [...]string{
	OpRead: "read", OpWrite: "write", OpPrefetchRead: "prefetch-read", OpPrefetchWrite: "prefetch-write", OpEvict: "evict",
	OpLock: "lock", OpRLock: "rlock", OpIntact: "intact", OpUnlock: "unlock", OpRUnlock: "runlock", OpBarrier: "barrier", OpBind: "bind", OpUnbind: "unbind", OpCommit: "commit", OpDie: "die", OpExpel: "expel",
}

// Op is one step of a program.
type Op struct {
	Kind OpKind
	// Number is the page number, or the hash of the lock or barrier.
	Number uint64
	// Cancels is how often the wait of an OpLock, OpRLock, OpIntact, OpBarrier or OpBind may be
	// cancelled. A cancelled call is made again, with another ticket; an OpBind not after the last
	// of its cancels.
	Cancels uint8
}

// Object is the object that the operation is about.
func (op Op) Object() protocol.ObjectID {
	switch op.Kind {
	case OpRead, OpWrite, OpPrefetchRead, OpPrefetchWrite, OpEvict:
		return protocol.PageObject(op.Number)
	default:
		return protocol.LockObject(op.Number)
	}
}

// Access is the access that the operation needs or gives back.
func (op Op) Access() protocol.Access {
	switch op.Kind {
	case OpRead, OpPrefetchRead, OpRLock, OpRUnlock:
		return protocol.Read
	case OpWrite, OpPrefetchWrite, OpLock, OpIntact, OpUnlock:
		return protocol.Write
	default:
		return protocol.None
	}
}

// alone reports whether the operation is about nothing.
func (op Op) alone() bool { return op.Kind == OpDie || op.Kind == OpExpel || op.Kind == OpCommit }

// takesLock is whether the operation waits for a lock.
func (op Op) takesLock() bool { return op.Kind == OpLock || op.Kind == OpRLock || op.Kind == OpIntact }

func (op Op) touchesPage() bool { return op.Kind == OpRead || op.Kind == OpWrite }

// String is the form that ParseProgram reads: "write 1", or "lock 3 cancel 1".
func (op Op) String() string {
	if op.alone() {
		return opNames[op.Kind]
	}
	s := fmt.Sprintf("%s %d", opNames[op.Kind], op.Number)
	if op.Cancels > 0 {
		s += fmt.Sprintf(" cancel %d", op.Cancels)
	}
	return s
}

// Program is what one thread does, in order.
type Program []Op

// String is the form that ParseProgram reads: operations with semicolons between them.
func (p Program) String() string {
	words := make([]string, len(p))
	for i, op := range p {
		words[i] = op.String()
	}
	return strings.Join(words, "; ")
}

// ErrSyntax is wrapped by the errors of ParseProgram and of ParseConfig.
var ErrSyntax = errors.New("model: malformed text")

// ParseProgram reads a Program such as "read 0; write 1; lock 3 cancel 1; unlock 3; barrier 4;
// die".
func ParseProgram(s string) (Program, error) {
	var p Program
	for text := range strings.SplitSeq(s, ";") {
		op, err := parseOp(strings.Fields(text))
		if err != nil {
			return nil, fmt.Errorf("%w: operation %q: %w", ErrSyntax, strings.TrimSpace(text), err)
		}
		p = append(p, op)
	}
	return p, nil
}

func parseOp(words []string) (Op, error) {
	if len(words) == 0 {
		return Op{}, errors.New("is empty")
	}
	op := Op{}
	for kind, name := range opNames {
		if name != "" && name == words[0] {
			op.Kind = OpKind(kind)
		}
	}
	switch {
	case op.Kind == 0:
		return Op{}, fmt.Errorf("is none of %s", strings.TrimSpace(strings.Join(opNames[:], " ")))
	case op.alone() && len(words) > 1:
		return Op{}, errors.New("has nothing behind it")
	case op.alone():
		return op, nil
	case len(words) != 2 && len(words) != 4:
		return Op{}, errors.New(`wants a number, then "cancel" and a number if it may be cancelled`)
	}
	var err error
	if op.Number, err = strconv.ParseUint(words[1], 10, 63); err != nil {
		return Op{}, err
	}
	if len(words) == 2 {
		return op, nil
	}
	if words[2] != "cancel" || !op.takesLock() && op.Kind != OpBarrier && op.Kind != OpBind {
		return Op{}, fmt.Errorf("has %q where only the waits of lock, rlock, intact, barrier and bind may have \"cancel\"", words[2])
	}
	cancels, err := strconv.ParseUint(words[3], 10, 8)
	op.Cancels = uint8(cancels)
	return op, err
}

// MustParseProgram is ParseProgram for text in the source: it panics on an error.
func MustParseProgram(s string) Program {
	p, err := ParseProgram(s)
	if err != nil {
		panic(err)
	}
	return p
}
