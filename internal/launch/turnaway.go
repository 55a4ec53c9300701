package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"strings"
	"time"
)

// turnAwayTime bounds the wait for those who are to hear that there is no job.
const turnAwayTime = 30 * time.Second

// ErrNoJob is wrapped by the error of Attend when the launcher says that it has not started the
// job. Whose fault that is the launcher's own exit status says.
var ErrNoJob = errors.New("the job was not started")

// answer sends the line that a task waits for.
func (h *host) answer(conn net.Conn) error {
	h.mu.Lock()
	why := h.why
	h.mu.Unlock()
	_, err := fmt.Fprintln(conn, why)
	return err
}

// refuse has all who come from now on hear why there is no job.
func (h *host) refuse(why error) {
	h.mu.Lock()
	h.why = strings.ReplaceAll(strings.TrimPrefix(why.Error(), "launch: "), "\n", "; ")
	h.mu.Unlock()
	for _, l := range h.links {
		l.cut()
	}
}

// TurnAway is for the launcher when the job was not started, by Run or before that: it tells the
// tasks that come late why. They would wait for a launcher else. It returns when all have come, but
// soon in any case, and at a signal.
func (m *Meeting) TurnAway(why error) {
	ctx, cancel := signal.NotifyContext(context.Background(), signals...)
	defer cancel()
	h := m.held
	if h == nil {
		var err error
		if h, err = m.hold(); err != nil {
			return // nobody can be told
		}
	}
	defer h.close()
	h.refuse(why)
	h.links[0].arrive(nil, nil, "") // this one knows
	if h.missing() == "" {
		return
	}
	select {
	case <-h.over:
	case <-ctx.Done():
	case <-time.After(min(turnAwayTime, m.timeout())):
	}
}
