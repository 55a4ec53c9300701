package storage

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// A Role is what a bare program does.
type Role string

const (
	// RoleServer reads the file and writes it to connections. It says its address first.
	RoleServer Role = "server"
	// RoleReader reads the file when it is asked to, by an Ask, and answers with a Reading.
	RoleReader Role = "reader"
	// RoleTriad computes while it is asked to, by a bool, and answers with Passes.
	RoleTriad Role = "triad"
)

// Play is the whole life of a bare program: it is asked on in, answers on out, and ends when in
// does.
func Play(ctx context.Context, role Role, path string, in io.Reader, out io.Writer) error {
	debug.SetGCPercent(-1) // Nothing but reading may matter.
	switch asked, answers := json.NewDecoder(in), json.NewEncoder(out); role {
	case RoleServer:
		return serve(ctx, path, in, answers)
	case RoleReader:
		return answer(asked, answers, func(a Ask) (any, error) { return a.read(path) })
	case RoleTriad:
		return playTriad(asked, answers)
	default:
		return fmt.Errorf("there is no role %q", role)
	}
}

// answer answers requests until there are no more.
func answer[T any](asked *json.Decoder, answers *json.Encoder, to func(T) (any, error)) error {
	for {
		var request T
		if err := asked.Decode(&request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("receiving a request: %w", err)
		}
		reply, err := to(request)
		if err != nil {
			return err
		}
		if err := answers.Encode(reply); err != nil {
			return fmt.Errorf("answering: %w", err)
		}
	}
}

// An opening is what a reader says first on a connection.
type opening struct {
	Direct bool // past the page cache
	Random bool // pages are asked for, by their numbers
	Blocks int64
}

// headBytes precede a block that was not asked for: its number.
const headBytes = 8

// serve is the bare program at the storage side.
func serve(ctx context.Context, path string, in io.Reader, answers *json.Encoder) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for readers: %w", err)
	}
	if err := answers.Encode(listener.Addr().String()); err != nil {
		return fmt.Errorf("telling the address: %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // The program ends.
			}
			go func() {
				if err := serveReader(conn, path); err != nil {
					// Its reader finds only that the connection has ended.
					fmt.Fprintln(os.Stderr, "bench: the storage side of a bare program:", err)
				}
			}()
		}
	}()
	_, err = io.Copy(io.Discard, in)
	return err
}

func serveReader(conn net.Conn, path string) error {
	var o opening
	if err := binary.Read(conn, binary.NativeEndian, &o); err != nil {
		conn.Close()
		return fmt.Errorf("receiving what to read: %w", err)
	}
	link, err := blocking(conn)
	if err != nil {
		return err
	}
	defer unix.Close(link)
	file, err := open(path, o.Direct)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	if err := send(link, []byte{0}); err != nil { // all is ready
		return err
	}
	if o.Random {
		return servePages(link, file)
	}
	if err := receive(link, make([]byte, 1)); err != nil {
		return err
	}
	return serveBlocks(link, file, int(o.Blocks))
}

// servePages sends pages until no more are asked for.
func servePages(link, file int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf, _, err := buffer(pageBytes)
	if err != nil {
		return err
	}
	defer unix.Munmap(buf)
	for number := make([]byte, headBytes); ; {
		if err := receive(link, number); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := load(file, buf, int64(binary.NativeEndian.Uint64(number))*pageBytes); err != nil {
			return err
		}
		if err := send(link, buf); err != nil {
			return err
		}
	}
}

// serveBlocks sends all of the file. Several threads read blocks, and send them as they come.
func serveBlocks(link, file, blocks int) error {
	var sending sync.Mutex
	var senders []func(int) (uint64, error)
	for range inFlight {
		// The head ends where the block begins, so that both are sent by one call, and direct input
		// has a page's beginning to go to.
		buf, _, err := buffer(pageBytes + piece)
		if err != nil {
			return err
		}
		defer unix.Munmap(buf)
		message := buf[pageBytes-headBytes:]
		senders = append(senders, func(block int) (uint64, error) {
			binary.NativeEndian.PutUint64(message, uint64(block))
			if err := load(file, buf[pageBytes:], int64(block)*piece); err != nil {
				return 0, err
			}
			sending.Lock()
			defer sending.Unlock()
			return 0, send(link, message)
		})
	}
	_, err := together(blocks, nil, senders)
	return err
}
