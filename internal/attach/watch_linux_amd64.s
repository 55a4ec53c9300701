#include "textflag.h"

#define SYS_write 1
#define SYS_clone 56
#define SYS_exit 60
#define SYS_exit_group 231
#define SYS_ppoll 271

// CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD|CLONE_SYSVSEM|CLONE_CHILD_CLEARTID
#define CLONE_FLAGS 0x250f00

// Offsets in watchArea.
#define area_socket_revents 6
#define area_stop 8
#define area_stop_revents 14
#define area_grace 16
#define area_text_bytes 32
#define area_status 40
#define area_alive 48
#define area_text 56

// func spawnWatch(area *watchArea, stackTop uintptr) int64
//
// The child never returns into Go: it has no g. It touches nothing but the area, in R12, which system
// calls preserve, and pushes nothing.
TEXT ·spawnWatch(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ	area+0(FP), R12
	MOVQ	stackTop+8(FP), SI
	MOVQ	$CLONE_FLAGS, DI
	MOVQ	$0, DX
	LEAQ	area_alive(R12), R10
	MOVQ	$0, R8
	MOVQ	$SYS_clone, AX
	SYSCALL
	CMPQ	AX, $0
	JEQ	wait
	MOVQ	AX, ret+16(FP)
	RET

wait:	// until the peer closes, or Stop
	MOVQ	R12, DI
	MOVQ	$2, SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVQ	$SYS_ppoll, AX
	SYSCALL
	CMPQ	AX, $0
	JLE	wait
	CMPW	area_stop_revents(R12), $0
	JNE	end
	CMPW	area_socket_revents(R12), $0
	JEQ	wait

grace:	// let the goroutines come first. The kernel counts the time down in place
	LEAQ	area_stop(R12), DI
	MOVQ	$1, SI
	LEAQ	area_grace(R12), DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVQ	$SYS_ppoll, AX
	SYSCALL
	CMPQ	AX, $0
	JLT	grace
	JGT	end

	MOVQ	$2, DI
	LEAQ	area_text(R12), SI
	MOVQ	area_text_bytes(R12), DX
	MOVQ	$SYS_write, AX
	SYSCALL
	MOVQ	area_status(R12), DI
	MOVQ	$SYS_exit_group, AX
	SYSCALL

end:
	MOVQ	$0, DI
	MOVQ	$SYS_exit, AX
	SYSCALL
	INT	$3
