package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"dsmd/bench/kernel"
)

// errNoInput is returned for an input of a kernel that reads none.
var errNoInput = errors.New("this kernel makes its own input")

// A task is a problem as the command line names it: of a size, or in a file.
type task struct {
	kernel kernel.Kernel
	size   string
	input  string // path of the file; empty for a size
}

// problem is the problem, and the number that stands for its size.
func (t task) problem() (kernel.Problem, int, error) {
	if t.input != "" {
		return t.read()
	}
	n, err := t.kernel.Sizes.Parse(t.size)
	if err != nil {
		return nil, 0, fmt.Errorf("--size: %s: %w", t.kernel.Name, err)
	}
	return t.kernel.Problem(n), n, nil
}

func (t task) read() (kernel.Problem, int, error) {
	if t.kernel.Read == nil {
		return nil, 0, fmt.Errorf("--input: %s: %w: use --size; kernels with inputs are: %s",
			t.kernel.Name, errNoInput, strings.Join(kernels.ThatRead(), ", "))
	}
	file, err := os.Open(t.input)
	if err != nil {
		return nil, 0, fmt.Errorf("--input: %w", err)
	}
	defer file.Close()
	p, n, err := t.kernel.Read(file)
	if err != nil {
		return nil, 0, fmt.Errorf("--input: %s: %s: %w", t.kernel.Name, t.input, err)
	}
	return p, n, nil
}
