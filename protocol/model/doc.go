// Package model is the smallest honest host of a protocol.Engine: a page table, threads with little
// programs, and a network, without any hardware. The explorer (protocol/modelcheck) and the
// simulator (protocol/simulator) both run clusters of its nodes, and differ only in who chooses the
// next action.
//
// # What a node is
//
// A Node is one engine and all that surrounds it on one machine:
//
//   - a page table. Of each page it knows the access (absent, read-only, writable) and the
//     contents. Contents are one number: how many writes the page has seen. Contents that a revoke
//     saved, and contents that a grant brought but that are not installed yet, are kept beside
//     them. With Config.Spaces, also what is mapped of it in each program of the node; see
//     spaces.go.
//   - threads. Each goes through a program: a list of accesses to pages, lock calls, barriers. An
//     access that the page table allows retires at once; any other becomes a fault event, and
//     blocks the thread until an effect wakes it.
//   - operations on the page table that the engine has ordered and that have not happened yet.
//   - control pages, if Config.Words says so, with words by which threads take locks and give them
//     back without a call. Package lockwords decides about them, as it does in a daemon. A thread
//     may look at its word before the daemon writes it, and ask afterwards.
//   - holds: the times for which the engine leaves a page in peace.
//
// # What can happen
//
// An Action is one thing that happens at one node. Node.Local lists those that can happen at a node
// now, Node.Do makes one happen, and says in an Outcome which messages left and which access
// retired. An effect on the page table happens in two steps, as it does in a daemon: first the page
// table changes, later the completion reaches the engine. Threads may run between the two. With
// Config.Spaces taking access away has more steps: stores are cut off in one program after the
// other, then the contents are read, then the page is removed; threads may run between all of them.
//
// Nodes may be lost, leave or come (crash.go), and others may take nodes for lost that live on
// (minority.go).
//
// # What must hold
//
// Nodes check what one node can see: that effects find the page in the state they presume, that
// contents exist where they are needed, that the engine's own tables are sound, that no message is
// rejected. A Ledger checks what only an observer of the whole cluster sees: that a read returns
// the last write, that locks exclude, that barriers gather everybody. CheckExclusive checks one
// writer or many readers, and CheckQuiescent what must hold when nothing more can happen. All of
// them report a *Violation.
//
// # Planted bugs
//
// A Plant breaks the host or the network on purpose, never the engine: a test that looks for a
// planted bug shows that the checks above can fail.
package model
