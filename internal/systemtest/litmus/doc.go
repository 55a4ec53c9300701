// Package litmus checks the memory model on real clusters, with litmus tests: tiny parallel
// programs on two or three variables, run many times, whose outcomes tell which orders of memory
// accesses the machine lets programs see (Alglave, Maranget, Sarkar, Sewell: "Litmus: running tests
// against hardware", TACAS 2011).
//
// What must hold: when the threads of a test run on different nodes, its outcomes are those of
// sequential consistency, that is of some interleaving of the threads. Within a node the
// processor's model holds (TSO on amd64: a load may overtake an earlier store of its own thread).
// So threads that share a node are held to TSO when they use plain accesses, and to sequential
// consistency when they use sync/atomic, whose stores are fences on amd64.
//
// Nobody wrote down which outcomes each model allows: the package enumerates them from the shape's
// instructions (model.go), and the tests check the enumeration against the outcomes that the
// literature forbids.
//
// Each round of a test (runner.go) takes place on variables that lie on pages with different homes,
// on one page, or on pages that nobody has touched before; its threads are dealt to nodes anew;
// before it, each node brings random ones of the pages into a random state, readable or writable.
// One Reduce starts it everywhere at the same time of the clock, and the rounds in which all
// threads overlapped are counted.
package litmus
