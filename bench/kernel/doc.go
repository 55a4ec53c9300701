// Package kernel is the seam between the benchmark driver and the programs it measures.
//
// A benchmark program is a Kernel, which is written once: for a Team of threads and the memory that
// they share. It runs in three versions: sequential, by goroutines on ordinary memory, and by
// goroutines on several nodes over shared memory of package dsm. The driver treats the three alike.
// Each is first prepared (memory allocated and filled with the input), which gives a Run; then
// Run.Compute is timed; then Run.Result is asked for what was computed. A kernel therefore contains
// no clock, and all three versions are timed by the same code, from a barrier after the preparation
// to a barrier after the computing.
//
// Whether a result is right is the kernel's to say, with Problem.Verify. For kernels whose result
// does not depend on the number of threads this is SameBits: every word of the output and every
// figure equals the sequential version's.
//
// To add a kernel: make a folder in bench/kernels with a variable of type Kernel, and add one line
// to the table in bench/kernels.go. Team and Thread have what the originals' macros do: shared
// memory, barriers and locks.
package kernel
