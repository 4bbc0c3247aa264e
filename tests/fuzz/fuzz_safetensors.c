/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file, and perhaps an index behind a 0xff byte (which no JSON text has), through the header's
 * parser and the plan. What is accepted must make a valid plan; what is refused must say why.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/mover/catalog.h"
#include "daemon/mover/plan.h"
#include "daemon/mover/safetensors.h"
#include "daemon/mover/weight_index.h"

/* The check of a plan is quadratic. */
#define MAX_CHECKED 200

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check_fault(const struct fault *fault)
{
	size_t length = strnlen(fault->text, sizeof(fault->text));
	if (fault->kind == FAULT_NONE || length == 0 || length == sizeof(fault->text)) {
		abort();
	}
	for (size_t i = 0; i < length; i++) {
		if (fault->text[i] < 0x20 || fault->text[i] > 0x7e) {
			abort();
		}
	}
}

static int read_file(const uint8_t *bytes, size_t n_bytes, struct catalog *catalog,
                     struct fault *fault)
{
	/* The data need not be there to be described: the file may be as large as it says. */
	struct safetensors_file file = {.name = "f\n", .bytes = n_bytes};
	uint64_t header_bytes;
	int error = safetensors_header_bytes(&file, bytes, n_bytes < 8 ? n_bytes : 8, &header_bytes,
	                                     fault);
	return error ? error
	             : safetensors_parse(&file, (const char *)bytes + 8, (size_t)header_bytes,
	                                 catalog, fault);
}

static int plan_file(struct catalog *catalog, const uint8_t *index, size_t n_index_bytes,
                     struct fault *fault)
{
	static const char *const files[] = {"f\n"};
	struct plan plan;
	int error = catalog_finish(catalog, files, fault);
	if (!error && index) {
		error = weight_index_check("i", (const char *)index, n_index_bytes, catalog, files,
		                           1, fault);
	}
	if (!error) {
		error = plan_make(&plan, catalog, fault);
	}
	if (!error) {
		if (catalog->n_tensors <= MAX_CHECKED && !plan_is_valid(&plan)) {
			abort();
		}
		plan_deinit(&plan);
	}
	return error;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
	/* memchr() from behind the length, which may have any byte. */
	const uint8_t *split = n_bytes > 8 ? memchr(bytes + 8, 0xff, n_bytes - 8) : NULL;
	size_t n_file = split ? (size_t)(split - bytes) : n_bytes;
	struct catalog catalog;
	struct fault fault = {0};
	catalog_init(&catalog);
	int error = read_file(bytes, n_file, &catalog, &fault);
	if (!error) {
		error = plan_file(&catalog, split ? split + 1 : NULL,
		                  split ? n_bytes - n_file - 1 : 0, &fault);
	}
	if (error) {
		check_fault(&fault);
	}
	catalog_deinit(&catalog);
	return 0;
}
