package attach

// NameKind keeps names of different things apart: a lock and a barrier may both be called "queue".
type NameKind byte

const (
	NameMemory  NameKind = 'm' // an allocation
	NameLock    NameKind = 'l' // a mutex or reader-writer lock
	NameBarrier NameKind = 'b'
	NameReduce  NameKind = 'r' // a reduction
	NameType    NameKind = 't' // a type's signature
)

// NameHash is FNV-1a with 64 bits over the kind and the name. All nodes and programs must agree on
// it, so it is computed here only. Locks and barriers are known by their hash alone: of a million
// names, two collide with a probability of 3 in a hundred million.
func NameHash(kind NameKind, name string) uint64 {
	const offset, prime = 0xcbf29ce484222325, 0x100000001b3
	h := (uint64(offset) ^ uint64(kind)) * prime
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	return h
}
