// Package hostile has no code but tests: real daemons, real programs, and beside them a peer or a program that means them harm.
//
// The peer is a node of the cluster as far as anybody can tell: it speaks package transport/tcp, handshake and all, with a certificate where there
// is TLS, and says what no correct node says. The program speaks package internal/attach, or not even that. What is asked of
// a daemon: it does not panic, it does not grow without bound, it goes on or ends with an error that names who was to blame, and
// programs that behave compute right until then, and in a new cluster afterwards.
//
// Here are few attacks, because each takes processes. The many are beside what they attack: TestSiege, TestRandomLies and
// TestMutatedConversation in package protocol, TestEveryFieldOfEveryLie and FuzzConversation in package node.
package hostile
