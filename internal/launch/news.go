package launch

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// In a job that goes on when something is lost (Config.Survive) the launcher tells its daemons who
// is. A node that is lost they notice themselves, most often, and sooner. But not while they are
// still looking for each other; and that a program has died, or that none came, only its own daemon
// could say, which cannot know that it will not be started again. Each daemon inherits a pipe, and
// reads lines, "node 2" or "rank 3".

// News is who is told what the launcher says to a daemon.
type News struct {
	Node func(id int)   // the daemon of a node, or its machine, is lost
	Rank func(rank int) // a program is lost, with its daemon or alone
}

// Read reads the news until there will be none any more. What makes no sense is ignored: the
// launcher is of the same version.
func (n News) Read(from io.Reader) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		what, number, _ := strings.Cut(lines.Text(), " ")
		id, err := strconv.Atoi(number)
		switch {
		case err != nil || id < 0:
		case what == newsOf[daemon]:
			n.Node(id)
		case what == newsOf[program]:
			n.Rank(id)
		}
	}
}

// newsOf are the words for what is lost.
var newsOf = map[role]string{daemon: "node", program: "rank"}

// tell lets a daemon know who is lost, without ever waiting for it. The pipe has room for the news
// of thousands; a daemon that reads none of them stands still, nobody can wait for it, and it is
// killed.
func (p *process) tell(who childID) {
	line := fmt.Appendf(nil, "%s %d\n", newsOf[who.Role], who.Index)
	raw, err := p.news.SyscallConn()
	if err != nil {
		return
	}
	var full bool
	// An error means that the daemon has ended, and says nothing new.
	_ = raw.Write(func(fd uintptr) bool {
		_, err := unix.Write(int(fd), line) // whole or not at all, being short
		full = err == unix.EAGAIN
		return true // once
	})
	if full {
		p.signal(unix.SIGKILL)
	}
}
