// Package controlpage is the memory that a program shares with the daemon of its node for the sake of synchronisation: a lock that
// stays at the node is taken and given back there, with one atomic instruction and without a word to the daemon, and what has to be said to the
// daemon, or by it, is said there without a system call while the other side is awake.
//
// Each program has a page of its own, a memory file that the daemon makes and passes to it when it attaches (package attach, Ready). So what a
// program writes there it does to itself only. The file's size is sealed, so that no program can make the daemon fail by shortening it.
//
// # Words
//
// Most of the page is a table of Slots words. A lock has its place in it by the hash of its name; it shares that with others, of which one at a
// time can be published. A word is 0, or says which lock it belongs to and how that stands:
//
//	         Take                      Recall
//	free ──────────────► held ─────────────────────► wanted
//	▲  ▲                  │                             │
//	│  └──── GiveBack ────┘                             │ GiveBack, and the
//	│ Publish                                           │ program says Release
//	│              Recall                               ▼
//	└── none ◄── free                                  none
//
// To the rest of the cluster the program holds the lock for writing all the time that its word is published. The daemon
// publishes a lock when the program has given it back and nobody else wants it, and recalls it as soon as somebody does: another node, another
// program of this node, or a goroutine of the same program that found it held and asks for it as for any lock. A recalled word that is free is
// gone at once. One that is held is marked, so the program's own GiveBack fails to free it, and the program gives the
// lock back by a message.
//
// Every change is a single atomic operation on the one word, which names the lock besides its state. So nothing that happens
// to the word in between, even that it is another lock's by now, can make an operation do what it was not meant to do.
//
// # Boxes
//
// Beside the words there is a box for calls and one for replies. A box holds one frame of the conversation on the socket (package attach). Who waits for
// a frame looks into its box again and again for a while, and says so there; who sends one puts it there if the other side looks, and else, as if there
// were no boxes, into the socket:
//
//	        Watch            Put
//	away ◄────────► watched ─────► full
//	 ▲      Leave                   │
//	 └───────────── Take ───────────┘
//
// Who stops looking makes sure by the same atomic operation that nothing came before, and then sleeps until the socket has something. So no frame is
// left lying, and a box never wakes anybody. A frame in a box was sent before any that its sender puts into the socket afterwards; the reader keeps that order by
// looking into the box between reading the socket and attending to what it has read. The other way round there is no order, so a frame which must not overtake those before it goes by the socket.
// The daemon counts what it sends by the socket, so that a program which looks into the box notices that also.
//
// # Who trusts whom
//
// The daemon believes nothing that it reads. It remembers itself which locks it has published, and computes their places itself. What it finds
// in a word can only be one of the states above with the lock's own name; else the program is at fault. No operation of the daemon
// waits or repeats, whatever the program does meanwhile. What lies in a box it copies first, and then reads as carefully as what comes through the socket.
package controlpage
