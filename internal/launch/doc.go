// Package launch runs a job on one machine: a daemon for every node, a program for every
// daemon, and nothing left over when the job is done. It is what `dsmd run` does.
//
// # Starting
//
// Run opens every listening socket itself, the TCP ones on free loopback ports and the Unix ones in
// the abstract name space, and passes them to the daemons as inherited descriptors. So each process
// can connect to any other from its first instruction, and waits in the backlog of the listener until the
// other one is ready: no port can be taken by somebody else in between, nothing polls, nothing is
// started "after" something else, and there is no socket file that could be left behind.
//
// # Ending
//
// A job ends when all programs have ended, or when one of them, or a daemon, fails; then the other programs are
// asked to end (SIGTERM) and, after Config.Grace, killed. The daemons are killed when no program is left. Four nets catch what could be left behind:
//
//   - Each child leads a process group of its own. The group is killed when its leader has ended and the
//     output of the group has ended too, or after a short linger.
//   - Run makes its process the subreaper of all its descendants, so a process that left its group
//     (setsid) becomes a child of Run when its parent dies, and is killed and reaped at the end.
//   - Each child has a parent-death signal, so that the kernel kills it when Run's process dies, also
//     by SIGKILL. The kernel sends it when the *thread* that forked the child ends; therefore one locked
//     thread starts all children and lives as long as they do.
//   - A guard, a tiny process in a session of its own, holds one end of a pipe and sees its end of file
//     when Run's process dies in whatever way. It kills the groups it was told of, and then every process
//     whose environment names the job's sockets, which finds grandchildren too.
//
// # Concurrency
//
// Everything that decides is one goroutine, supervisor.loop; the goroutines around it wait for one
// thing each (an exit, a line of output, a signal) and report it as an event. There are no locks
// apart from the one that keeps lines of output whole (sink.mu), which is never held with another.
package launch
