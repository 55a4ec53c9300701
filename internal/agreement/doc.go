// Package agreement decides which nodes go on when some of them are lost, leave or come.
//
// The nodes of a cluster share a view: a number, the epoch, and who is in it, its members. A node
// whose transport has lost a peer suspects it. The members then agree on the next view, which
// leaves out whom one of them suspects. While nobody is suspected, and the present view serves, the
// next one may also have more members (Admit), or members that are leaving (Retire). Leaving
// members give away what they have, and decide nothing any more. All of this is a pure state
// machine (State). It does no I/O and knows no clock: its host tells it what happens, and carries
// out its outputs.
//
//	s := agreement.New(self, members)
//	out = s.Suspect(2, out)            // a peer is lost, or seems to be
//	out, err = s.Message(from, b, out) // what a peer's Send has brought
//	out = s.Tick(out)                  // from time to time, unless Idle
//	s.Resumed(epoch)                   // everybody in the view has entered it
//
// # How a view is decided
//
// The members of epoch k decide the view of epoch k+1 by single-decree Paxos (Lamport 2001, "Paxos
// made simple"). A node asks them to promise a ballot. To those that promise it proposes what one
// of them may already have accepted, or else the members that it does not suspect. When a quorum
// has accepted that, it is decided. All that know a decision pass it on, and a node that is asked
// about an older epoch answers with the decision. A node that crashed comes back only as a new
// member of a later view, in whose decision it has no part. So nothing needs to be kept on disk. It
// must be left out before it comes back: a host refuses the connections of a process that takes the
// place of a member. A view names the process of each member that has come (NewOutside): a decision
// may reach a node after the process that it lets in has ended and another has taken its place.
// That one is not let in by it. It asks, by which the members learn that the other is no more.
//
// A quorum is more than half of the members that are not leaving, or exactly half if the lowest
// number of those is among them. Any two quorums of a view meet: if one has more than half, the two
// have more than all members together; if both have exactly half, the lowest number is in both. So
// there is never more than one decision for an epoch, and of two sides that are cut off from each
// other at most one goes on: its members are a quorum, and then those of the other side are none.
// Of two nodes, only the one with the lower number goes on when the other is lost. A node cannot
// tell a dead peer from one that is out of reach, so one of the two must be preferred.
//
// # Why two views never both serve
//
// When a view is decided, its members do not know it yet. While they learn it, some still work
// under the old view. A host may serve under the new view only when each of its members has told it
// that it has left the older views; the host then calls Resumed. A node proposes members only if
// they are a quorum of the last view that all members are known to have entered, and of all views
// after it that this node has been in. A node that has joined since does not know, and proposes
// nothing until then. So when a view serves, a quorum of every older one has left that one, and
// those that have not are no quorum: at no time do two views have a quorum of members that serve
// under them. A second loss before the recovery from the first one is over counts together with the
// first: if what remains is no quorum of the view before both, nobody goes on.
//
// A view with more members, or with members that are leaving, leaves nobody out. It serves when all
// have entered it. So nobody is left who could serve under the one before, although quorums of the
// two views need not meet.
//
// Nothing of this depends on time. A node may have been left out and not know it yet. The protocol
// above says what it may still do. Here it is only certain that such nodes can decide nothing, and
// learn of their exclusion from the first member that they can ask.
//
// # What is not promised
//
// Nodes may be slow, crash, be cut off, and suspect each other wrongly. Messages may be lost, come
// twice, and come in any order. Nodes may not lie: a message that makes no sense is an error, but a
// member that breaks its promise can break everything above. Once the nodes of a quorum can talk to
// each other for a while, there is a decision: ballots that collide are tried again after pauses
// that grow and differ.
package agreement
