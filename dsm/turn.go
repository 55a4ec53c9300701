package dsm

import "context"

// turn is what one goroutine at a time has. It holds a token while one does.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take waits for the turn.
func (t turn) take(ctx context.Context, c *calls) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case t <- struct{}{}:
	case <-c.done:
		return c.err()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.err(); err != nil {
		t.give()
		return err
	}
	return nil
}

// give ends the turn.
func (t turn) give() { <-t }
