/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/will.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/status.h"
#include "daemon/holders/holder.h"

enum status will_check(const struct held *held, const char **why_out)
{
	if (held->kind == HELD_SLEPT) {
		*why_out = "is asleep";
		return STATUS_BUSY;
	}
	if (held->admit || held->bed || held->slept) {
		*why_out = held->admit ? "is being published" : "is about to sleep";
		return STATUS_BUSY;
	}
	if (held->ticket) {
		*why_out = "is named for other processes";
		return STATUS_BAD_REQUEST;
	}
	if (held->chunk.fd < 0) {
		*why_out = "has no fd: the fd budget was spent, or glaked was restarted";
		return STATUS_NO_FDS;
	}
	return STATUS_OK;
}

struct will *will_new(size_t n_chunks, const struct will_words *words)
{
	struct will *will = calloc(1, sizeof(*will) + n_chunks * sizeof(will->chunks[0]));
	if (!will) {
		return NULL;
	}
	will->record = malloc(words->n_record ? words->n_record : 1);
	if (!will->record) {
		free(will);
		return NULL;
	}
	list_init(&will->link);
	memcpy(will->key, words->key, words->n_key);
	will->n_key = words->n_key;
	if (words->n_record > 0) {
		memcpy(will->record, words->record, words->n_record);
	}
	will->n_record = words->n_record;
	will->may_be_read = words->may_be_read;
	will->n_chunks = n_chunks;
	return will;
}

void will_free(struct will *will)
{
	charge_refund(&will->cost);
	free(will->record);
	free(will);
}

uint64_t will_bytes(const struct will *will)
{
	return sizeof(*will) + will->n_record +
	       will->n_chunks * (sizeof(struct chunk) + sizeof(will->chunks[0]));
}

void will_move(struct will *will, struct holder *to, struct held *const *chunks)
{
	for (size_t i = 0; i < will->n_chunks; i++) {
		will->chunks[i] = chunks[i];
		chunks[i]->will = will;
	}
	list_insert(&to->wills, &will->link);
}

int will_set(struct holder *holder, struct held *const *chunks, size_t n_chunks,
             const struct will_words *words)
{
	struct will *will = will_new(n_chunks, words);
	if (!will) {
		return -ENOMEM;
	}
	will->cost = tenant_charge_manifest(holder_payer(holder));
	int r = charge_grow_manifest(&will->cost, will_bytes(will));
	if (r != 0) {
		will_free(will);
		return r;
	}
	for (size_t i = 0; i < n_chunks; i++) {
		will_void_of(chunks[i]);
	}
	will->number = ++holder->all->last_will;
	will_move(will, holder, chunks);
	return 0;
}

void will_void(struct will *will)
{
	for (size_t i = 0; i < will->n_chunks; i++) {
		will->chunks[i]->will = NULL;
	}
	list_remove(&will->link);
	will_free(will);
}

void will_void_of(const struct held *held)
{
	if (held->will) {
		will_void(held->will);
	}
}

bool will_has_key(const struct will *will, const struct will_wanted *wanted)
{
	return will->n_key == wanted->n_key && will->n_chunks == wanted->n_chunks &&
	       memcmp(will->key, wanted->key, wanted->n_key) == 0 &&
	       will->n_record >= wanted->n_name &&
	       (wanted->n_name == 0 || memcmp(will->record, wanted->name, wanted->n_name) == 0);
}

bool will_stands(const struct will *will)
{
	const char *why;
	for (size_t i = 0; i < will->n_chunks; i++) {
		if (will_check(will->chunks[i], &why) != STATUS_OK) {
			return false;
		}
	}
	return true;
}

struct holder *will_reader(const struct will *will)
{
	const struct held *first = will->chunks[0]->readers;
	bool are_all = first != NULL;
	for (size_t i = 0; are_all && i < will->n_chunks; i++) {
		are_all = holder_reading_of(will->chunks[i], first->owner) != NULL;
	}
	return are_all ? first->owner : NULL;
}

bool will_is_for(const struct will *will, const struct will_wanted *wanted)
{
	const struct chunk *chunk = &will->chunks[0]->chunk;
	return will_has_key(will, wanted) && chunk->at == wanted->at &&
	       chunk->bytes == wanted->chunk_bytes;
}
