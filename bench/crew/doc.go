// Package crew runs the processes of one measurement: `dsmd run`, and under it one copy of the
// benchmark executable per node, the workers.
//
// The driver has a line to each worker, a Unix socket in a directory that only it can enter. Over
// it workers say what they are doing (so that a measurement that hangs can be told from which rank
// hangs, and in what), how far they are, and what they found; the driver says what to do next.
// Standard output is no line: `dsmd run` mixes the outputs of all ranks and marks them.
//
// Both directions are JSON values. A worker's connection begins with its rank; after that each of
// its values is a message. Nothing in the timed parts of a measurement goes over the line.
package crew
