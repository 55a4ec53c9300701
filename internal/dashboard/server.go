package dashboard

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// minAge is how long a state is shown before it is made anew, and maxEffort bounds the share of
	// the time that this takes.
	minAge    = 450 * time.Millisecond
	maxEffort = 1. / 20
	// headerTimeout bounds how long a client may take to say what it wants, and sendTimeout how
	// long to take the answer.
	headerTimeout = 5 * time.Second
	sendTimeout   = 30 * time.Second
	// watchedFor is for how long somebody looks who has asked for the state, and lastLook how long
	// the end of a job then waits until they have seen it.
	watchedFor = 3 * time.Second
	lastLook   = 1500 * time.Millisecond
)

//go:embed assets
var assets embed.FS

// Server shows states in browsers.
type Server struct {
	state    func() State
	hosts    []string // names by which it may be called
	server   *http.Server
	listener net.Listener

	mu      sync.Mutex
	text    []byte    // a state, compressed; guarded by mu, as all below
	stale   time.Time // when it is to be made anew
	asked   time.Time // when somebody last asked
	final   bool      // text is the last one
	watched chan struct{}
	sawLast bool
}

// Serve begins to serve at a listener, which the server closes. state is called when somebody
// looks, by one goroutine at a time, about twice a second at most. name is the host that the user
// has given for the listener's address; it may be "".
func Serve(l net.Listener, name string, state func() State) *Server {
	s := &Server{state: state, listener: l, hosts: []string{"localhost"}, watched: make(chan struct{})}
	if name != "" {
		s.hosts = append(s.hosts, strings.ToLower(name))
	}
	if own, err := os.Hostname(); err == nil {
		s.hosts = append(s.hosts, strings.ToLower(own))
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: headerTimeout, WriteTimeout: sendTimeout, IdleTimeout: sendTimeout}
	go func() { _ = s.server.Serve(l) }() // it ends with Close
	return s
}

// URL is where the page is.
func (s *Server) URL() string {
	host, port, _ := net.SplitHostPort(s.listener.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = s.hosts[len(s.hosts)-1]
	}
	return "http://" + net.JoinHostPort(host, port) + "/"
}

// Close shows the last state to those who look, if there are any, and ends the server.
func (s *Server) Close() {
	s.mu.Lock()
	s.stale = time.Time{}
	s.final = true
	looks := time.Since(s.asked) < watchedFor
	s.mu.Unlock()
	if looks {
		select {
		case <-s.watched:
		case <-time.After(lastLook):
		}
	}
	s.Stop()
}

// Stop ends the server at once.
func (s *Server) Stop() { _ = s.server.Close() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	switch {
	case !s.isOurs(r.Host):
		http.Error(w, fmt.Sprintf("this server is not %q: call it by its address, as http://127.0.0.1:PORT/", r.Host), http.StatusMisdirectedRequest)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "this page is only for looking: use GET", http.StatusMethodNotAllowed)
	case r.URL.Path == "/state.json":
		s.serveState(w, r)
	default:
		files, _ := fs.Sub(assets, "assets") // it is there
		http.FileServerFS(files).ServeHTTP(w, r)
	}
}

// isOurs reports whether a host is one by which this server is called. A page of somebody else,
// whose name was made to lead here (DNS rebinding), has another, and could read what is shown. An
// address is no name.
func (s *Server) isOurs(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return net.ParseIP(strings.Trim(host, "[]")) != nil || slices.Contains(s.hosts, strings.ToLower(host))
}

func (s *Server) serveState(w http.ResponseWriter, r *http.Request) {
	text, final, err := s.latest()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		_, err = w.Write(text)
	} else if plain, zipErr := gzip.NewReader(bytes.NewReader(text)); zipErr == nil {
		_, err = io.Copy(w, plain)
	}
	if f, can := w.(http.Flusher); can {
		f.Flush()
	}
	if final && err == nil && r.Method == http.MethodGet {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.sawLast {
			s.sawLast = true
			close(s.watched)
		}
	}
}

// latest is a state that is not old, compressed, and whether it is the last one.
func (s *Server) latest() (text []byte, final bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = time.Now()
	if s.asked.Before(s.stale) {
		return s.text, s.final, nil
	}
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // the level is one
	if err := errors.Join(json.NewEncoder(z).Encode(s.state()), z.Close()); err != nil {
		return nil, false, fmt.Errorf("dashboard: %w", err)
	}
	now := time.Now()
	s.text = b.Bytes()
	s.stale = now.Add(max(minAge, time.Duration(float64(now.Sub(s.asked))/maxEffort)))
	return s.text, s.final, nil
}
