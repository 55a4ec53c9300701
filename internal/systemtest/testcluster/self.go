package testcluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// programGrace is by how much a program's own limit is longer than what the test waits for in the
// end: it is there for programs whose test has gone, and the test has more to tell.
const programGrace = time.Minute

// Program is something that copies of the test binary can do.
type Program struct {
	name string
	run  func(*Self) error
}

var programs = map[string]*Program{}

// Define makes a program known. It is called while package variables are initialised, because a
// copy of the test binary looks for its program before any test runs.
func Define(name string, run func(*Self) error) *Program {
	if programs[name] != nil {
		panic("testcluster: two programs are called " + name)
	}
	p := &Program{name, run}
	programs[name] = p
	return p
}

// Self is a running program's view of itself. It belongs to one goroutine, except Ctx and Say.
type Self struct {
	Ctx  context.Context // ends before the program is killed
	Args []string
	in   *bufio.Scanner
}

// runProgram is the whole life of a program. It returns the exit status.
func runProgram(name string) int {
	p := programs[name]
	if p == nil {
		fmt.Fprintf(os.Stderr, "testcluster: there is no program %q\n", name)
		return 2
	}
	limit, err := time.ParseDuration(os.Getenv(envLimit))
	if err != nil {
		fmt.Fprintf(os.Stderr, "testcluster: %v\n", err)
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := p.run(&Self{Ctx: ctx, Args: os.Args[1:], in: bufio.NewScanner(os.Stdin)}); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// Say prints a line for the test.
func (s *Self) Say(format string, args ...any) {
	// One write: lines of several goroutines are not mixed.
	_, _ = os.Stdout.WriteString(fmt.Sprintf(format, args...) + "\n")
}

// Next waits for a line from the test. The error is io.EOF when the test has none any more.
func (s *Self) Next() (string, error) {
	if !s.in.Scan() {
		if err := s.in.Err(); err != nil {
			return "", err
		}
		return "", io.EOF
	}
	return strings.TrimSpace(s.in.Text()), nil
}

// Await waits for a certain line from the test.
func (s *Self) Await(want string) error {
	line, err := s.Next()
	if err == nil && line != want {
		err = fmt.Errorf("the test said %q, and %q was due", line, want)
	}
	return err
}
