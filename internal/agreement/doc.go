// Package agreement decides which nodes go on when some of them are lost, leave or come.
//
// The nodes of a cluster share a view: a number, the epoch, and who is in it, its members. A node whose transport has lost a peer suspects it.
// The members then agree on the next view, which leaves out whom one of them suspects. While nobody is suspected, and the present view serves, the next one
// may also have more members (Admit), or members that are leaving (Retire): those give away what they have, and decide nothing any more. All of this is a pure
// state machine (State), which does no I/O and knows no clock: its host tells it what happens and carries out its outputs.
//
//	s := agreement.New(self, members)
//	out = s.Suspect(2, out)            // a peer is lost, or seems to be
//	out, err = s.Message(from, b, out) // what a peer's Send has brought
//	out = s.Tick(out)                  // from time to time, unless Idle
//	s.Resumed(epoch)                   // everybody in the view has entered it
//
// # How a view is decided
//
// The view of epoch k+1 is decided by single-decree Paxos (Lamport 2001, "Paxos made simple") among the members of epoch k: a node asks them to
// promise a ballot, proposes to those that did what one of them may already have accepted, or else the members that it does not suspect,
// and when a quorum has accepted that, it is decided. All that know a decision pass it on, and whoever is asked about an older epoch
// answers with the decision. A node that crashed comes back only as a new member of a later view, in whose decision it has no part, so nothing needs to be kept
// on disk. It must be left out before: a host refuses the connections of a process that takes the place of a member.
//
// A quorum is more than half of the members that are not leaving, or exactly half if the lowest number of those is among them. Any two quorums of
// a view meet: if one has more than half, the two have more than all members together; if both have exactly half, the lowest number is in
// both. So there is never more than one decision for an epoch, and of two sides that are cut off from each other at most one goes on: its
// members are a quorum, and then those of the other side are none. Of two nodes, the one with the lower number goes on when the other
// is lost, and the other one does not: it has no way to tell a dead peer from one that is out of reach, and one of them must be preferred.
//
// # Why two views never both serve
//
// That a view was decided does not mean that its members know it. While they learn it, some of the old view still work under the old one. A host may serve
// under the new view only after it has heard from each of its members that it has left the older views, which it tells by Resumed. A node
// proposes members only if they are a quorum of the last view of which it knows that, and of all views after it that it has been in. One that has come since
// does not know, and proposes nothing until then. So when a view serves, a quorum of every older one has left it, and those that have not are none: at no time do
// two views have a quorum of members that serve under them. A second loss before the recovery from the first one is over counts
// together with that: if what remains is no quorum of the view before both, nobody goes on.
//
// A view with more members, or with members that are leaving, leaves nobody out. It serves when all have entered it, so nobody is left who could serve under the
// one before, although two quorums of the two need not meet.
//
// Nothing of this depends on time. What a node may do that was left out and does not know it yet, is for the protocol above to say: here it is
// only certain that such nodes can decide nothing, and learn of their exclusion from the first member that they can ask.
//
// # What is not promised
//
// Nodes may be slow, crash, be cut off and suspect each other wrongly; messages may be lost, come twice and in any order. They may not lie:
// a message that makes no sense is an error, but a member that promises and does not keep it can break everything above. There is a decision
// once nodes that are a quorum can talk to each other for a while: ballots that collide are tried again after pauses that grow and differ.
package agreement
