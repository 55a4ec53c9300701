package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"

	"dsmd/internal/launch"
)

// What other users of the machine can have of a daemon by its metrics port is bounded: they may
// look, and must not be able to end it.
const (
	// idleTimeout is after how long a connection ends on which nothing is asked.
	idleTimeout = time.Minute
	maxClients  = 64
	maxBody     = 1 << 20 // bytes: /debug/pprof/symbol takes addresses
	// maxProfile is how long a profile or a trace may take.
	maxProfile = time.Minute
)

// clientTimeout is how long a client may take to say what it wants, and to take each piece of what
// it is sent.
var clientTimeout = 10 * time.Second

// serveMetrics starts the HTTP server for metrics and profiles. Beyond this machine it serves
// nobody without a certificate of the cluster: a profile tells more of a program than strangers
// should know.
func (d *daemon) serveMetrics() (*http.Server, error) {
	addr, fd := d.v.Metrics, d.fds.metrics
	if fd < 0 {
		var err error
		if addr, err = launch.LoopbackUnlessSaid(addr); err != nil {
			return nil, fmt.Errorf("--metrics: %w", err)
		}
	}
	l, err := listen(fd, addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	l = netutil.LimitListener(l, maxClients)
	if !onlyHere(l.Addr()) {
		switch {
		case d.secrets.tls != nil:
			l = tls.NewListener(l, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return d.secrets.keeper.Latest(), nil }})
		case !d.v.Insecure:
			l.Close()
			return nil, exposed("metrics", l.Addr(), "give certificates (--tls-ca, --tls-cert, --tls-key)")
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{}))
	if d.stages != nil {
		mux.Handle("/debug/stages", d.stages)
	}
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := newMetricsServer(mux)
	d.log.Info("metrics are served", zap.Stringer("address", l.Addr()))
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("the metrics server has ended", zap.Error(err))
		}
	}()
	return server, nil
}

func newMetricsServer(h http.Handler) *http.Server {
	// Nothing is read while a profile is made, so that may take longer than ReadTimeout.
	return &http.Server{Handler: bounded(h), ReadTimeout: clientTimeout, IdleTimeout: idleTimeout}
}

// bounded refuses profiles that take too long, and forms, which nobody has to send, and gives up
// clients that do not read.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if kind := r.Header.Get("Content-Type"); strings.Contains(kind, "form") {
			http.Error(w, "a form: write what you ask for behind a question mark", http.StatusUnsupportedMediaType)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if text := r.URL.Query().Get("seconds"); text != "" {
			if s, err := strconv.ParseFloat(text, 64); err != nil || !(s >= 0 && s <= maxProfile.Seconds()) {
				http.Error(w, fmt.Sprintf("seconds=%s: 0 to %v are possible", text, maxProfile.Seconds()), http.StatusBadRequest)
				return
			}
		}
		h.ServeHTTP(impatient{w, http.NewResponseController(w)}, r)
	})
}

// impatient is a ResponseWriter whose client has a bounded time to take each piece.
type impatient struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write implements http.ResponseWriter.
func (w impatient) Write(b []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(clientTimeout)); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w impatient) Unwrap() http.ResponseWriter { return w.ResponseWriter }
