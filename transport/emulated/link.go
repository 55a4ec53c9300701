package emulated

import (
	"fmt"
	"time"
)

// Bounds of Link.
const (
	MaxLatency   = time.Second
	MinBandwidth = 1e6  // 1 Mbit/s: a page of 4 KiB takes 33 ms
	MaxBandwidth = 1e12 // 1 Tbit/s: below this, bytes take whole nanoseconds, nearly
)

// Link is the network that is emulated. The zero value is none.
type Link struct {
	Latency   time.Duration // one way, added to what the base takes; up to MaxLatency
	Bandwidth uint64        // of what a node sends, in bits per second; 0: unlimited
}

// IsOn reports whether there is anything to emulate.
func (l Link) IsOn() bool { return l != Link{} }

// String is the link for people.
func (l Link) String() string {
	if l.Bandwidth == 0 {
		return fmt.Sprintf("%v more one way", l.Latency)
	}
	return fmt.Sprintf("%v more one way, %d Mbit/s", l.Latency, l.Bandwidth/1e6)
}

func (l Link) check() error {
	switch {
	case l.Latency < 0 || l.Latency > MaxLatency:
		return fmt.Errorf("emulated: a latency of %v; it is from 0 to %v", l.Latency, MaxLatency)
	case l.Bandwidth != 0 && (l.Bandwidth < MinBandwidth || l.Bandwidth > MaxBandwidth):
		return fmt.Errorf("emulated: a bandwidth of %d bits per second; it is from %d to %d, or 0 for no bound",
			l.Bandwidth, uint64(MinBandwidth), uint64(MaxBandwidth))
	}
	return nil
}

// occupies is for how long a frame occupies the card.
func (l Link) occupies(bytes int) time.Duration {
	if l.Bandwidth == 0 {
		return 0
	}
	// A frame has less than 2^22 bytes, so that this is less than 2^55.
	return time.Duration(uint64(bytes) * 8 * uint64(time.Second) / l.Bandwidth)
}
