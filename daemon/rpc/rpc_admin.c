/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that change things: pin and evict, in the own realm (admins: in all); quotas, for admins. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/books/books.h"
#include "daemon/holders/kept_step.h"
#include "daemon/holders/sleep_limit.h"
#include "daemon/rpc/rpc_handlers.h"

/* A text of digits only is an id, as in listings, and never a name. A key is that of its latest model. */
static bool is_meant(const struct model *model, const char *text)
{
	char id[24];
	if (text[strspn(text, "0123456789")] != '\0') {
		return strcmp(model->name, text) == 0 && model->state != MODEL_REPLACED;
	}
	snprintf(id, sizeof(id), "%" PRIu64, model->id);
	return strcmp(id, text) == 0;
}

/*
 * The one model that the text names, among those that the session may act on, or NULL after a
 * refusal. Several models may have one name: in other realms, on other devices, and of a file that
 * has changed since.
 */
static struct model *find_named(struct session *session, uint64_t id, const char *text)
{
	char ids[400];
	size_t n_bytes = 0;
	uint64_t n_found = 0;
	struct model *found = NULL;
	struct model *model;
	list_for_each (model, &rpc_of(session)->store->model_list, link) {
		if (!rpc_may_act(session, model->realm) || !is_meant(model, text)) {
			continue;
		}
		found = model;
		/* The text may be cut; the listing has all. */
		n_bytes += n_bytes < sizeof(ids)
		                   ? (size_t)snprintf(ids + n_bytes, sizeof(ids) - n_bytes,
		                                      "%s%" PRIu64 " (realm %s, device %u)",
		                                      n_found ? ", " : "", model->id,
		                                      model->realm->name, model->device->index)
		                   : 0;
		n_found++;
	}
	if (n_found == 0) {
		rpc_refuse(session, id, STATUS_NOT_FOUND, "there is no model '%s'", text);
	} else if (n_found > 1) {
		rpc_refuse(session, id, STATUS_BAD_REQUEST,
		           "%" PRIu64 " models have that name; give one of these ids: %s", n_found,
		           ids);
	}
	return n_found == 1 ? found : NULL;
}

void rpc_pin(struct session *session, const request_t *request, struct fdlist *fds)
{
	struct model *model = find_named(session, request->id, request->pin->name);
	if (!model) {
		return;
	}
	struct store *store = rpc_of(session)->store;
	if (request->pin->unpin) {
		store_unpin_model(store, model);
		rpc_answer_ok(session, request->id);
		return;
	}
	if (!model_is_complete(model)) {
		rpc_refuse(session, request->id, STATUS_BUSY, "'%s' is %s", model->name,
		           model->state == MODEL_DEMOTED ? "in host memory: open it first"
		                                         : "being loaded");
		return;
	}
	if (store_has_unparked(model)) {
		rpc_refuse_unparked(session, request->id, "model", model->id);
		return;
	}
	int r = store_pin_model(store, model, holder_payer(session->holder));
	if (r != 0) {
		rpc_refuse_model(session, request->id, model, r);
		return;
	}
	rpc_answer_ok(session, request->id);
}

static void answer_evict(struct session *session, uint64_t id, uint64_t n_models,
                         uint64_t freed_bytes)
{
	Glake__Wire__EvictAnswer body = GLAKE__WIRE__EVICT_ANSWER__INIT;
	body.n_models = n_models;
	body.freed_bytes = freed_bytes;
	rpc_answer(session, id, ANSWER_OF(EVICT, evict, &body), NULL, 0);
}

void rpc_evict(struct session *session, const request_t *request, struct fdlist *fds)
{
	struct store *store = rpc_of(session)->store;
	const char *name = request->evict->name;
	if (!name[0]) {
		uint64_t n_models;
		const struct realm *realm = session->holder->is_admin ? NULL
		                                                      : session->holder->realm;
		uint64_t freed_bytes = store_evict_all(store, realm, &n_models);
		freed_bytes += kept_steps_evict(session->holder->all->kept, realm);
		answer_evict(session, request->id, n_models, freed_bytes);
		return;
	}
	struct model *model = find_named(session, request->id, name);
	if (!model) {
		return;
	}
	if (model->n_holders > 0 || model->is_pinned) {
		rpc_refuse(session, request->id, STATUS_BUSY, "'%s' is %s", model->name,
		           model->is_pinned ? "pinned" : "in use");
		return;
	}
	answer_evict(session, request->id, 1, store_evict_model(store, model));
}

/*
 * Whether the quota may be set. False after a refusal: one that sleeps could not wake, and nobody has said that this is meant.
 */
static bool may_set_quota(struct session *session, const request_t *request,
                          const struct tenant *tenant, const struct location *at)
{
	const Glake__Wire__QuotaSet *body = request->quota_set;
	char error[SLEEP_ERROR_BYTES];
	uint64_t before = tenant->at[at->slot].quota_bytes;
	bool is_less = body->quota_bytes > 0 && (before == 0 || body->quota_bytes < before);
	if (!is_less || body->force ||
	    sleep_limit_lets_wake(&rpc_of(session)->holders, tenant, at, body->quota_bytes,
	                          error)) {
		return true;
	}
	rpc_refuse(session, request->id, STATUS_BUSY, "%s", error);
	return false;
}

void rpc_quota_set(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__QuotaSet *body = request->quota_set;
	struct books *books = rpc_of(session)->books;
	if (!session->holder->is_admin) {
		rpc_refuse(session, request->id, STATUS_NO_PERMISSION,
		           "quotas are set by root or the admin group");
		return;
	}
	struct tenant *tenant = tenant_find(rpc_of(session)->tenants, body->tenant);
	if (!tenant || tenant == tenant_table_cache(rpc_of(session)->tenants)) {
		rpc_refuse(session, request->id, STATUS_NOT_FOUND, "there is no tenant '%.64s'",
		           body->tenant);
		return;
	}
	if (body->set_sessions) {
		tenant_set_max_sessions(tenant, body->max_sessions);
		books_set_limit(books, tenant, BOOKS_SESSIONS, NULL, body->max_sessions);
		log_info("tenant %s: at most %u sessions (0 = any), set by uid %u", tenant->name,
		         body->max_sessions, (unsigned)session->holder->peer.uid);
	} else if (body->set_manifests) {
		tenant_set_manifest_quota(tenant, body->manifest_bytes);
		books_set_limit(books, tenant, BOOKS_MANIFESTS, NULL, body->manifest_bytes);
		log_info("tenant %s: at most %llu bytes of manifests (0 = any), set by uid %u",
		         tenant->name, (unsigned long long)body->manifest_bytes,
		         (unsigned)session->holder->peer.uid);
	} else {
		char name[LOCATION_NAME_BYTES];
		const struct location *at = rpc_location(session, request->id, (int)body->at,
		                                         body->device);
		if (!at || !may_set_quota(session, request, tenant, at)) {
			return;
		}
		tenant_set_quota(tenant, at->slot, body->quota_bytes);
		books_set_limit(books, tenant, BOOKS_BYTES, at, body->quota_bytes);
		log_info("tenant %s: at most %llu bytes on %s (0 = any), set by uid %u",
		         tenant->name, (unsigned long long)body->quota_bytes,
		         location_name(at, name), (unsigned)session->holder->peer.uid);
		sleep_limit_tell(&rpc_of(session)->holders, tenant);
	}
	rpc_answer_ok(session, request->id);
}
