package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"dsmd/internal/patience"
)

// TestBoundedProfiles: a profile that would take too long is refused, and a shorter one is not.
func TestBoundedProfiles(t *testing.T) {
	h := bounded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("here")) }))
	server := httptest.NewServer(h)
	defer server.Close()
	for query, want := range map[string]int{
		"": http.StatusOK, "?seconds=1": http.StatusOK, "?seconds=60": http.StatusOK, "?seconds=0.5": http.StatusOK,
		"?seconds=61": http.StatusBadRequest, "?seconds=-1": http.StatusBadRequest, "?seconds=NaN": http.StatusBadRequest, "?seconds=x": http.StatusBadRequest,
	} {
		r, err := http.Get(server.URL + query)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%q is answered by %d, want %d", query, r.StatusCode, want)
		}
	}
}

// TestImpatient: an answer that nobody reads ends.
func TestImpatient(t *testing.T) {
	defer func(before time.Duration) { clientTimeout = before }(clientTimeout)
	clientTimeout = 100 * time.Millisecond
	ended := make(chan error)
	server := httptest.NewServer(bounded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(bytes.Repeat([]byte("much"), 1<<14)); err != nil {
				ended <- err
				return
			}
		}
	})))
	defer server.Close()
	c, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: here\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience.Or(45 * time.Second)):
		t.Error("a client that does not read keeps its answer for ever")
	}
}

// TestMetricsServerIsBounded: a request that does not end ends the connection, and forms, which may
// be long, are not read.
func TestMetricsServerIsBounded(t *testing.T) {
	defer func(before time.Duration) { clientTimeout = before }(clientTimeout)
	clientTimeout = 100 * time.Millisecond
	server := httptest.NewUnstartedServer(nil)
	server.Config = newMetricsServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d bytes, %v", len(text), err)
	}))
	server.Start()
	defer server.Close()
	for _, test := range []struct{ request, want string }{
		{"GET / HTTP/1.1\r\nHost: he", ""},
		{"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nnot all", "i/o timeout"},
		{"POST / HTTP/1.1\r\nHost: here\r\nContent-Type: application/octet-stream\r\nContent-Length: 3\r\nConnection: close\r\n\r\n0x1", "3 bytes, <nil>"},
		{"POST / HTTP/1.1\r\nHost: here\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nseconds=", "415 Unsupported"},
	} {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(test.request)); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(patience.Or(45 * time.Second))); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(string(text), test.want) {
			t.Errorf("%q is answered by %q, %v", test.request, text, err)
		}
	}
}
