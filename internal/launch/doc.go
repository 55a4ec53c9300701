// Package launch runs a job: daemons, programs attached to them, and nothing left over when the job
// is done. It is what `dsmd run` does, on this machine or on many.
//
// # Parts
//
// A machine is where children of a job run, the daemons and the programs. There are two kinds:
// local, this machine, which forks, signals and reaps; and remote, the launcher's side of a
// connection to an agent, a process on another machine that has a local of its own and does what it
// is told. The supervisor decides, in one place, for all of them: it gives machines orders, which
// never wait, and gets events.
//
//	supervisor ── local                         dsmd run -n
//	supervisor ─┬ remote ══ ssh ══ agent ── local    dsmd run --hosts
//	            └ remote ══ ssh ══ agent ── local
//
// # Starting
//
// A machine opens every listening socket of its nodes itself, the TCP ones on free ports and the
// Unix ones in the abstract name space, and passes them to the daemons as inherited descriptors.
// When all machines have said where their nodes listen, everything is started at once. So each
// process can connect to any other from its first instruction, and waits in the backlog of the
// listener until the other one is ready. Nobody else can take a port in between, nothing polls,
// nothing is started "after" something else, and no socket file can be left behind.
//
// Connections of nodes that leave a machine are encrypted. The launcher makes an authority and
// certificates for the job, and agents get them through ssh. They are in no command line, and on
// the hosts in no file that has a name.
//
// # Ending
//
// A job ends when all programs have ended, or when one of them, a daemon, or a machine fails. Then
// the launcher asks the other programs to end (SIGTERM) and, after Config.Grace, kills them. (With
// Config.Survive it asks only those that were lost with it, and tells the daemons.) It kills the
// daemons when no program is left. Of several failures one is to blame: the launcher decides which
// when it has asked every machine whether one of its daemons is about to end. Five nets catch what
// could be left behind:
//
//   - Each child leads a process group of its own. The group is killed when its leader has ended
//     and the output of the group has ended too, or after a short linger.
//   - A local makes its process the subreaper of all its descendants, so a process that left its
//     group (setsid) becomes a child of it when its parent dies, and is killed and reaped at the
//     end.
//   - Each child has a parent-death signal, so that the kernel kills it when the process that
//     started it dies, also by SIGKILL. The kernel sends it when the *thread* that forked the child
//     ends; therefore one locked thread starts all children and lives as long as they do.
//   - A guard, a tiny process in a session of its own, holds one end of a pipe and sees its end of
//     file when that process dies in whatever way. It kills the groups it was told of, and then
//     every process whose environment names one of the machine's sockets, which finds grandchildren
//     too. One that is killed is replaced.
//   - An agent kills everything when its connection ends, which the launcher's death brings about:
//     the kernel then kills ssh. When the launcher's machine is gone the host's sshd has to notice
//     it, and by default takes hours; the ends of a meeting's connection take seconds.
//
// An agent that hangs is asked in vain whether it is alive, and then counts as a lost machine.
//
// # Concurrency
//
// One goroutine decides everything, supervisor.loop. The goroutines around it wait for one thing
// each (an exit, a line of output, a frame) and report it as an event. There is room for all events
// that can come, so that nobody waits to report one. Locks: local.mu is taken before process.mu;
// the others (sink.mu, channel.mu, remote.mu, those of the streams' windows) are never held with
// another, but for channel.mu, under which a frame is written.
package launch
