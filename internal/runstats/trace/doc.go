// Package trace writes what the threads of a job have waited for as a trace that Perfetto and
// chrome://tracing draw: JSON trace events, as in "Trace Event Format" (Google, 2016). Each rank is
// a process with a row for each of its threads, and each daemon is one with rows for those whom it
// has sent pages to. Arrows lead from a wait for a page to the daemon that sent it, and back.
//
// Events are written as they come, in no order; those who read them sort. What the writer remembers
// is bounded.
package trace
