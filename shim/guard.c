/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h has the theory, threat by threat. Launches read the marks without the lock: a page's count and guard_awake are set
 * before memory is sealed, behind a closed gate, and cleared only after it is private. So a launch that sees no mark has
 * no sealed memory to write to. All else is under the lock, which is never held across a call.
 */
#include "shim/guard.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "glake_shim.h"
#include "proto/cleanup.h"
#include "shim/capture.h"
#include "shim/doubts.h"
#include "shim/shim.h"
#include "shim/writes.h"

atomic_bool guard_awake;
static atomic_bool has_launched;

/* ---- marks ------------------------------------------------------------------------------------ */

enum mark_state {
	MARKED,  /* it may be sealed, or is */
	LEAVING, /* it is becoming private */
	TAKEN,   /* it is private, and counted by no page */
};

struct mark {
	uint64_t id; /* the allocation's */
	CUdeviceptr ptr;
	uint64_t n_bytes;
	enum mark_state state;
	char why[GUARD_WHY_BYTES]; /* why it is private, or becoming so */
	struct mark *next;         /* link: marks */
};

/* How many marks each page of the window has. */
struct pages {
	uint64_t n;
	_Atomic uint16_t counts[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* innermost */
static struct mark *marks;                               /* owned */
static _Atomic(struct pages *) pages;                    /* made once */
static atomic_bool is_refused;
static char refused_why[GUARD_WHY_BYTES];

static uint64_t page_at(uint64_t ptr)
{
	return (ptr - atomic_load_explicit(&glake__pages.base, memory_order_relaxed)) >>
	       GLAKE__PAGE_SHIFT;
}

/* Is anything in its page marked? */
static inline bool is_in_marked_page(const struct pages *map, uint64_t word)
{
	uint64_t page = page_at(word);
	return map && page < map->n &&
	       atomic_load_explicit(&map->counts[page], memory_order_relaxed) > 0;
}

static const struct pages *map_of_marks(void)
{
	return atomic_load_explicit(&pages, memory_order_acquire);
}

static struct pages *make_pages_locked(void)
{
	const uint64_t n = glake__pages.n_bytes >> GLAKE__PAGE_SHIFT;
	if (!pages && n > 0) {
		size_t n_bytes = sizeof(struct pages) + n * sizeof(uint16_t);
		struct pages *made = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
		                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (made != MAP_FAILED) {
			made->n = n;
			pages = made;
		}
	}
	return pages;
}

/* Count the mark in all pages that it touches. */
static void count_locked(const struct mark *mark, int by)
{
	const uint64_t end = page_at(mark->ptr + mark->n_bytes - 1) + 1;
	struct pages *map = pages;
	for (uint64_t page = page_at(mark->ptr); page < end && page < map->n; page++) {
		atomic_fetch_add(&map->counts[page], (uint16_t)by);
	}
}

static void wake_or_rest_locked(void)
{
	const struct mark *mark = marks;
	while (mark && mark->state == TAKEN) {
		mark = mark->next;
	}
	if (mark && !guard_awake) {
		has_launched = false;
	}
	guard_awake = mark != NULL;
}

static struct mark *find_locked(uint64_t id)
{
	struct mark *mark = marks;
	while (mark && mark->id != id) {
		mark = mark->next;
	}
	return mark;
}

/* Only words that point into the window are judged, so only memory there can be marked. */
static bool is_in_window(const struct heap_facts *facts)
{
	const uint64_t end = facts->address + facts->n_bytes;
	return facts->address >= glake__pages.base && facts->n_bytes > 0 &&
	       end - glake__pages.base <= glake__pages.n_bytes;
}

bool guard_mark(const struct heap_facts *facts)
{
	struct mark *spare = calloc(1, sizeof(*spare));
	pthread_mutex_lock(&lock);
	struct mark *mark = find_locked(facts->id);
	bool is_made = make_pages_locked() && (mark || spare) && !is_refused && is_in_window(facts);
	if (is_made && !mark) {
		mark = spare;
		spare = NULL;
		*mark = (struct mark){.id = facts->id, .state = TAKEN, .next = marks};
		marks = mark;
	}
	if (is_made && mark->state == TAKEN) {
		mark->ptr = facts->address;
		mark->n_bytes = facts->n_bytes;
		mark->state = MARKED;
		count_locked(mark, 1);
		wake_or_rest_locked();
	}
	pthread_mutex_unlock(&lock);
	free(spare);
	return is_made;
}

void guard_unmark(uint64_t id)
{
	pthread_mutex_lock(&lock);
	struct mark **link = &marks;
	while (*link && (*link)->id != id) {
		link = &(*link)->next;
	}
	struct mark *mark = *link;
	if (mark) {
		*link = mark->next;
		if (mark->state != TAKEN) {
			count_locked(mark, -1);
		}
		wake_or_rest_locked();
	}
	pthread_mutex_unlock(&lock);
	free(mark);
}

bool guard_may_seal(uint64_t id)
{
	pthread_mutex_lock(&lock);
	const struct mark *mark = find_locked(id);
	bool may = mark && mark->state == MARKED && !is_refused;
	pthread_mutex_unlock(&lock);
	return may;
}

bool guard_was_taken(uint64_t id, char why_out[GUARD_WHY_BYTES])
{
	pthread_mutex_lock(&lock);
	const struct mark *mark = find_locked(id);
	bool was_taken = mark && mark->state != MARKED;
	if (was_taken) {
		memcpy(why_out, mark->why, GUARD_WHY_BYTES);
	}
	pthread_mutex_unlock(&lock);
	return was_taken;
}

bool guard_has_launched(void)
{
	return has_launched;
}

void guard_note_launch(void)
{
	if (!atomic_load_explicit(&has_launched, memory_order_relaxed)) {
		has_launched = true;
	}
}

bool guard_is_refused(char why_out[GUARD_WHY_BYTES])
{
	if (is_refused) {
		pthread_mutex_lock(&lock);
		memcpy(why_out, refused_why, GUARD_WHY_BYTES);
		pthread_mutex_unlock(&lock);
	}
	return is_refused;
}

/* ---- making private: outside the gate --------------------------------------------------------- */

/* False: the allocation is not marked. */
static bool begin_leaving(uint64_t id, const char *why, struct mark *mark_out)
{
	pthread_mutex_lock(&lock);
	struct mark *mark = find_locked(id);
	bool is_there = mark && mark->state != TAKEN;
	if (is_there && mark->state == MARKED) {
		mark->state = LEAVING;
		snprintf(mark->why, sizeof(mark->why), "%s", why);
	}
	if (is_there) {
		*mark_out = *mark;
	}
	pthread_mutex_unlock(&lock);
	return is_there;
}

static void end_leaving(uint64_t id)
{
	pthread_mutex_lock(&lock);
	struct mark *mark = find_locked(id);
	if (mark && mark->state == LEAVING) {
		count_locked(mark, -1);
		mark->state = TAKEN;
		wake_or_rest_locked();
	}
	pthread_mutex_unlock(&lock);
}

/* Nobody may write to memory that is freed meanwhile, so that counts as success. */
int guard_make_private(uint64_t id, const char *why)
{
	struct mark mark;
	struct heap_facts facts;
	if (!begin_leaving(id, why, &mark)) {
		return 0;
	}
	int r = 0;
	if (heap_find(mark.ptr, &facts) && facts.id == id) {
		r = writes_make_private(mark.ptr, mark.n_bytes);
		/* -EINVAL: it was freed meanwhile. */
		r = r == -EINVAL && !(heap_find(mark.ptr, &facts) && facts.id == id) ? 0 : r;
	}
	if (r == 0) {
		end_leaving(id);
	}
	return r;
}

/* The id of an allocation that is marked and not private yet; 0: there is none. */
static uint64_t any_mark(void)
{
	pthread_mutex_lock(&lock);
	const struct mark *mark = marks;
	while (mark && mark->state == TAKEN) {
		mark = mark->next;
	}
	uint64_t id = mark ? mark->id : 0;
	pthread_mutex_unlock(&lock);
	return id;
}

int guard_refuse(const char *why)
{
	pthread_mutex_lock(&lock);
	if (!is_refused) {
		snprintf(refused_why, sizeof(refused_why), "%s", why);
		is_refused = true;
	}
	pthread_mutex_unlock(&lock);
	uint64_t id;
	int r = 0;
	while (r == 0 && (id = any_mark()) != 0) {
		r = guard_make_private(id, why);
	}
	return r;
}

/* ---- judging: inside the gate ----------------------------------------------------------------- */

/* The id of the marked allocation that @word points into; 0: none. */
static uint64_t find_mark(uint64_t word)
{
	struct heap_facts facts;
	if (!heap_find(word, &facts)) {
		return 0;
	}
	pthread_mutex_lock(&lock);
	const struct mark *mark = find_locked(facts.id);
	uint64_t id = mark && mark->state != TAKEN ? mark->id : 0;
	pthread_mutex_unlock(&lock);
	return id;
}

bool guard_is_marked(CUdeviceptr ptr)
{
	return ptr ? is_in_marked_page(map_of_marks(), ptr) && find_mark(ptr) != 0
	           : any_mark() != 0;
}

/* A launch's parameters, in either form. */
struct arguments {
	const struct kernel *kernel;
	void *const *params;
	const char *buffer;
	size_t n_buffer;
};

/* False: the launch does not tell the value. */
static bool read_scalar(const struct arguments *arguments, const struct reader_condition *condition,
                        uint64_t *value_out)
{
	const struct kernel_known *known = arguments->kernel->known;
	const char *from = NULL;
	*value_out = 0;
	if (arguments->buffer) {
		from = condition->at + condition->n_bytes <= arguments->n_buffer
		               ? arguments->buffer + condition->at
		               : NULL;
	}
	for (size_t i = 0; !from && arguments->params && i < known->n_params; i++) {
		const struct kernel_param *param = &known->params[i];
		if (condition->at >= param->offset &&
		    condition->at + condition->n_bytes <= param->offset + param->n_bytes &&
		    arguments->params[i]) {
			from = (const char *)arguments->params[i] + condition->at - param->offset;
		}
	}
	if (from) {
		memcpy(value_out, from, condition->n_bytes);
	}
	return from != NULL;
}

static bool holds(const struct arguments *arguments, const struct reader_word *word)
{
	uint64_t value;
	unsigned i = 0;
	while (i < word->n_conditions && read_scalar(arguments, &word->conditions[i], &value) &&
	       value == word->conditions[i].value) {
		i++;
	}
	return i == word->n_conditions;
}

/* @number: the word's, among all words of the kernel. */
static bool is_reader(const struct arguments *arguments, size_t number)
{
	const struct kernel_known *known = arguments->kernel->known;
	const struct reader_function *function = known ? known->function : NULL;
	bool reads = function && function->names_written;
	bool writes = false;
	for (size_t i = 0; function && !writes && i < function->n_words; i++) {
		const struct reader_word *word = &function->words[i];
		if (word->at == 8 * number) {
			writes = word->is_written;
			reads = reads || holds(arguments, word);
		}
	}
	return reads && !writes && !doubts_has(arguments->kernel, number);
}

struct judging {
	const struct pages *map; /* judge words in marked pages; NULL: all words in the window */
	guard_word_fn *fn;       /* called with each word that is not a reader */
	void *user;
};

static bool is_looked_at(const struct judging *judging, uint64_t word)
{
	return judging->map ? is_in_marked_page(judging->map, word)
	                    : word - glake__pages.base < glake__pages.n_bytes;
}

static bool judge_words(const struct arguments *arguments, const struct judging *judging,
                        const char *words, size_t first, size_t n)
{
	bool goes_on = true;
	for (size_t i = 0; goes_on && i < n; i++) {
		uint64_t word;
		memcpy(&word, words + 8 * i, 8);
		if (__builtin_expect(is_looked_at(judging, word), 0) &&
		    !is_reader(arguments, first + i)) {
			goes_on = judging->fn(judging->user, word, arguments->kernel,
			                      8 * (first + i));
		}
	}
	return goes_on;
}

static bool judge_all_words(const struct arguments *arguments, const struct judging *judging)
{
	const struct kernel *kernel = arguments->kernel;
	bool goes_on = true;
	if (arguments->buffer) {
		size_t n = arguments->n_buffer / 8;
		n = n < kernel->n_words ? n : kernel->n_words;
		goes_on = judge_words(arguments, judging, arguments->buffer, 0, n);
	}
	for (uint32_t i = 0; goes_on && arguments->params && i < kernel->n_spans; i++) {
		const struct kernel_span *span = &kernel->spans[i];
		const char *param = arguments->params[span->param];
		goes_on = !param ||
		          judge_words(arguments, judging, param + span->at, span->first, span->n);
	}
	return goes_on;
}

/* Why the kernel may write elsewhere than through its words; NULL: it does not. */
static const char *why_opaque(const struct kernel *kernel)
{
	const struct kernel_known *known = kernel->known;
	if (known && known->function->is_opaque) {
		return "may write anywhere, a table says";
	}
	return !known && shim_dedup() <= SHIM_DEDUP_AUTO ? "is in no table" : NULL;
}

static void say_opaque(const struct kernel *kernel, const char *what, char why_out[GUARD_WHY_BYTES])
{
	char code[IMAGE_TEXT_BYTES];
	image_to_text(&kernel->image, code);
	snprintf(why_out, GUARD_WHY_BYTES, "%.80s of %s %s", kernel->name, code, what);
}

/* False: the function may write elsewhere, *why_out says why. */
static bool judge(CUfunction function, void *const *params, void *const *extra,
                  const struct judging *judging, char why_out[GUARD_WHY_BYTES])
{
	struct kernel *asked = NULL;
	struct kernel *kernel = kernels_find(function);
	if (!kernel) {
		/* Code is being unloaded, or there is no room: an answer from now is right for this launch. */
		kernel = asked = kernels_ask(function);
	}
	struct arguments arguments = {.kernel = kernel, .params = params};
	bool is_told = kernel &&
	               (!extra || kernels_buffer_of(extra, &arguments.buffer, &arguments.n_buffer));
	const char *what = is_told ? why_opaque(kernel) : NULL;
	if (!is_told) {
		snprintf(why_out, GUARD_WHY_BYTES,
		         "the driver does not tell the parameters of a launch");
	} else if (what) {
		say_opaque(kernel, what, why_out);
	} else {
		judge_all_words(&arguments, judging);
	}
	kernels_forget(asked);
	return is_told && !what;
}

const char *guard_each_word(CUfunction function, void *const *params, void *const *extra,
                            guard_word_fn *fn, void *user, char why_out[GUARD_WHY_BYTES])
{
	const struct judging judging = {.fn = fn, .user = user};
	return judge(function, params, extra, &judging, why_out) ? NULL : why_out;
}

/* ---- launches --------------------------------------------------------------------------------- */

/* A marked allocation that a launch is about to write to. */
struct finding {
	uint64_t id; /* 0: none */
	char why[GUARD_WHY_BYTES];
};

static bool find_in(void *user, CUdeviceptr ptr, const struct kernel *kernel, size_t at)
{
	struct finding *finding = user;
	struct heap_facts facts = {.address = ptr};
	finding->id = find_mark(ptr);
	if (finding->id) {
		heap_find(ptr, &facts);
		snprintf(finding->why, sizeof(finding->why),
		         "%.100s was launched with it, and is not known to read it only (word %zu, "
		         "to byte %llu)",
		         kernel->name, at, ptr - facts.address);
	}
	return finding->id == 0;
}

/* Make allocation @id private, or (0) all, for good. The thread leaves the gate for that. */
static CUresult give_way(struct gate_thread **thread, uint64_t id, const char *why)
{
	cleanup_cancel int cancel = cancel_disable();
	gate_leave(*thread);
	int r = id ? guard_make_private(id, why) : guard_refuse(why);
	*thread = gate_enter();
	if (!*thread) {
		return CUDA_ERROR_DEINITIALIZED;
	}
	shim_count_add(SHIM_COUNT_unlaunched, r < 0);
	return r < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Is @stream captured for sure? A captured launch writes nothing yet: it is judged when its graph is made. */
static bool is_captured(CUstream stream, bool is_per_thread)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	__typeof__(cuStreamIsCapturing) *ask = is_per_thread ? real(cuStreamIsCapturing_ptsz)
	                                                     : real(cuStreamIsCapturing);
	return capture_may_have(stream, is_per_thread ? GLAKE_PER_THREAD : 0) && ask &&
	       ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult guard_launch(struct gate_thread **thread, CUstream stream, bool is_per_thread,
                      CUfunction function, void *const *params, void *const *extra)
{
	CUresult result = CUDA_SUCCESS;
	guard_note_launch();
	while (result == CUDA_SUCCESS && guard_awake && !shim_is_forked()) {
		struct finding finding = {.id = 0};
		const struct judging judging = {map_of_marks(), find_in, &finding};
		bool is_told = judge(function, params, extra, &judging, finding.why);
		if ((is_told && finding.id == 0) || is_captured(stream, is_per_thread)) {
			break;
		}
		result = give_way(thread, is_told ? finding.id : 0, finding.why);
	}
	return result;
}

CUresult guard_opaque(struct gate_thread **thread, const char *why)
{
	guard_note_launch();
	/* Under GLAKE_DEDUP=learn memory is writable, except while a launch runs alone. */
	return shim_is_forked() || shim_dedup() == SHIM_DEDUP_LEARN ? CUDA_SUCCESS
	                                                            : give_way(thread, 0, why);
}

CUresult guard_noted(struct gate_thread **thread, CUdeviceptr ptr, const char *kernel)
{
	char why[GUARD_WHY_BYTES];
	uint64_t id = ptr ? find_mark(ptr) : 0;
	if (ptr && id == 0) {
		return CUDA_SUCCESS;
	}
	if (ptr) {
		snprintf(why, sizeof(why),
		         "%.120s of a graph has it, and is not known to read it only", kernel);
	} else {
		snprintf(why, sizeof(why), "a graph: %.160s", kernel);
	}
	return give_way(thread, id, why);
}
