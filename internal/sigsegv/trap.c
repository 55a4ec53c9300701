//go:build cgo && linux && (amd64 || arm64)

#define _GNU_SOURCE
#include "trap.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum level { NONE, READ_ONLY, WRITABLE };

enum {
	// AROUND is how many pages to each side of a fault are mapped with it, if the daemon has
	// granted them too: a run that was prefetched then costs one signal, not one for each page. The
	// list of them lies on Go's small signal stack.
	AROUND = 32,
	// WINDOW is how many pages lose their mapping at a time when the limit of mappings is near.
	WINDOW = 512,
	// BATCH is how many commands the agent carries out before others may change protections.
	BATCH = 256,
	// TRAPS is how many regions a process can have at a time.
	TRAPS = 8,
};

// A waiting thread has all signals blocked. It wakes this often, in nanoseconds, to see whether one
// is there, Go's preemption signal above all: then it returns to the access, takes the signal
// there, and faults again. The first is far longer than a fault takes, the last is Go's own period
// of preemption.
static const long first_slice = 1000 * 1000, last_slice = 8 * 1000 * 1000;

struct header {
	uint64_t magic, version, pages, page_bytes;
	char pad0[64 - 32];
	_Atomic uint32_t signalled;
	char pad1[128 - 68];
	_Atomic uint64_t tail;
	char pad2[192 - 136];
	_Atomic uint64_t posted;
	char pad3[256 - 200];
	_Atomic uint32_t sleeps;
	uint32_t pad4;
	_Atomic uint64_t done;
};

_Static_assert(offsetof(struct header, signalled) == 64, "layout");
_Static_assert(offsetof(struct header, tail) == 128, "layout");
_Static_assert(offsetof(struct header, posted) == 192, "layout");
_Static_assert(offsetof(struct header, sleeps) == 256, "layout");
_Static_assert(offsetof(struct header, done) == 264, "layout");

struct fault {
	_Atomic uint64_t turn;
	_Atomic uint64_t page;
	_Atomic uint32_t thread;
	_Atomic uint32_t access; // offset << 1 | write
	uint64_t unused;
};

_Static_assert(sizeof(struct fault) == DSM_FAULT_BYTES, "layout");

struct range {
	uint64_t first, end;
	int read_only; // the program may not store there, whatever the daemon grants
};

struct dsm_trap {
	uintptr_t base;
	uint64_t pages, page_bytes;
	struct header *header;
	struct fault *faults;
	_Atomic uint64_t *commands;
	_Atomic uint32_t *words;
	int events, sock, slot;
	pthread_t agent;

	_Atomic uint32_t lock; // 0 free, 1 taken, 2 taken and somebody waits
	_Atomic int retired;   // by the program: faults are nobody's any more
	_Atomic int abandoned; // by the daemon: faults wait until the program ends
	_Atomic int stop;      // the agent is to end

	// Guarded by lock, as are the applied bits of the words and all protections.
	struct range *ranges; // what is registered, ascending
	size_t count, room;
	uint64_t splits; // neighbours with different protections, within ranges
	uint64_t max_splits;
	uint64_t evictions;
	uint64_t hand; // the page at which the next eviction begins
};

// The traps of this process. inside is how many threads use a slot's trap; the slots themselves are
// never freed.
static struct slot {
	_Atomic uintptr_t base, bytes;
	_Atomic(struct dsm_trap *) trap;
	_Atomic int inside;
} slots[TRAPS];

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before; // Go's handler
static int installed;           // guarded by slots_lock

// ---- small things ----

static int lost(uint32_t w) { return (w & DSM_GRANTED_MASK) == DSM_LOST; }
static unsigned granted(uint32_t w) { return lost(w) ? NONE : w & DSM_GRANTED_MASK; }
static unsigned applied(uint32_t w) { return w >> DSM_APPLIED_SHIFT & 3; }
static uint32_t generation(uint32_t w) { return w / DSM_GEN_STEP; }
static uint32_t with_applied(uint32_t w, unsigned level) { return (w & ~(uint32_t)(3 << DSM_APPLIED_SHIFT)) | level << DSM_APPLIED_SHIFT; }

// Only called by owners of the lock, so nobody else changes the applied bits.
static void set_applied(struct dsm_trap *t, uint64_t page, unsigned level) {
	uint32_t w = atomic_load(&t->words[page]);
	while (!atomic_compare_exchange_weak(&t->words[page], &w, with_applied(w, level)))
		;
}

// sleep_on sleeps while *word is value, without end.
static void sleep_on(void *word, uint32_t value, int private) {
	syscall(SYS_futex, word, FUTEX_WAIT | (private ? FUTEX_PRIVATE_FLAG : 0), value, NULL, NULL, 0);
}

// sleep_in sleeps, as sleep_on does, for a page that the instruction at pc needs, for at most ns
// nanoseconds.
static void sleep_in(void *word, uint32_t value, uintptr_t pc, long ns) {
	struct timespec span = {ns / 1000000000, ns % 1000000000};
	syscall(SYS_futex, word, FUTEX_WAIT, value, &span, pc, (unsigned long)DSM_MARK);
}

static void take(struct dsm_trap *t) {
	uint32_t free = 0;
	if (atomic_compare_exchange_strong(&t->lock, &free, 1))
		return;
	while (atomic_exchange(&t->lock, 2) != 0)
		sleep_on(&t->lock, 2, 1);
}

static void give(struct dsm_trap *t) {
	if (atomic_exchange(&t->lock, 0) == 2)
		syscall(SYS_futex, &t->lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void complain(const char *text) {
	ssize_t ignored = write(2, text, strlen(text));
	(void)ignored;
}

// wake_daemon makes the eventfd readable, unless it is and the daemon has not seen it.
static void wake_daemon(struct dsm_trap *t) {
	if (atomic_exchange(&t->header->signalled, 1) == 0) {
		uint64_t one = 1;
		// It can't fail: the counter never exceeds one.
		while (write(t->events, &one, sizeof one) < 0 && errno == EINTR)
			;
	}
}

// range_of is the range that a page is in, or NULL.
static struct range *range_of(struct dsm_trap *t, uint64_t page) {
	size_t low = 0, high = t->count;
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		if (t->ranges[mid].end <= page)
			low = mid + 1;
		else
			high = mid;
	}
	return low < t->count && t->ranges[low].first <= page ? &t->ranges[low] : NULL;
}

// allowed is the access to a page of r, whose word is w, that the daemon grants and the program may
// have.
static unsigned allowed(const struct range *r, uint32_t w) {
	unsigned level = granted(w);
	return r->read_only && level > READ_ONLY ? READ_ONLY : level;
}

// ---- protections, all with the lock held ----

static int protect(struct dsm_trap *t, uint64_t first, uint64_t end, unsigned level) {
	static const int prot[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
	return mprotect((void *)(t->base + first * t->page_bytes), (end - first) * t->page_bytes, prot[level]) == 0 ? 0 : errno;
}

// boundaries counts the neighbours of which at least one is in [first, end) that have different
// protections.
static uint64_t boundaries(struct dsm_trap *t, struct range *r, uint64_t first, uint64_t end) {
	uint64_t n = 0;
	for (uint64_t p = first > r->first ? first : r->first + 1; p <= end && p < r->end; p++)
		n += applied(atomic_load(&t->words[p - 1])) != applied(atomic_load(&t->words[p]));
	return n;
}

// strip takes all access to [first, end), in which the program may have unmapped something: there
// the call fails, and goes no further.
static void strip(struct dsm_trap *t, uint64_t first, uint64_t end) {
	unsigned char resident[64 << 10 >> 12]; // a page has at most 64 KiB
	if (protect(t, first, end, NONE) == 0)
		return;
	if (end - first > 1) {
		uint64_t middle = first + (end - first) / 2;
		strip(t, first, middle);
		strip(t, middle, end);
	} else if (mincore((void *)(t->base + first * t->page_bytes), t->page_bytes, resident) == 0) {
		// It is mapped, and can't be taken away: others would see stores that they must not. Every
		// mapping is whole by now.
		complain("dsm: the access to shared memory can't be taken away, so the program ends\n");
		_exit(70);
	}
}

// take_all takes all access away, in one call that needs no mapping more than there are. Whatever
// is touched next is mapped again by the handler, without the daemon.
static void take_all(struct dsm_trap *t) {
	strip(t, 0, t->pages);
	for (size_t i = 0; i < t->count; i++)
		for (uint64_t p = t->ranges[i].first; p < t->ranges[i].end; p++)
			if (applied(atomic_load(&t->words[p])) != NONE)
				set_applied(t, p, NONE);
	t->splits = 0;
	t->evictions++;
}

// lower takes access to [first, end), which lies within r, down to level. No page there has less.
static void lower(struct dsm_trap *t, struct range *r, uint64_t first, uint64_t end, unsigned level) {
	uint64_t was = boundaries(t, r, first, end);
	if (protect(t, first, end, level) != 0) {
		take_all(t); // no mapping left for the split; less access than asked for is as good
		return;
	}
	for (uint64_t p = first; p < end; p++)
		set_applied(t, p, level);
	t->splits += boundaries(t, r, first, end) - was;
}

// evict joins mappings until the limit is far enough away that the next one will not come soon. The
// pages lose their mapping in this program only; the daemon need not know.
static void evict(struct dsm_trap *t) {
	uint64_t enough = t->max_splits - t->max_splits / 4;
	int wrapped = 0;
	t->evictions++;
	for (;;) {
		size_t i = 0;
		while (i < t->count && t->ranges[i].end <= t->hand)
			i++;
		for (; i < t->count; i++) {
			struct range *r = &t->ranges[i];
			uint64_t p = t->hand > r->first ? t->hand : r->first;
			while (p < r->end) {
				uint64_t end = r->end - p > WINDOW ? p + WINDOW : r->end, q = p;
				while (q < end && applied(atomic_load(&t->words[q])) == NONE)
					q++;
				if (q < end)
					lower(t, r, p, end, NONE);
				p = end;
				if (t->splits <= enough) {
					t->hand = p;
					return;
				}
			}
		}
		if (wrapped)
			return;
		wrapped = 1;
		t->hand = 0;
	}
}

// claim notes that the program is about to get the access to a page of r that is allowed, if that
// is level and more than it has. From then on the daemon asks the agent before it takes the page.
static int claim(struct dsm_trap *t, const struct range *r, uint64_t page, unsigned level) {
	uint32_t w = atomic_load(&t->words[page]);
	do {
		if (allowed(r, w) != level || applied(w) >= level)
			return 0;
	} while (!atomic_compare_exchange_weak(&t->words[page], &w, with_applied(w, level)));
	return 1;
}

enum outcome { FOREIGN, RETRY, WAIT };

// apply maps a page as the daemon grants it, with its neighbours that are granted alike.
static enum outcome apply(struct dsm_trap *t, uint64_t page, unsigned need) {
	struct range *r = range_of(t, page);
	if (r == NULL || atomic_load(&t->retired))
		return FOREIGN;
	if (r->read_only && need == WRITABLE)
		return FOREIGN; // also where the page is absent: the daemon must not fetch it for this
	uint32_t w = atomic_load(&t->words[page]);
	unsigned level = allowed(r, w);
	if (lost(w))
		return FOREIGN; // there is nothing to wait for
	if (level < need || atomic_load(&t->abandoned))
		return WAIT;
	if (applied(w) >= need) {
		// Another thread was faster, and then the call changes nothing; or the program has changed
		// the protection by itself, and the access would fault for ever.
		return protect(t, page, page + 1, applied(w)) == 0 ? RETRY : FOREIGN;
	}
	if (t->splits + 2 > t->max_splits)
		evict(t);
	uint64_t was = boundaries(t, r, page, page + 1);
	if (!claim(t, r, page, level))
		return RETRY; // the daemon was faster
	int64_t delta = (int64_t)boundaries(t, r, page, page + 1) - (int64_t)was;
	uint64_t first = page, end = page + 1;
	while (end < r->end && end - page <= AROUND) {
		was = boundaries(t, r, end, end + 1);
		if (!claim(t, r, end, level))
			break;
		delta += (int64_t)boundaries(t, r, end, end + 1) - (int64_t)was;
		end++;
	}
	while (first > r->first && page - first < AROUND) {
		was = boundaries(t, r, first - 1, first);
		if (!claim(t, r, first - 1, level))
			break;
		delta += (int64_t)boundaries(t, r, first - 1, first) - (int64_t)was;
		first--;
	}
	if (protect(t, first, end, level) == 0) {
		t->splits += (uint64_t)delta;
		return RETRY;
	}
	// The rest of the process has more mappings than was reckoned with.
	take_all(t);
	if (!claim(t, r, page, level))
		return RETRY;
	was = boundaries(t, r, page, page + 1); // counted from the words, which have the claim already
	if (protect(t, page, page + 1, level) == 0) {
		t->splits += was;
		return RETRY;
	}
	set_applied(t, page, NONE);
	complain("dsm: the process has as many mappings as the kernel allows, and no page can be mapped any more; "
	         "raise the limit: sysctl -w vm.max_map_count=262144\n");
	return FOREIGN;
}

// ---- the handler ----

// is_write says whether the access that faulted was a store.
static int is_write(void *context) {
	ucontext_t *uc = context;
#if defined(__x86_64__)
	return (uc->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#elif defined(__aarch64__)
	// A list of records, each with a magic number and a size; ESR_MAGIC holds the syndrome, whose
	// bit 6 is WnR.
	uint8_t *at = (uint8_t *)uc->uc_mcontext.__reserved, *end = at + sizeof uc->uc_mcontext.__reserved;
	while (at + 16 <= end) {
		uint32_t magic, size;
		memcpy(&magic, at, 4);
		memcpy(&size, at + 4, 4);
		if (magic == 0x45535201) {
			uint64_t esr;
			memcpy(&esr, at + 8, 8);
			return (esr >> 6 & 1) != 0;
		}
		if (magic == 0 || size < 8)
			break;
		at += size;
	}
	return 0;
#else
#error "how this processor says that an access was a store is not known here"
#endif
}

// instruction is the address of the instruction that faulted.
static uintptr_t instruction(void *context) {
	ucontext_t *uc = context;
#if defined(__x86_64__)
	return (uintptr_t)uc->uc_mcontext.gregs[REG_RIP];
#else
	return (uintptr_t)uc->uc_mcontext.pc;
#endif
}

// interrupted says whether a signal waits that would be delivered if the handler returned.
static int interrupted(void *context) {
	uint64_t pending = 0, blocked;
	ucontext_t *uc = context;
	memcpy(&blocked, &uc->uc_sigmask, sizeof blocked);
	return syscall(SYS_rt_sigpending, &pending, sizeof pending) == 0 && (pending & ~blocked) != 0;
}

// post reports a fault, and says whether there was room. Any number of threads may be in it
// (Vyukov's bounded queue). A thread that dies in the middle blocks the queue; it dies with its
// process.
static int post(struct dsm_trap *t, uint64_t page, uint32_t offset, int write) {
	uint64_t at = atomic_load(&t->header->tail);
	for (;;) {
		struct fault *f = &t->faults[at % DSM_FAULT_SLOTS];
		uint64_t turn = atomic_load(&f->turn), lap = at / DSM_FAULT_SLOTS;
		if (turn < 2 * lap)
			return 0; // the daemon has not taken what is there since the last lap
		if (turn > 2 * lap) {
			at = atomic_load(&t->header->tail);
			continue;
		}
		if (!atomic_compare_exchange_weak(&t->header->tail, &at, at + 1))
			continue;
		atomic_store(&f->page, page);
		atomic_store(&f->thread, (uint32_t)syscall(SYS_gettid));
		atomic_store(&f->access, offset << 1 | (uint32_t)write);
		atomic_store(&f->turn, 2 * lap + 1);
		wake_daemon(t);
		return 1;
	}
}

// serve gets the page at addr and returns 1 when the access is to be tried again, 0 if it is
// nobody's.
static int serve(struct dsm_trap *t, uintptr_t addr, int write, void *context) {
	uint64_t page = (addr - t->base) / t->page_bytes;
	uint32_t offset = (uint32_t)((addr - t->base) % t->page_bytes);
	_Atomic uint32_t *word = &t->words[page];
	unsigned need = write ? WRITABLE : READ_ONLY;
	int posted = 0;
	uint32_t posted_in = 0;
	long slice = first_slice;
	for (;;) {
		take(t);
		enum outcome o = apply(t, page, need);
		uint32_t w = atomic_load(word);
		give(t);
		if (o != WAIT)
			return o == RETRY;
		if (granted(w) >= need && !atomic_load(&t->abandoned))
			continue;
		// Each generation is told once; a new one means that the daemon has dealt with the last and
		// it did not suffice.
		if (!posted || posted_in != generation(w)) {
			posted = post(t, page, offset, write);
			posted_in = generation(w);
		}
		if (!(w & DSM_WAITERS) && !atomic_compare_exchange_strong(word, &w, w | DSM_WAITERS))
			continue;
		sleep_in(word, w | DSM_WAITERS, instruction(context), slice);
		if (generation(atomic_load(word)) == generation(w)) {
			if (interrupted(context))
				return 1;
			if (slice < last_slice)
				slice *= 2;
		}
	}
}

static void handle(int sig, siginfo_t *info, void *context) {
	// Another code means that it was sent, or that si_addr is not what protection forbids.
	if (info->si_code == SEGV_ACCERR) {
		uintptr_t addr = (uintptr_t)info->si_addr;
		for (struct slot *s = slots; s < slots + TRAPS; s++) {
			if (addr - atomic_load(&s->base) >= atomic_load(&s->bytes))
				continue;
			int saved = errno, ours = 0;
			atomic_fetch_add(&s->inside, 1);
			struct dsm_trap *t = atomic_load(&s->trap);
			if (t != NULL && addr - t->base < t->pages * t->page_bytes)
				ours = serve(t, addr, is_write(context), context);
			atomic_fetch_sub(&s->inside, 1);
			errno = saved;
			if (ours)
				return;
		}
	}
	// Everything else is Go's, on the same stack, with the same mask: it can't tell that it was not
	// called by the kernel.
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(sig, info, context);
	else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
		before.sa_handler(sig);
	else
		sigaction(sig, &before, NULL); // the access starts over and is dealt with as if this handler had never been
}

static int install(void) {
	struct sigaction ours;
	if (installed)
		return 0;
	memset(&ours, 0, sizeof ours);
	ours.sa_sigaction = handle;
	ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
	sigfillset(&ours.sa_mask); // as Go's own: nothing nests on its small signal stack
	if (sigaction(SIGSEGV, NULL, &before) != 0 || sigaction(SIGSEGV, &ours, NULL) != 0)
		return -errno;
	installed = 1;
	return 0;
}

// ---- the agent ----

// obey carries out the commands from *done on, at most BATCH, and returns whether the last one was
// to leave.
static int obey(struct dsm_trap *t, uint64_t *done, uint64_t posted) {
	for (uint64_t limit = posted - *done > BATCH ? *done + BATCH : posted; *done < limit;) {
		uint64_t page = atomic_load(&t->commands[*done % DSM_COMMAND_SLOTS]);
		if (page == UINT64_MAX) {
			atomic_store(&t->abandoned, 1);
			take_all(t);
			(*done)++;
			return 1;
		}
		struct range *r = page < t->pages ? range_of(t, page) : NULL;
		uint64_t n = 0;
		if (r != NULL) {
			// Neighbours that follow each other go in one call.
			unsigned level = granted(atomic_load(&t->words[page]));
			while (*done + n < limit && page + n < r->end && atomic_load(&t->commands[(*done + n) % DSM_COMMAND_SLOTS]) == page + n) {
				uint32_t w = atomic_load(&t->words[page + n]);
				if (granted(w) != level || applied(w) <= level)
					break;
				n++;
			}
			if (n > 0)
				lower(t, r, page, page + n, level);
		}
		*done += n > 0 ? n : 1; // 0: it has lost that access by itself
	}
	return 0;
}

static void *agent(void *arg) {
	struct dsm_trap *t = arg;
	struct header *h = t->header;
	uint64_t done = 0;
	for (;;) {
		uint64_t posted = atomic_load(&h->posted);
		if (posted == done) {
			atomic_store(&h->sleeps, 1);
			if (atomic_load(&h->posted) == done && !atomic_load(&t->stop))
				sleep_on((void *)&h->posted, (uint32_t)done, 0);
			atomic_store(&h->sleeps, 0);
			if (atomic_load(&t->stop))
				return NULL;
			continue;
		}
		take(t);
		int leave = !atomic_load(&t->retired) && obey(t, &done, posted);
		if (atomic_load(&t->retired))
			done = posted; // nothing is mapped, or soon nothing will be, and the daemon waits for the socket's end
		give(t);
		if (!atomic_load(&t->retired)) {
			atomic_store(&h->done, done);
			wake_daemon(t);
		}
		if (leave)
			shutdown(t->sock, SHUT_RDWR);
		if (atomic_load(&t->stop))
			return NULL;
	}
}

// ---- called from Go ----

int dsm_trap_open(struct dsm_trap **out, uintptr_t base, uint64_t pages, uint64_t page_bytes, void *area, int events, int sock, uint64_t max_splits) {
	struct dsm_trap *t = calloc(1, sizeof *t);
	if (t == NULL)
		return -ENOMEM;
	t->base = base;
	t->pages = pages;
	t->page_bytes = page_bytes;
	t->header = area;
	t->faults = (void *)((char *)area + DSM_FAULTS_OFFSET);
	t->commands = (void *)((char *)area + DSM_COMMANDS_OFFSET);
	t->words = (void *)((char *)area + DSM_WORDS_OFFSET);
	t->events = events;
	t->sock = sock;
	t->max_splits = max_splits;

	pthread_mutex_lock(&slots_lock);
	struct slot *s = slots;
	while (s < slots + TRAPS && atomic_load(&s->trap) != NULL)
		s++;
	int err = s == slots + TRAPS ? -EMFILE : install();
	if (err == 0) {
		// The agent inherits the mask: a signal on a thread that Go does not know would run Go's
		// handler there.
		sigset_t all, mask;
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &mask);
		err = -pthread_create(&t->agent, NULL, agent, t);
		pthread_sigmask(SIG_SETMASK, &mask, NULL);
	}
	if (err == 0) {
		t->slot = (int)(s - slots);
		atomic_store(&s->trap, t);
		atomic_store(&s->base, base);
		atomic_store(&s->bytes, pages * page_bytes);
	}
	pthread_mutex_unlock(&slots_lock);
	if (err != 0) {
		free(t);
		return err;
	}
	*out = t;
	return 0;
}

// hold takes the lock with all signals blocked, so that a thread of Go's does not run a handler
// while it has it.
static void hold(struct dsm_trap *t, sigset_t *mask) {
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, mask);
	take(t);
}

static void release(struct dsm_trap *t, sigset_t *mask) {
	give(t);
	pthread_sigmask(SIG_SETMASK, mask, NULL);
}

int dsm_trap_register(struct dsm_trap *t, uint64_t first, uint64_t end, int read_only) {
	sigset_t mask;
	int err = 0;
	hold(t, &mask);
	size_t i = t->count;
	while (i > 0 && t->ranges[i - 1].first >= end)
		i--;
	if (first >= end || end > t->pages || (i > 0 && t->ranges[i - 1].end > first))
		err = -EINVAL;
	if (err == 0 && t->count == t->room) {
		size_t room = t->room ? 2 * t->room : 16;
		struct range *more = realloc(t->ranges, room * sizeof *more);
		if (more == NULL)
			err = -ENOMEM;
		else
			t->ranges = more, t->room = room;
	}
	if (err == 0) {
		memmove(&t->ranges[i + 1], &t->ranges[i], (t->count - i) * sizeof *t->ranges);
		t->ranges[i] = (struct range){first, end, read_only};
		t->count++;
	}
	release(t, &mask);
	return err;
}

int dsm_trap_unregister(struct dsm_trap *t, uint64_t first, uint64_t end) {
	sigset_t mask;
	int err = 0;
	hold(t, &mask);
	struct range *r = range_of(t, first);
	if (r == NULL || r->first != first || r->end != end) {
		err = -EINVAL;
	} else {
		lower(t, r, first, end, NONE);
		// The words keep what the daemon grants, should the pages come back; what is applied is
		// nothing.
		size_t i = (size_t)(r - t->ranges);
		memmove(r, r + 1, (t->count - i - 1) * sizeof *r);
		t->count--;
	}
	release(t, &mask);
	return err;
}

// apply_more is apply for all the access to a page that is allowed, if the program has less.
static enum outcome apply_more(struct dsm_trap *t, uint64_t page) {
	struct range *r = range_of(t, page);
	if (r == NULL)
		return FOREIGN;
	uint32_t w = atomic_load(&t->words[page]);
	return allowed(r, w) > applied(w) ? apply(t, page, allowed(r, w)) : RETRY;
}

void dsm_trap_map(struct dsm_trap *t, uint64_t first, uint64_t end) {
	for (uint64_t p = first; p < end && p < t->pages; p++) {
		uint32_t w = atomic_load(&t->words[p]);
		if (granted(w) <= applied(w))
			continue;
		// Held for each run anew: the agent must not wait for all of them.
		sigset_t mask;
		hold(t, &mask);
		enum outcome o = apply_more(t, p);
		release(t, &mask);
		if (o == FOREIGN)
			return;
	}
}

void dsm_trap_retire(struct dsm_trap *t) {
	sigset_t mask;
	hold(t, &mask);
	atomic_store(&t->retired, 1);
	release(t, &mask);
}

void dsm_trap_close(struct dsm_trap *t) {
	struct slot *s = &slots[t->slot];
	dsm_trap_retire(t);
	atomic_store(&t->stop, 1);
	// The agent may be between its look at stop and its sleep.
	struct timespec pause = {0, 1000 * 1000};
	syscall(SYS_futex, &t->header->posted, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	while (pthread_tryjoin_np(t->agent, NULL) != 0) {
		nanosleep(&pause, NULL);
		syscall(SYS_futex, &t->header->posted, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	}
	pthread_mutex_lock(&slots_lock);
	atomic_store(&s->bytes, 0);
	atomic_store(&s->trap, NULL);
	while (atomic_load(&s->inside) != 0)
		nanosleep(&pause, NULL); // they wake by themselves, and find that the trap is retired
	pthread_mutex_unlock(&slots_lock);
	free(t->ranges);
	free(t);
}

uint64_t dsm_trap_evictions(struct dsm_trap *t) {
	sigset_t mask;
	hold(t, &mask);
	uint64_t n = t->evictions;
	release(t, &mask);
	return n;
}
