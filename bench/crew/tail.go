package crew

import (
	"bytes"
	"io"
	"sync"
)

// tailBytes is how much of the output is kept for errors: some 40 lines.
const tailBytes = 4 << 10

// tail keeps the last tailBytes of what is written to it. It is safe for concurrent use.
type tail struct {
	echo io.Writer // also receives everything, if not nil

	mu   sync.Mutex
	kept []byte // guarded by mu
	cut  bool   // something was dropped; guarded by mu
}

// Write never fails: what it is given is for people, and must not end the process that says it.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.echo != nil {
		_, _ = t.echo.Write(p)
	}
	t.kept = append(t.kept, p...)
	if drop := len(t.kept) - tailBytes; drop > 0 {
		t.kept = append(t.kept[:0], t.kept[drop:]...)
		t.cut = true
	}
	return len(p), nil
}

// String returns what is kept, from the beginning of a line on, without the final line end.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.kept
	if t.cut {
		if _, rest, found := bytes.Cut(text, []byte("\n")); found {
			text = rest
		}
	}
	return string(bytes.TrimRight(text, "\n"))
}
