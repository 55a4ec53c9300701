#include "textflag.h"

// func Note(s *Site, at int64, depth int)
//
// A frame pointer leads to the caller's, with the return address behind it; the outermost is 0. The
// first is that of the caller, as this has no frame.
TEXT ·Note(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ	s+0(FP), DI
	MOVQ	at+8(FP), AX
	MOVQ	AX, (DI)
	MOVQ	BP, SI
	MOVQ	depth+16(FP), CX
next:
	XORL	AX, AX
	TESTQ	SI, SI
	JEQ	store
	MOVQ	8(SI), AX
	MOVQ	(SI), SI
store:
	ADDQ	$8, DI
	MOVQ	AX, (DI)
	DECQ	CX
	JNE	next
	RET
