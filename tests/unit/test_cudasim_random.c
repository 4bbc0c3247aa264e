/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: random work on random streams, in an order that only events make, against a
 * model that does it at once. Beside it, other memory is mapped, changed and unmapped.
 */
#include "tests/cudasim/test_given.h"
#include "tests/harness/churn.h"

#define N_CELLS 24
#define N_STREAMS 5
#define N_STEPS 400
#define MAX_CAPTURED 4

struct add_params {
	CUdeviceptr to;
	CUdeviceptr a;
	CUdeviceptr b;
};

static void run_add(const struct cudasim_run *run, const void *params)
{
	const struct add_params *p = params;
	uint32_t a;
	uint32_t b;

	if (run->load(run, p->a, &a, sizeof(a)) && run->load(run, p->b, &b, sizeof(b))) {
		a += b;
		run->store(run, p->to, &a, sizeof(a));
	}
}

static const struct cudasim_kernel add_kernels[] = {{"add", run_add, 3, {8, 8, 8}}};
static const struct cudasim_image add_image = {
	.magic = CUDASIM_IMAGE_MAGIC,
	.n_kernels = 1,
	.kernels = add_kernels,
};

struct cell {
	uint32_t value;                    /* by the model */
	CUevent written;                   /* NULL: by nobody yet */
	CUevent read[N_STREAMS * N_STEPS]; /* since then */
	unsigned n_read;
};

static struct cell cells[N_CELLS];
static CUstream streams[N_STREAMS];
static CUdeviceptr base;
static CUfunction add;
static unsigned seed;

static CUdeviceptr at(unsigned cell)
{
	return base + 4 * cell;
}

static void wait_for(CUstream stream, CUevent event)
{
	if (event) {
		ck_ok(cu.StreamWaitEvent(stream, event, 0));
	}
}

static void wait_to_read(CUstream stream, unsigned cell)
{
	wait_for(stream, cells[cell].written);
}

static void wait_to_write(CUstream stream, unsigned cell)
{
	wait_for(stream, cells[cell].written);
	for (unsigned i = 0; i < cells[cell].n_read; i++) {
		wait_for(stream, cells[cell].read[i]);
	}
}

/* One piece of work: what it reads and writes. */
struct step {
	unsigned kind;
	unsigned to;
	unsigned a;
	unsigned b;
	uint32_t value;
};

static struct step random_step(void)
{
	return (struct step){
		.kind = churn_pick(&seed, 6),
		.to = churn_pick(&seed, N_CELLS),
		.a = churn_pick(&seed, N_CELLS),
		.b = churn_pick(&seed, N_CELLS),
		.value = churn_pick(&seed, 1u << 30),
	};
}

static bool is_reading(const struct step *step)
{
	return step->kind >= 3;
}

static void submit(const struct step *step, CUstream stream)
{
	struct add_params sum = {at(step->to), at(step->a), at(step->b)};
	CUdeviceptr scratch;

	switch (step->kind) {
	case 0:
		ck_ok(cu.MemsetD32Async(at(step->to), step->value, 1, stream));
		break;
	case 1:
		ck_ok(launch_put(at(step->to), step->value, stream));
		break;
	case 2:
		ck_ok(cu.StreamWriteValue32_v2(stream, at(step->to), step->value, 0));
		break;
	case 3:
		ck_ok(cu.MemcpyDtoDAsync_v2(at(step->to), at(step->a), 4, stream));
		break;
	case 4:
		ck_ok(cu.MemAllocAsync(&scratch, 4096 << churn_pick(&seed, 12), stream));
		ck_ok(cu.MemcpyDtoDAsync_v2(scratch + 64, at(step->a), 4, stream));
		ck_ok(cu.MemcpyDtoDAsync_v2(at(step->to), scratch + 64, 4, stream));
		ck_ok(cu.MemFreeAsync(scratch, stream));
		break;
	default:
		ck_ok(launch_packed(add, &sum, sizeof(sum), stream));
	}
}

static void apply(const struct step *step)
{
	struct cell *to = &cells[step->to];

	to->value = step->kind < 3    ? step->value
	            : step->kind == 5 ? cells[step->a].value + cells[step->b].value
	                              : cells[step->a].value;
}

static void order(const struct step *step, CUstream stream)
{
	if (is_reading(step)) {
		wait_to_read(stream, step->a);
		wait_to_read(stream, step->b);
	}
	wait_to_write(stream, step->to);
}

/* The event is behind all of these steps. */
static void note(const struct step *steps, unsigned n, CUevent event)
{
	for (unsigned i = 0; i < n; i++) {
		if (is_reading(&steps[i])) {
			cells[steps[i].a].read[cells[steps[i].a].n_read++] = event;
			cells[steps[i].b].read[cells[steps[i].b].n_read++] = event;
		}
	}
	for (unsigned i = 0; i < n; i++) {
		cells[steps[i].to].written = event;
		cells[steps[i].to].n_read = 0;
	}
}

static void do_steps(unsigned n, bool is_captured)
{
	struct step steps[MAX_CAPTURED];
	CUstream stream = streams[churn_pick(&seed, N_STREAMS)];
	CUgraphExec exec = NULL;
	CUgraph graph;
	CUevent event;

	for (unsigned i = 0; i < n; i++) {
		steps[i] = random_step();
		order(&steps[i], stream);
	}
	if (is_captured) {
		ck_ok(cu.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	}
	for (unsigned i = 0; i < n; i++) {
		submit(&steps[i], stream);
		apply(&steps[i]);
	}
	if (is_captured) {
		ck_ok(cu.StreamEndCapture(stream, &graph));
		ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
		ck_ok(cu.GraphDestroy(graph));
		ck_ok(cu.GraphLaunch(exec, stream));
		ck_ok(cu.GraphExecDestroy(exec));
	}
	ck_ok(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
	ck_ok(cu.EventRecord(event, stream));
	note(steps, n, event);
}

/* Nothing of this waits for the work, nor is in its way. */
static void disturb(void)
{
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE);

	ck_ok(set_access(addr, GRANULE, READ_ONLY));
	ck_ok(cu.MemUnmap(addr, GRANULE));
	ck_ok(cu.MemAddressFree(addr, GRANULE));
	ck_ok(cu.MemRelease(handle));
}

static void begin(void)
{
	CUmodule module;

	driver_begin("1x256MiB");
	ck_ok(cu.ModuleLoadData(&module, &add_image));
	ck_ok(cu.ModuleGetFunction(&add, module, "add"));
	given_module();
	base = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE);
	for (unsigned i = 0; i < N_STREAMS - 1; i++) {
		streams[i] = stream_new(i % 2 ? CU_STREAM_NON_BLOCKING : 0);
	}
	streams[N_STREAMS - 1] = CU_STREAM_PER_THREAD;
}

START_TEST_WITH(random_work_is_as_in_the_model, .n = 12)
{
	begin();
	seed = (unsigned)_i * 7919 + 1;
	for (unsigned i = 0; i < N_STEPS; i++) {
		unsigned kind = churn_pick(&seed, 8);
		if (kind == 0) {
			disturb();
		} else if (kind < 3) {
			do_steps(1 + churn_pick(&seed, MAX_CAPTURED), true);
		} else {
			do_steps(1, false);
		}
	}
	ck_ok(cu.CtxSynchronize());
	for (unsigned i = 0; i < N_CELLS; i++) {
		ck_assert_msg(read_u32(at(i)) == cells[i].value, "seed %d, cell %u", _i, i);
	}
}
END_TEST
