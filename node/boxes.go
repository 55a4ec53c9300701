package node

import "dsmd/internal/attach"

// pollBoxes takes the calls that programs have put on their control pages, and says whether there were any.
func (n *Node) pollBoxes() bool {
	busy := false
	for i := 0; i < len(n.boxed); i++ { // a call may end its program
		busy = n.takeCall(n.boxed[i]) || busy
	}
	return busy
}

// watchBoxes lets programs put calls on their control pages.
func (n *Node) watchBoxes() {
	for _, p := range n.boxed {
		p.page.Calls().Watch()
	}
}

// leaveBoxes sends programs to their sockets, before the reactor sleeps. It returns false if one of them has put a call on its page before.
func (n *Node) leaveBoxes() bool {
	left := true
	for _, p := range n.boxed {
		left = p.page.Calls().Leave() && left
	}
	return left
}

// replyAwaited says whether a program of this node polls for a reply.
func (n *Node) replyAwaited() bool {
	for _, p := range n.boxed {
		if p.page.Replies().Watched() {
			return true
		}
	}
	return false
}

// takeCall lets the call happen that a program has put on its control page, and says whether there was one. A program that has put anything
// else there is removed.
func (n *Node) takeCall(p *program) bool {
	if p.page == nil || p.cut != nil {
		return false
	}
	var took bool
	var err error
	if p.frame, took, err = p.page.Calls().Take(p.frame[:0]); !took {
		return false
	}
	p.page.Calls().Watch()
	if err == nil {
		err = n.boxFrame(p)
	}
	if p.cut != nil {
		err = p.cut
	}
	if err != nil {
		n.removeProgram(p, err)
	}
	return true
}

// boxFrame lets the call happen that was taken out of a program's box.
func (n *Node) boxFrame(p *program) error {
	f, err := attach.Only(p.frame, attach.KindCall)
	if err != nil {
		return err
	}
	return n.programFrame(p, f)
}
