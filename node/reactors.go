package node

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"

	"dsmd/internal/stripes"
	"dsmd/transport/tcp"

	"go.uber.org/zap"
)

// newReactors makes the reactors of a daemon, and returns the one that leads.
func newReactors(cfg Config) (lead *Node, err error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	count := max(cfg.Core.Reactors, 1)
	listeners := make([]net.Listener, count)
	listeners[0] = cfg.Listener
	if count > 1 && cfg.Listener != nil {
		listeners = tcp.Channels(cfg.Listener, count, func(line string) { cfg.Log.Warn(line) })
	}
	all := make([]*Node, count)
	division, latency := stripes.Of(cfg.Core.StripePages, count), newHistograms()
	// the one that leads is made last, as it has to know the others
	for number := count - 1; number >= 0; number-- {
		own := cfg
		own.Listener, own.Memory.Bytes = listeners[number], cfg.Memory.Bytes/uint64(count)
		if number > 0 {
			own.Socket, own.Farewell, own.Metrics = nil, nil, nil
			own.Log = followersLog(cfg.Log, number)
		}
		if all[number], err = newNode(own, newPartition(number, division, all, latency)); err != nil {
			for _, l := range listeners[:number+1] {
				if l != nil {
					l.Close()
				}
			}
			for _, n := range all[number+1:] {
				n.close(err)
			}
			return nil, err
		}
	}
	return all[0], nil
}

// followersLog is where a reactor that does not lead logs to: warnings and errors alone, unless all
// is logged. What else there is to say the one that leads says for all of them.
func followersLog(log *zap.Logger, number int) *zap.Logger {
	log = log.With(zap.Int("reactor", number))
	if log.Core().Enabled(zap.DebugLevel) {
		return log
	}
	return log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))
}

// reactors are all of this node's daemon, this one among them.
func (n *Node) reactors() []*Node {
	if len(n.partition.all) == 0 {
		return []*Node{n}
	}
	return n.partition.all
}

// errEnded has the other reactors end with the one that leads.
var errEnded = errors.New("node: the reactor that leads has ended")

// runAll runs all reactors of the daemon until one of them ends, and then has the others end.
func (n *Node) runAll(ctx context.Context) error {
	// A reactor that polls has a P to itself. Another one that has something to do must not wait
	// for it, nor must what makes connections.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), len(n.partition.all)+2))
	others, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	own, stopOwn := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	for _, o := range n.partition.others() {
		all.Go(func() {
			select {
			case <-n.partition.let:
			case <-others.Done():
			}
			err := o.run(others)
			if others.Err() != nil {
				return // it ends because it was to
			}
			n.news.tell(func() { n.end.breakDown(err) })
			stopOwn(err) // if it has not begun to serve
		})
	}
	if !n.cfg.Rejoin {
		n.partition.open()
	}
	err := n.run(own)
	if cause := context.Cause(own); err == nil && ctx.Err() == nil && cause != nil {
		err = cause
	}
	stop(errEnded)
	all.Wait()
	stopOwn(nil)
	return err
}
