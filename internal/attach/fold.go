package attach

// Fold says what becomes of the payloads of an OpArrive: NoFold, and everybody gets all; or the
// numbers in them are combined in the order of ranks. Its numbers are those of package protocol,
// which says how.
type Fold uint8

// NoFold leaves payloads as they are.
const NoFold Fold = 0

// FoldOp is how numbers are combined, and Number what they are.
type (
	FoldOp uint8
	Number uint8
)

// The operations.
const (
	FoldSum FoldOp = iota + 1
	FoldMin
	FoldMax
)

// The numbers.
const (
	NumberInt8 Number = iota
	NumberInt16
	NumberInt32
	NumberInt64
	NumberUint8
	NumberUint16
	NumberUint32
	NumberUint64
	NumberFloat32
	NumberFloat64
)

// FoldOf is what combines such numbers so.
func FoldOf(op FoldOp, n Number) Fold { return Fold(op)<<4 | Fold(n) }
