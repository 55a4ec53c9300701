package protocol

// Entry is a copy of what a home knows of an object when nothing is under way.
type Entry struct {
	Owner     NodeID // NoNode: nobody has touched the object
	Exclusive bool   // the owner is the only holder, and may write
	// Sharers are all holders, the owner among them, and in clusters too large for an exact copyset
	// perhaps nodes that hold nothing.
	Sharers []NodeID
	// Lost: the page is lost, and the owner is the node with which it was. There are no sharers then.
	Lost bool
	// Backed: nobody has the page, and the owner has a backup of it, which whoever asks for the page gets. There are no sharers then.
	Backed bool
}

// lost says, at the home, whether nobody has the object although somebody has touched it: the owner is a node that was lost.
func (o *object) lost() bool { return o.owner != NoNode && o.sharers == (copyset{}) && !o.backed() }

// Entry returns the directory entry of an object; false if this node does not know the object or a transaction is under way.
// Preconditions: this node is the object's home.
func (e *Engine) Entry(id ObjectID) (Entry, bool) {
	o := e.objects.find(id)
	if o == nil || e.peek(o) != nil && e.peek(o).mode != homeIdle {
		return Entry{Owner: NoNode}, false
	}
	return Entry{Owner: o.owner, Exclusive: o.is(exclusiveFlag), Sharers: o.sharers.appendTo(nil, &e.cfg), Lost: o.lost(), Backed: o.backed()}, true
}

// Lost says whether a page is lost, and with which node.
// Preconditions: this node is the object's home.
func (e *Engine) Lost(id ObjectID) (NodeID, bool) {
	if o := e.objects.find(id); o != nil && o.owner != NoNode {
		return o.owner, o.lost()
	}
	return e.lostHome(id)
}
