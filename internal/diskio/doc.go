// Package diskio moves memory to files and back without making its caller wait. The caller hands
// transfers to a queue. The kernel makes reads (io_uring), and some threads writes, or both where
// it is forbidden; those of neighbouring places in a file are made together. A descriptor becomes
// readable when transfers are over, so that an event loop can wait for them as for everything else.
//
// It knows nothing of what it moves. The caller chooses the files, the places in them and what
// follows from an error.
package diskio
