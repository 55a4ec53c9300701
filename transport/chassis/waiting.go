package chassis

import (
	"errors"
	"fmt"

	"dsmd/internal/netio"
)

// Waiting is what a reactor sleeps on. It outlives Close, because closing a descriptor that
// somebody sleeps on does not wake him: the descriptors go when the transport itself is garbage.
type Waiting struct {
	Poller *netio.Poller
	Event  *netio.Event
}

// Watched is a descriptor that wakes the reactor, and its token.
type Watched struct {
	FD    int
	Token int32
}

// NewWaiting watches an event, with the given token, and other descriptors.
func NewWaiting(name string, eventToken int32, others ...Watched) (*Waiting, error) {
	poller, err := netio.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	event, err := netio.NewEvent()
	if err != nil {
		poller.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	w := &Waiting{Poller: poller, Event: event}
	err = poller.Add(event.FD(), eventToken)
	for _, o := range others {
		err = errors.Join(err, poller.Add(o.FD, o.Token))
	}
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return w, nil
}

// Close closes the descriptors.
func (w *Waiting) Close() {
	w.Event.Close()
	w.Poller.Close()
}
