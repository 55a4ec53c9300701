package node

import "dsmd/internal/attach"

// pollBoxes takes the calls that programs have put on their control pages.
func (s *programs) pollBoxes() bool {
	busy := false
	for i := 0; i < len(s.boxed); i++ { // a call may end its program
		busy = s.takeCall(s.boxed[i]) || busy
	}
	return busy
}

// watchBoxes lets programs put calls on their control pages.
func (s *programs) watchBoxes() {
	for _, p := range s.boxed {
		p.page.Calls().Watch()
	}
}

// leaveBoxes sends programs to their sockets, before the reactor sleeps. It returns false if one of
// them has put a call on its page before.
func (s *programs) leaveBoxes() bool {
	left := true
	for _, p := range s.boxed {
		left = p.page.Calls().Leave() && left
	}
	return left
}

// replyAwaited is whether a program of this node polls for a reply.
func (s *programs) replyAwaited() bool {
	for _, p := range s.boxed {
		if p.page.Replies().Watched() {
			return true
		}
	}
	return false
}

// takeCall lets the call happen that a program has put on its control page, if there is one. A
// program that has put anything else there is removed.
func (s *programs) takeCall(p *program) bool {
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
		err = s.boxFrame(p)
	}
	if p.cut != nil {
		err = p.cut
	}
	if err != nil {
		s.remove(p, err)
	}
	return true
}

// boxFrame lets the call happen that was taken out of a program's box.
func (s *programs) boxFrame(p *program) error {
	f, err := attach.Only(p.frame, attach.KindCall)
	if err != nil {
		return err
	}
	return s.frame(p, f)
}
