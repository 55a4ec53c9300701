package launch

import (
	"slices"
	"syscall"
)

// member is a machine of the job, and how far it is.
type member struct {
	machine
	place     place
	addresses []string // at which its nodes listen; nil until it is open
	halted    bool
	asked     bool // to name its dying daemon, and it has not answered
	ending    bool // it was told to finish, or is lost
	gone      bool // nothing is left of it, and all output was passed on
}

// members are all machines of a job.
type members []*member

// every reports whether f holds for all machines.
func (all members) every(f func(*member) bool) bool {
	return !slices.ContainsFunc(all, func(m *member) bool { return !f(m) })
}

// ask asks the machines what is about to end there.
func (all members) ask() {
	for _, m := range all {
		if !m.ending && !m.asked {
			m.asked = true
			m.machine.ask()
		}
	}
}

// sender is the member that an event comes from. Local events name no machine: there is only one.
func (all members) sender(e event) *member {
	for _, m := range all {
		if m.machine == e.from {
			return m
		}
	}
	return all[0]
}

// child is a daemon or a program, on whichever machine.
type child struct {
	childID
	at        *member
	node      int  // its own, or that of the daemon to which it attaches
	ended     bool // the leader of its group has ended
	succeeded bool // with success
	reaped    bool // the group is gone
	unborn    bool // it was reaped without having been started
	lost      bool // the job goes on without it
	gaveUp    bool // a program: it is lost because it ended with a status of its own
}

func (c *child) String() string {
	if c.at.place.name == "" {
		return c.childID.String()
	}
	return c.childID.String() + " on " + c.at.place.name
}

// signal sends a signal to every process of a child's group.
func (c *child) signal(sig syscall.Signal) { c.at.signal(c.childID, sig) }

// children are all daemons and programs of a job.
type children []*child

// each calls f for the children of a role whose process groups still exist.
func (all children) each(r role, f func(*child)) {
	for _, c := range all {
		if c.Role == r && !c.reaped {
			f(c)
		}
	}
}

// remaining counts the children of a role for which f holds.
func (all children) remaining(r role, f func(*child) bool) (n int) {
	for _, c := range all {
		if c.Role == r && f(c) {
			n++
		}
	}
	return n
}

// find returns the child of an event, nil if there is none.
func (all children) find(id childID) *child {
	for _, c := range all {
		if c.childID == id {
			return c
		}
	}
	return nil
}
