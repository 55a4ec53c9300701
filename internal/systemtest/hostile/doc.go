// Package hostile has no code but tests: real daemons, real programs, and beside them a peer or a
// program that means them harm.
//
// The peer is a node of the cluster as far as anybody can tell: it speaks package transport/tcp,
// handshake and all, with a certificate where there is TLS, and says what no correct node says. The
// program speaks package internal/attach, or not even that. A daemon must not panic, and must not
// grow without bound. It goes on, or ends with an error that names who was to blame. Programs that
// behave compute right until then, and in a new cluster afterwards.
//
// There are few attacks here, because each takes processes. Most are beside what they attack:
// TestSiege, TestRandomLies and TestMutatedConversation in package protocol,
// TestEveryFieldOfEveryLie and FuzzConversation in package node.
package hostile
