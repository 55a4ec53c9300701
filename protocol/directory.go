package protocol

// Entry is a copy of what a home knows of an object when nothing is under way.
type Entry struct {
	Owner     NodeID // NoNode: nobody has touched the object
	Exclusive bool   // the owner is the only holder, and may write
	// Sharers are all holders, the owner among them, and in clusters too large for an exact copyset
	// perhaps nodes that hold nothing.
	Sharers []NodeID
}

// Entry returns the directory entry of an object; false if this node does not know the object or a transaction is under way.
// Preconditions: this node is the object's home.
func (e *Engine) Entry(id ObjectID) (Entry, bool) {
	o := e.objects.find(id)
	if o == nil || e.peek(o) != nil && e.peek(o).mode != homeIdle {
		return Entry{Owner: NoNode}, false
	}
	return Entry{Owner: o.owner, Exclusive: o.is(exclusiveFlag), Sharers: o.sharers.appendTo(nil, &e.cfg)}, true
}
