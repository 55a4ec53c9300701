package chassis

import (
	"sync/atomic"

	"dsmd/transport"
)

// Counters are a transport.Stats that any goroutine may read.
type Counters struct {
	FramesSent, FramesReceived     atomic.Uint64
	PayloadsSent, PayloadsReceived atomic.Uint64
	BytesSent, BytesReceived       atomic.Uint64
	SendCalls, ReceiveCalls        atomic.Uint64
	QueuedBytes                    atomic.Int64
}

// Stats is what the counters say now.
func (c *Counters) Stats() transport.Stats {
	return transport.Stats{
		FramesSent: c.FramesSent.Load(), FramesReceived: c.FramesReceived.Load(),
		PayloadsSent: c.PayloadsSent.Load(), PayloadsReceived: c.PayloadsReceived.Load(),
		BytesSent: c.BytesSent.Load(), BytesReceived: c.BytesReceived.Load(),
		SendCalls: c.SendCalls.Load(), ReceiveCalls: c.ReceiveCalls.Load(),
		QueuedBytes: uint64(max(0, c.QueuedBytes.Load())),
	}
}
