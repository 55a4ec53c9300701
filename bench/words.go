package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"dsmd/bench/kernel"
)

// wordBytes is the length of a word of an output in its file, little-endian.
const wordBytes = 8

// writeWords writes an output to a new file for the driver. The words pass through a buffer of this
// process: shared memory itself must not be given to system calls, since an ordinary user's faults
// inside them are not trapped.
func writeWords(path string, words kernel.Words) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	buffer := bufio.NewWriterSize(f, 1<<20)
	for i := range words.Len() {
		// An error of the buffer stays, and Flush returns it.
		_, _ = buffer.Write(binary.LittleEndian.AppendUint64(buffer.AvailableBuffer(), words.At(i)))
	}
	if err := errors.Join(buffer.Flush(), f.Close()); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// readWords reads an output that writeWords has written.
func readWords(path string) (kernel.Words, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the output of rank 0: %w", err)
	}
	if len(text)%wordBytes != 0 {
		return nil, fmt.Errorf("the output of rank 0 has %d bytes, which is no whole number of words", len(text))
	}
	words := make(kernel.Uint64s, len(text)/wordBytes)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(text[i*wordBytes:])
	}
	return words, nil
}
