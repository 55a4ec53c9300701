// Package controlpage is the memory that a program shares with the daemon of its node for
// synchronisation. There the program takes and gives back a lock that stays at the node, with one
// atomic instruction and without a word to the daemon. And there program and daemon exchange calls
// and replies, without a system call, while the other side is awake.
//
// Each program has a page of its own, a memory file that the daemon makes and passes to it when it
// attaches (package attach, Ready). So what a program writes there it does to itself only. The
// file's size is sealed, so that no program can make the daemon fail by shortening it.
//
// # Words
//
// Most of the page is a table of Slots words. The hash of its name gives a lock its place there.
// Locks may share a place, but only one of these can be published at a time. A word is 0, or has
// the lock that it belongs to and the lock's state:
//
//	         Take                      Recall
//	free ──────────────► held ─────────────────────► wanted
//	▲  ▲                  │                             │
//	│  └──── GiveBack ────┘                             │ GiveBack, and the
//	│ Publish                                           │ program says Release
//	│              Recall                               ▼
//	└── none ◄── free                                  none
//
// To the rest of the cluster the program holds the lock for writing as long as its word is
// published. The daemon publishes a lock when the program has given it back and nobody else wants
// it. It recalls the lock as soon as somebody does: another node, another program of this node, or
// a goroutine of the same program that found it held and asks for it as for any lock. A recalled
// word that is free is gone at once. A word that is held is marked. Then the program's own GiveBack
// fails to free it, and the program gives the lock back by a message.
//
// Every change is a single atomic operation on the one word, which names the lock and its state.
// The word may change in between, and may even belong to another lock by then: an operation never
// does what it was not meant to do.
//
// # Boxes
//
// Beside the words there is a box for calls and one for replies. A box holds one frame of the
// conversation on the socket (package attach). A reader that waits for a frame polls its box for a
// while, and says so there. The sender puts a frame into the box if the other side looks there, and
// else, as if there were no boxes, into the socket:
//
//	        Watch            Put
//	away ◄────────► watched ─────► full
//	 ▲      Leave                   │
//	 └───────────── Take ───────────┘
//
// A reader that stops looking makes sure, by the same atomic operation, that nothing came before,
// and then sleeps until the socket has something. So no frame is left lying, and a box never wakes
// anybody. A frame in a box was sent before any that its sender puts into the socket afterwards.
// The reader keeps that order: it looks into the box between reading the socket and attending to
// what it has read. There is no order the other way round, so a frame that must not overtake
// earlier ones goes by the socket. The daemon counts what it sends by the socket, so that a program
// which looks into the box notices that also.
//
// # Who trusts whom
//
// The daemon believes nothing that it reads. It remembers which locks it has published, and
// computes their places itself. A word can only be in one of the states above, with the lock's own
// name; else the program is at fault. No operation of the daemon waits or repeats, whatever the
// program does meanwhile. The daemon first copies what lies in a box, and then reads it as
// carefully as what comes through the socket.
package controlpage
