#include "textflag.h"

// func Note(s *Site, at int64, depth int)
//
// A frame pointer leads to the caller's, with the return address behind it; the outermost is 0. The
// first is that of the caller, as this has no frame.
TEXT ·Note(SB), NOSPLIT|NOFRAME, $0-24
	MOVD	s+0(FP), R0
	MOVD	at+8(FP), R1
	MOVD	R1, (R0)
	MOVD	R29, R2
	MOVD	depth+16(FP), R3
next:
	MOVD	ZR, R1
	CBZ	R2, store
	MOVD	8(R2), R1
	MOVD	(R2), R2
store:
	ADD	$8, R0
	MOVD	R1, (R0)
	SUB	$1, R3
	CBNZ	R3, next
	RET
