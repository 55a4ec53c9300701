// Command kv serves a key-value store by HTTP. Any number of programs serve one store, of whatever
// jobs they are. On a cluster whose daemons stay (`dsmd serve`), run on each node
//
//	DSM_SOCKET=/run/dsmd/dsmd.sock DSM_JOB=red ./kv -listen localhost:8001
//	curl -X PUT -d 17 http://localhost:8001/apples
//	curl http://localhost:8001/apples
//
// The store is a map for all jobs (dsm.Everywhere). Nodes that read a value have a copy of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
)

const entries = 100_000 // about so many
const longest = 231     // bytes of a value: with a key of as many it fits into an eighth of a page

func main() {
	address := flag.String("listen", "127.0.0.1:0", "address to serve at")
	flag.Parse()
	if err := serve(*address); err != nil {
		log.Fatal(err)
	}
}

// serve serves until the program is to end. The store ends with the last program.
func serve(address string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := dsm.Join(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	values, err := collections.NewMap[string, value](ctx, c, dsm.Everywhere+"kv", entries)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("http://%v\n", l.Addr())
	server, ended := &http.Server{Handler: store{values}, ReadTimeout: 5 * time.Second}, make(chan error)
	context.AfterFunc(ctx, func() { ended <- server.Shutdown(context.Background()) })
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return errors.Join(<-ended, values.Free(context.Background()))
}

// value is some bytes without a pointer. There is room for one more than it may have.
type value struct {
	Length int
	Bytes  [longest + 1]byte
}

// store answers GET, PUT and DELETE of a key, which is the path. PUT with If-None-Match stores a
// value only if there is none.
type store struct {
	values *collections.Map[string, value]
}

func (s store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v, status, err := s.answer(r)
	switch {
	case errors.Is(err, dsm.ErrNoSpace):
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.WriteHeader(status)
		_, _ = w.Write(v.Bytes[:v.Length]) // a client that has gone is none of our errors
	}
}

func (s store) answer(r *http.Request) (v value, status int, err error) {
	ctx, key, there := r.Context(), r.URL.Path, false
	switch r.Method {
	case http.MethodGet:
		v, there, err = s.values.Load(ctx, key)
	case http.MethodDelete:
		there, err = s.values.Delete(ctx, key)
	case http.MethodPut:
		if v.Length, err = io.ReadFull(r.Body, v.Bytes[:]); err == nil {
			return value{}, http.StatusRequestEntityTooLarge, nil
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return value{}, 0, err
		}
		if r.Header.Get("If-None-Match") == "" {
			return value{}, http.StatusNoContent, s.values.Store(ctx, key, v)
		}
		if _, there, err = s.values.LoadOrStore(ctx, key, v); !there {
			return value{}, http.StatusCreated, err
		}
		return value{}, http.StatusPreconditionFailed, err
	default:
		return value{}, http.StatusMethodNotAllowed, nil
	}
	if !there {
		return value{}, http.StatusNotFound, err
	}
	return v, http.StatusOK, err
}
