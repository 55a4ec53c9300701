//go:build !amd64

package attach

import "time"

// Watch is a running death watch; on this architecture, nothing. See WatchDaemon.
type Watch struct{}

func startWatch(socket int, grace time.Duration, status int, text string) (*Watch, error) {
	return &Watch{}, nil
}

// Stop ends the watch and waits until its thread is gone. It may be called more than once.
func (w *Watch) Stop() {}
