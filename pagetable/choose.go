package pagetable

import (
	"fmt"

	"dsmd/internal/uffd"
)

// The names of the back ends, on command lines and in the Welcome frame.
const (
	TrapAuto    = "auto"
	TrapUffd    = "uffd"
	TrapSigsegv = "sigsegv"
)

// TrapNames lists what Open takes.
var TrapNames = []string{TrapAuto, TrapUffd, TrapSigsegv}

// Choice says which back end a table has, and why.
type Choice struct {
	Trap   string // TrapUffd or TrapSigsegv
	Reason string // for the log
}

// Open makes a table with the named back end; "" is TrapAuto. That is uffd if this process can open
// a userfaultfd in any way, and else sigsegv. All programs of a node have the node's back end. They
// run as the daemon's user on the daemon's machine, so they can usually open what it can. A program
// that cannot is told so when it joins.
func Open(trap string, cfg Config) (Table, Choice, error) {
	var (
		t   Table
		err error
		c   = Choose(trap)
	)
	switch c.Trap {
	case TrapUffd:
		t, err = NewUffd(cfg)
	case TrapSigsegv:
		t, err = NewSigsegv(cfg)
	default:
		err = fmt.Errorf("pagetable: trap back end %q; there are %q", trap, TrapNames)
	}
	if err != nil {
		return nil, c, err
	}
	return t, c, nil
}

// Choose is the back end that Open takes for this name.
func Choose(trap string) Choice {
	if trap != "" && trap != TrapAuto {
		return Choice{trap, "asked for"}
	}
	return choose(uffd.Open())
}

// choose decides by the outcome of an attempt to open a userfaultfd.
func choose(fd *uffd.FD, err error) Choice {
	if err != nil {
		return Choice{TrapSigsegv, err.Error()}
	}
	defer fd.Close()
	c := Choice{TrapUffd, "it works, by the " + fd.Mode().String()}
	if !fd.Mode().KernelFaults() {
		for _, a := range fd.Failed() {
			c.Reason += fmt.Sprintf("; not by the %s: %v (%s)", a.Mode, a.Err, a.Remedy)
		}
	}
	return c
}
