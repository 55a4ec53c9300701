package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// remindEvery is how often a daemon that runs is told of the end of its certificate.
const remindEvery = 24 * time.Hour

// Keeper is the TLS configuration of a daemon that runs for longer than its certificate. When the
// files change, the connections that are made from then on use what they have. Files that cannot be
// used change nothing.
type Keeper struct {
	files [3]string // authorities, certificate, key
	now   func() time.Time
	log   func(line string) // called with mu held

	mu      sync.Mutex
	fits    func(*tls.Config) error
	config  *tls.Config // never changed, only replaced
	used    [3]stamp    // the files that config was made of
	refused [3]stamp    // those that were complained of last
	// warned: when the end of the certificate was spoken of last; zero: never, of this one.
	warned time.Time
}

// stamp tells a file from what it was, and from another in its place.
type stamp struct {
	dev, ino         uint64
	size             int64
	changed, written syscall.Timespec
}

// NewKeeper loads the files as Load does. From then on log receives a line for whatever an
// administrator may want to know, from several goroutines, one at a time.
func NewKeeper(caFile, certFile, keyFile string, log func(line string)) (*Keeper, error) {
	return newKeeper(caFile, certFile, keyFile, log, time.Now)
}

func newKeeper(caFile, certFile, keyFile string, log func(string), now func() time.Time) (*Keeper, error) {
	k := &Keeper{files: [3]string{caFile, certFile, keyFile}, now: now, log: log, fits: func(*tls.Config) error { return nil }}
	k.used = k.stamps() // before they are read, so that a change in between is seen
	var err error
	if k.config, err = loadAt(caFile, certFile, keyFile, now); err != nil {
		return nil, err
	}
	k.remind()
	return k, nil
}

// Require sets what new files have to be good for, besides what Load asks.
func (k *Keeper) Require(fits func(*tls.Config) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fits = fits
}

// Latest is the configuration to use now, as Load makes it. It looks at the files, which is little
// against a handshake. The caller does not change it.
func (k *Keeper) Latest() *tls.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.stamps()
	if now == k.used {
		return k.config
	}
	config, err := loadAt(k.files[0], k.files[1], k.files[2], k.now)
	if err == nil {
		err = k.fits(config)
	}
	switch {
	case err == nil:
		k.config, k.used, k.warned = config, now, time.Time{}
		k.log(fmt.Sprintf("new certificates are used from now on: that of this node is valid until %s", config.Certificates[0].Leaf.NotAfter.UTC().Format(time.RFC3339)))
	case now != k.refused:
		// Most often some of them are still on their way.
		k.refused = now
		k.log(fmt.Sprintf("the certificates have changed and cannot be used, so those of before stay in use, until the files are right: %v", err))
	}
	return k.config
}

// Watch looks at the files at each tick, and says once a day what an administrator should do soon,
// until ctx ends.
func (k *Keeper) Watch(ctx context.Context, ticks <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			k.look()
		}
	}
}

func (k *Keeper) look() {
	k.Latest()
	k.remind()
}

// remind warns of the end of the certificate, at most once in remindEvery.
func (k *Keeper) remind() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if !k.warned.IsZero() && now.Sub(k.warned) < remindEvery {
		return
	}
	if warning := Warning(k.config, now); warning != "" {
		k.warned = now
		k.log(warning)
	}
}

// stamps looks at the files. One that cannot be seen has none: reading it says why.
func (k *Keeper) stamps() (all [3]stamp) {
	for i, path := range k.files {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			all[i] = stamp{st.Dev, st.Ino, st.Size, st.Ctim, st.Mtim}
		}
	}
	return all
}
