package storage

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// A Design is a way to read a file.
type Design string

const (
	// Shared: the file is mapped as shared memory, and a program at the other node loads it.
	Shared Design = "dsm"
	// Direct, the floor: a bare program reads the file past the page cache, and sends it.
	Direct Design = "direct"
	// Buffered is the same through the page cache, which is how an NFS server reads.
	Buffered Design = "buffered"
	// Local: a bare program reads the file past the page cache where it lies, without a network.
	Local Design = "local"
)

// An Ask has a bare program read the file.
type Ask struct {
	Design  Design `json:"design"`
	Address string `json:"address"` // of the server
	Order   Order  `json:"order"`
	Sides   Sides  `json:"sides"`
}

// read reads. What is opened and connected before is not measured.
func (a *Ask) read(path string) (Reading, error) {
	r := reader{ask: a}
	defer r.close()
	prepare := r.remote
	if a.Design == Local {
		prepare = r.local
	}
	read, err := prepare(path)
	if err != nil {
		return Reading{}, fmt.Errorf("preparing to read: %w", err)
	}
	return a.Sides.measure(read)
}

// A reader has what one reading uses.
type reader struct {
	ask     *Ask
	fds     []int
	buffers [][]byte
}

func (r *reader) close() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	for _, b := range r.buffers {
		_ = unix.Munmap(b) // nothing but a bug makes it fail
	}
}

func (r *reader) buffer(size int) ([]byte, []uint64, error) {
	buf, words, err := buffer(size)
	if err == nil {
		r.buffers = append(r.buffers, buf)
	}
	return buf, words, err
}

func (r *reader) blocks() int { return r.ask.Order.Pages * pageBytes / piece }

// local prepares to read where the file lies. As many reads are in flight as elsewhere, and who has
// read a part adds it up.
func (r *reader) local(path string) (func() (uint64, error), error) {
	fd, err := open(path, true)
	if err != nil {
		return nil, err
	}
	r.fds = append(r.fds, fd)
	o, count, size, threads := r.ask.Order, r.blocks(), piece, inFlight
	var parts []int
	if o.random() {
		count, size, threads, parts = o.Random, pageBytes, o.Threads, o.pages()
	}
	var readers []func(int) (uint64, error)
	for range threads {
		buf, words, err := r.buffer(size)
		if err != nil {
			return nil, err
		}
		readers = append(readers, func(part int) (uint64, error) {
			if err := load(fd, buf, int64(part)*int64(size)); err != nil {
				return 0, err
			}
			return sumFrom(part*size/pageBytes, words), nil
		})
	}
	return func() (uint64, error) { return together(count, parts, readers) }, nil
}

// remote prepares to read from the server.
func (r *reader) remote(string) (func() (uint64, error), error) {
	o := r.ask.Order
	if !o.random() {
		return r.inOrder()
	}
	var readers []func(int) (uint64, error)
	for range o.Threads {
		link, err := r.connect()
		if err != nil {
			return nil, err
		}
		buf, words, err := r.buffer(pageBytes)
		if err != nil {
			return nil, err
		}
		number := make([]byte, headBytes)
		readers = append(readers, func(page int) (uint64, error) {
			binary.NativeEndian.PutUint64(number, uint64(page))
			if err := send(link, number); err != nil {
				return 0, err
			}
			if err := receive(link, buf); err != nil {
				return 0, err
			}
			return sumFrom(page, words), nil
		})
	}
	pages := o.pages()
	return func() (uint64, error) { return together(len(pages), pages, readers) }, nil
}

// inOrder prepares to receive all of the file. One thread receives it, into the same memory again
// and again, which is the least that a program can do.
func (r *reader) inOrder() (func() (uint64, error), error) {
	link, err := r.connect()
	if err != nil {
		return nil, err
	}
	buf, words, err := r.buffer(piece)
	if err != nil {
		return nil, err
	}
	return func() (total uint64, err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := send(link, []byte{0}); err != nil {
			return 0, err
		}
		head := make([]byte, headBytes)
		for range r.blocks() {
			if err := receive(link, head); err != nil {
				return 0, err
			}
			if err := receive(link, buf); err != nil {
				return 0, err
			}
			total += sumFrom(int(binary.NativeEndian.Uint64(head))*(piece/pageBytes), words)
		}
		return total, nil
	}, nil
}

// connect connects to the server, and waits until it is ready.
func (r *reader) connect() (int, error) {
	conn, err := net.Dial("tcp4", r.ask.Address)
	if err != nil {
		return 0, err
	}
	o := opening{Direct: r.ask.Design == Direct, Random: r.ask.Order.random(), Blocks: int64(r.blocks())}
	if err := binary.Write(conn, binary.NativeEndian, o); err != nil {
		conn.Close()
		return 0, err
	}
	link, err := blocking(conn)
	if err != nil {
		return 0, err
	}
	r.fds = append(r.fds, link)
	return link, receive(link, make([]byte, 1))
}
