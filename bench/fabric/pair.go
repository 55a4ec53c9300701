package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"dsmd/transport"
	"dsmd/transport/tcp"
)

// A pair is two connected nodes in this process. check says whether the pages that node 0 has
// fetched came the way that is measured.
type pair struct {
	nodes [2]transport.Transport
	check func(pages int) error
}

// tcpPair makes two nodes that are connected by TCP, which is the only way there is.
func tcpPair(pageBytes int) (pair, error) {
	nodes, err := connectTCP(tcp.Config{PageBytes: pageBytes})
	if err != nil {
		return pair{}, err
	}
	return pair{[2]transport.Transport{nodes[0], nodes[1]}, func(int) error { return nil }}, nil
}

// connectTCP makes and connects two nodes on this machine that are configured as common says.
func connectTCP(common tcp.Config) (nodes [2]*tcp.Transport, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nodes, fmt.Errorf("listening on the loopback address: %w", err)
	}
	common.Cluster = "bench fabric"
	common.Peers = []string{listener.Addr().String(), "node 1 dials"}
	first, second := common, common
	first.Listener, second.Self = listener, 1
	if nodes[0], err = tcp.New(first); err != nil {
		return nodes, errors.Join(err, listener.Close())
	}
	if nodes[1], err = tcp.New(second); err != nil {
		return nodes, errors.Join(err, nodes[0].Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := atOnce(func(i int) error { return nodes[i].Connect(ctx) }); err != nil {
		return nodes, errors.Join(err, atOnce(func(i int) error { return nodes[i].Close() }))
	}
	return nodes, nil
}

// atOnce runs f for both nodes at the same time.
func atOnce(f func(i int) error) error {
	var both sync.WaitGroup
	var errs [2]error
	for i := range errs {
		both.Go(func() { errs[i] = f(i) })
	}
	both.Wait()
	return errors.Join(errs[:]...)
}
