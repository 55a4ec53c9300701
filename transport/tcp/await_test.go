package tcp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"dsmd/transport/transporttest"
)

// absent is an address at which nobody listens.
func absent(t *testing.T) string {
	l := transporttest.Listen(t)
	defer l.Close()
	return l.Addr().String()
}

// TestWaitIsSaid: a node that waits for others in Connect logs for whom, where, and why they are
// not connected; soon, and then less and less often. Time is that of a bubble.
func TestWaitIsSaid(t *testing.T) {
	for _, joins := range []bool{false, true} {
		peers := []string{absent(t), absent(t), ""}
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var said []time.Duration
			lines := make(chan string, 1000)
			say := func(line string, long bool) {
				if strings.Contains(line, "waits for") {
					said = append(said, time.Since(begin))
					lines <- line
					if now := time.Since(begin); long != (now >= 10*time.Second) {
						t.Errorf("after %v: that it waits long is %t", now, long)
					}
				}
			}
			node, err := New(Config{Self: 2, Peers: peers, PageBytes: testPageBytes, Joining: joins,
				Log: func(line string) { say(line, false) }, LongWait: func(line string) { say(line, true) }})
			if err != nil {
				t.Fatal(err)
			}
			defer node.Kill()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := node.Connect(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			if n := len(said); n < 60 || n > 70 || said[0] > 3*time.Second || said[1] > 10*time.Second {
				t.Fatalf("in an hour it was said %d times, first after %v", n, said[:min(n, 5)])
			}
			want := []string{fmt.Sprintf("node 0 at %s: ", peers[0]), fmt.Sprintf("node 1 at %s: ", peers[1]), "connection refused"}
			if joins {
				want = append(want, "waits for one of node 0")
			}
			for line := <-lines; len(want) > 0; want = want[1:] {
				if !strings.Contains(line, want[0]) {
					t.Errorf("%q does not say %q", line, want[0])
				}
			}
		})
	}
}
