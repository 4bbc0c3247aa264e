/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/report.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/glake.pb-c.h"
#include "proto/limits.h"
#include "proto/message.h"
#include "proto/mover.pb-c.h"
#include "proto/wire.h"

/* Tag and length in front of a repeated message, and the envelope of a page. */
#define FRAME_BYTES 8u
#define TENSORS_PER_PAGE 1024u
/* A packed uint64 is at most 10 bytes. */
#define BLOCKS_PER_PAGE (GLAKE_PAGE_BYTES / 10)

void report_init(struct report *report, int socket)
{
	report->socket = socket;
	pthread_mutex_init(&report->lock, NULL);
}

void report_deinit(struct report *report)
{
	pthread_mutex_destroy(&report->lock);
}

static void send_report(struct report *report, const Glake__Mover__Report *message)
{
	static uint8_t packet[GLAKE_MAX_PACKET_BYTES]; /* under the lock */
	size_t n_bytes = glake__mover__report__get_packed_size(message);
	if (n_bytes > sizeof(packet)) {
		say("a report of %zu bytes is too long", n_bytes);
		return;
	}
	pthread_mutex_lock(&report->lock);
	glake__mover__report__pack(message, packet);
	int error = wire_send(report->socket, packet, n_bytes, NULL, 0, 0);
	pthread_mutex_unlock(&report->lock);
	if (error < 0) {
		say("sending a report: %s", strerror(-error));
	}
}

/* A message about @job_ (message.h). */
#define REPORT(job_, CASE, Type, member, ...) \
	MESSAGE(Glake__Mover__Report, glake__mover__report__descriptor, .job = (job_), \
	        .body_case = GLAKE__MOVER__REPORT__BODY_##CASE, \
	        .member = MESSAGE(Glake__Mover__##Type, glake__mover__##member##__descriptor, \
	                          __VA_ARGS__))

void report_ready(struct report *report)
{
	send_report(report, REPORT(0, READY, Ready, ready));
}

struct page {
	Glake__Mover__PlanTensor tensors[TENSORS_PER_PAGE];
	Glake__Mover__PlanTensor *pointers[TENSORS_PER_PAGE];
	size_t n_tensors;
	size_t n_bytes;
};

static void send_page(struct report *report, uint64_t job, struct page *page)
{
	if (page->n_tensors == 0) {
		return;
	}
	send_report(report, REPORT(job, PLAN_TENSORS, PlanTensors, plan_tensors,
	                           .n_tensors = page->n_tensors, .tensors = page->pointers));
	page->n_tensors = 0;
	page->n_bytes = 0;
}

static void send_tensors(struct report *report, uint64_t job, const struct plan *plan,
                         struct page *page)
{
	for (size_t i = 0; i < plan->catalog->n_tensors; i++) {
		const struct tensor *tensor = &plan->catalog->tensors[i];
		Glake__Mover__PlanTensor entry = GLAKE__MOVER__PLAN_TENSOR__INIT;
		entry.name = (char *)tensor->name;
		entry.dtype = tensor->dtype;
		entry.n_shape = tensor->n_dims;
		entry.shape = (uint64_t *)tensor->shape;
		entry.offset = plan->offsets[i];
		entry.bytes = tensor->bytes;
		size_t n_bytes = glake__mover__plan_tensor__get_packed_size(&entry) + FRAME_BYTES;
		if (page->n_tensors == TENSORS_PER_PAGE ||
		    page->n_bytes + n_bytes > GLAKE_PAGE_BYTES) {
			send_page(report, job, page);
		}
		page->pointers[page->n_tensors] = &page->tensors[page->n_tensors];
		page->tensors[page->n_tensors++] = entry;
		page->n_bytes += n_bytes;
	}
	send_page(report, job, page);
}

static void send_blocks(struct report *report, uint64_t job, const struct plan *plan)
{
	uint64_t contents[BLOCKS_PER_PAGE];
	for (size_t first = 0; first < plan->n_blocks; first += BLOCKS_PER_PAGE) {
		size_t n = plan->n_blocks - first;
		n = n < BLOCKS_PER_PAGE ? n : BLOCKS_PER_PAGE;
		for (size_t i = 0; i < n; i++) {
			contents[i] = plan->blocks[first + i].content_bytes;
		}
		send_report(report, REPORT(job, PLAN_BLOCKS, PlanBlocks, plan_blocks,
		                           .n_content_bytes = n, .content_bytes = contents));
	}
}

int report_plan(struct report *report, uint64_t job, const struct plan *plan,
                const char *reload_reason, struct fault *fault)
{
	cleanup_free struct page *page = calloc(1, sizeof(*page));
	if (!page) {
		return fault_no_memory(fault);
	}
	send_tensors(report, job, plan, page);
	send_blocks(report, job, plan);
	send_report(report,
	            REPORT(job, PLAN_END, PlanEnd, plan_end, .n_tensors = plan->catalog->n_tensors,
	                   .n_blocks = plan->n_blocks, .content_bytes = plan->content_bytes,
	                   .reload_reason = (char *)reload_reason));
	return 0;
}

void report_block_loaded(struct report *report, uint64_t job, uint64_t block,
                         const struct digest *digest)
{
	uint8_t bytes[DIGEST_BYTES];
	digest_to_bytes(digest, bytes);
	send_report(report,
	            REPORT(job, BLOCK_LOADED, BlockLoaded, block_loaded, .block = block,
	                   .digest = (ProtobufCBinaryData){.len = sizeof(bytes), .data = bytes}));
}

void report_load_done(struct report *report, uint64_t job, uint64_t read_bytes,
                      uint64_t direct_bytes, uint64_t ns)
{
	send_report(report, REPORT(job, LOAD_DONE, LoadDone, load_done, .read_bytes = read_bytes,
	                           .direct_bytes = direct_bytes, .ns = ns));
}

void report_digested(struct report *report, uint64_t job, const struct digest *digest, bool equal,
                     bool zero)
{
	uint8_t bytes[DIGEST_BYTES];
	digest_to_bytes(digest, bytes);
	send_report(report,
	            REPORT(job, DIGESTED, Digested, digested,
	                   .digest = (ProtobufCBinaryData){.len = sizeof(bytes), .data = bytes},
	                   .equal = equal, .zero = zero));
}

void report_compared(struct report *report, uint64_t job, bool equal)
{
	send_report(report, REPORT(job, COMPARED, Compared, compared, .equal = equal));
}

void report_prints(struct report *report, uint64_t job, const struct layout *layout, uint64_t ns)
{
	send_report(report,
	            REPORT(job, PRINTS, Prints, prints, .prints = (uint64_t *)layout->prints,
	                   .n_prints = layout->n, .varied_bytes = layout->varied_bytes, .ns = ns));
}

void report_forgotten(struct report *report, uint64_t job)
{
	send_report(report, REPORT(job, FORGOTTEN, Forgotten, forgotten));
}

/* wire.Status, which glaked passes on to the client. */
static uint32_t status_of(enum fault_kind kind)
{
	switch (kind) {
	case FAULT_BAD_REQUEST:
		return GLAKE__WIRE__STATUS__BAD_REQUEST;
	case FAULT_BAD_FILE:
		return GLAKE__WIRE__STATUS__BAD_FILE;
	case FAULT_FILE_CHANGED:
		return GLAKE__WIRE__STATUS__FILE_CHANGED;
	case FAULT_READ:
		return GLAKE__WIRE__STATUS__READ_ERROR;
	case FAULT_NO_DEVICE_MEMORY:
		return GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY;
	case FAULT_NO_HOST_MEMORY:
		return GLAKE__WIRE__STATUS__NO_HOST_MEMORY;
	case FAULT_NO_FDS:
		return GLAKE__WIRE__STATUS__NO_FDS;
	case FAULT_BUSY:
	case FAULT_CANCELLED:
		return GLAKE__WIRE__STATUS__BUSY;
	case FAULT_MISCOPIED:
	case FAULT_DEVICE_LOST:
		return GLAKE__WIRE__STATUS__MOVER_FAILED;
	case FAULT_NONE:
	case FAULT_INTERNAL:
		break;
	}
	return GLAKE__WIRE__STATUS__INTERNAL;
}

void report_failed(struct report *report, uint64_t job, const struct fault *fault)
{
	if (fault->kind == FAULT_DEVICE_LOST || fault->kind == FAULT_INTERNAL) {
		say("job %llu: %s", (unsigned long long)job, fault->text);
	}
	send_report(report, REPORT(job, FAILED, Failed, failed, .status = status_of(fault->kind),
	                           .error = (char *)fault->text));
	if (fault->kind == FAULT_DEVICE_LOST) {
		say("the device is lost to this process, which ends");
		_exit(EXIT_FAILURE);
	}
}
