package netio

import "golang.org/x/sys/unix"

// Yield lets whoever is ready to run on this core run first. It costs a third of a microsecond when nobody is.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
