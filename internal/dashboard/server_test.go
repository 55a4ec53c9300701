package dashboard

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/patience"
)

var wait = patience.Or(time.Minute)

// serve serves a state until the test ends.
func serve(t *testing.T, state func() State) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, "", state)
	t.Cleanup(s.Close)
	return s
}

// ask is what a server answers when it is called by a name.
func ask(s *Server, method, path, host string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

// TestHosts: a page of somebody else, whose name was made to lead here, is shown nothing.
func TestHosts(t *testing.T) {
	t.Parallel()
	s := serve(t, func() State { return State{} })
	s.hosts = []string{"localhost", "ann.example"}
	for host, want := range map[string]int{
		"127.0.0.1:8080": http.StatusOK, "localhost:80": http.StatusOK, "LocalHost": http.StatusOK, "[::1]:80": http.StatusOK, "[::1]": http.StatusOK,
		"10.1.2.3:99": http.StatusOK, "Ann.example:1": http.StatusOK,
		"evil.example": http.StatusMisdirectedRequest, "evil.example:8080": http.StatusMisdirectedRequest, "": http.StatusMisdirectedRequest,
		"127.0.0.1.evil.example": http.StatusMisdirectedRequest, "localhost.evil.example": http.StatusMisdirectedRequest,
	} {
		for _, path := range []string{"/", "/state.json"} {
			if got := ask(s, "GET", path, host).StatusCode; got != want {
				t.Errorf("%s of %q: status %d, want %d", path, host, got, want)
			}
		}
	}
}

// TestPages: the page and what it needs are there, with nothing of anybody else.
func TestPages(t *testing.T) {
	t.Parallel()
	s := serve(t, func() State { return State{Title: "<b>solve</b>"} })
	for path, kind := range map[string]string{
		"/": "text/html", "/dashboard.js": "text/javascript", "/dashboard.css": "text/css", "/icon.svg": "image/svg+xml",
		"/uPlot.iife.min.js": "text/javascript", "/uPlot.min.css": "text/css", "/state.json": "application/json",
	} {
		r := ask(s, "GET", path, "127.0.0.1")
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK || len(body) < 50 || !strings.HasPrefix(r.Header.Get("Content-Type"), kind) {
			t.Errorf("%s: status %d, %d bytes of %s, %v", path, r.StatusCode, len(body), r.Header.Get("Content-Type"), err)
		}
		if p := r.Header.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'self'") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s is not protected: %q", path, p)
		}
	}
	if r := ask(s, "GET", "/etc/passwd", "127.0.0.1"); r.StatusCode != http.StatusNotFound {
		t.Errorf("of a page that is not there: status %d", r.StatusCode)
	}
	if r := ask(s, "POST", "/state.json", "127.0.0.1"); r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("of a POST: status %d", r.StatusCode)
	}
}

// TestManyLook: however many look, the state is made as often as for one.
func TestManyLook(t *testing.T) {
	t.Parallel()
	var made atomic.Int64
	s := serve(t, func() State { made.Add(1); return State{Faults: 7} })
	begin := time.Now()
	const looks = 200
	for range looks {
		var got State
		if err := json.NewDecoder(ask(s, "GET", "/state.json", "localhost").Body).Decode(&got); err != nil || got.Faults != 7 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if most := 1 + int64(time.Since(begin)/minAge); made.Load() > most {
		t.Errorf("%d looks have made %d states in %v, want at most %d", looks, made.Load(), time.Since(begin), most)
	}
}

// TestLastLook: who looks sees the end, and who does not is not waited for.
func TestLastLook(t *testing.T) {
	var ended atomic.Bool
	s := serve(t, func() State { return State{Running: !ended.Load()} })
	look := func() (got State) {
		r, err := http.Get(s.URL() + "state.json")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if !look().Running {
		t.Error("it has ended before it has")
	}
	ended.Store(true)
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	for end := time.Now().Add(wait); !isFinal(s); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server does not end")
		}
	}
	if look().Running {
		t.Error("the last look is not the last state")
	}
	select {
	case <-closed:
	case <-time.After(wait):
		t.Error("the server waits on")
	}
	if _, err := http.Get(s.URL()); err == nil {
		t.Error("it serves on")
	}
}

func isFinal(s *Server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.final
}
