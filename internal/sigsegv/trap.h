// The program's side of the SIGSEGV trap. See doc.go of this package, and package area for the
// memory shared with the daemon.
#ifndef DSM_TRAP_H
#define DSM_TRAP_H

#include <stddef.h>
#include <stdint.h>

// The layout of the area, as in package area; trap.go compares them.
enum {
	DSM_FAULTS_OFFSET = 4096,
	DSM_FAULT_SLOTS = 1024,
	DSM_FAULT_BYTES = 32,
	DSM_COMMANDS_OFFSET = 4096 + 1024 * 32,
	DSM_COMMAND_SLOTS = 4096,
	DSM_WORDS_OFFSET = 128 << 10,

	DSM_GRANTED_MASK = 3,
	DSM_APPLIED_SHIFT = 2,
	DSM_WAITERS = 1 << 4,
	DSM_GEN_STEP = 1 << 5,

	DSM_LOST = 3, // granted: nobody has the page's contents any more

	DSM_MARK = 0x64736d77, // see Mark in doc.go
};

struct dsm_trap;

// dsm_trap_open makes the trap of a region and starts its agent. area is its mapped area, events
// the eventfd that wakes the daemon, sock the program's end of the socket to it. max_splits is how
// often protections may change from one page to the next. It returns 0 or a negative errno.
int dsm_trap_open(struct dsm_trap **out, uintptr_t base, uint64_t pages, uint64_t page_bytes, void *area, int events, int sock, uint64_t max_splits);

// dsm_trap_register puts pages [first, end), just mapped without access, under the trap. If they are
// read_only, a store is an ordinary segmentation fault. dsm_trap_unregister takes them out, before
// they are unmapped. They return 0 or a negative errno.
int dsm_trap_register(struct dsm_trap *t, uint64_t first, uint64_t end, int read_only);
int dsm_trap_unregister(struct dsm_trap *t, uint64_t first, uint64_t end);

// dsm_trap_map maps what the daemon has granted of pages [first, end) and is not mapped yet, as
// touching each would.
void dsm_trap_map(struct dsm_trap *t, uint64_t first, uint64_t end);

// dsm_trap_retire ends the serving of faults: from now on they are ordinary segmentation faults,
// also those that wait.
void dsm_trap_retire(struct dsm_trap *t);

// dsm_trap_close ends the agent and frees t, once no thread waits in it any more. The area may be
// unmapped afterwards.
void dsm_trap_close(struct dsm_trap *t);

// dsm_trap_evictions is how often the limit was reached.
uint64_t dsm_trap_evictions(struct dsm_trap *t);

#endif
