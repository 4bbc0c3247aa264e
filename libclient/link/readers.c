/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/readers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libclient/link/call.h"
#include "libclient/link/session.h"
#include "proto/cleanup.h"
#include "proto/owned.h"

/* Other processes have the file too, so none may change it. */
static bool is_sealed(int fd)
{
	const int wanted = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);
	return seals >= 0 && (seals & wanted) == wanted;
}

static int take_tables(const struct glake__call *call, char **text_out, size_t *n_bytes_out)
{
	const uint64_t n_bytes = call->answer->readers->bytes;
	struct stat facts;
	if (call->fds.is_cut) {
		return glake__call_cut();
	}
	if (n_bytes == 0 && call->fds.n_fds == 0) {
		return 0;
	}
	if (call->fds.n_fds != 1 || n_bytes > GLAKE_MAX_READERS_BYTES ||
	    !is_sealed(call->fds.fds[0]) || fstat(call->fds.fds[0], &facts) < 0 ||
	    (uint64_t)facts.st_size != n_bytes) {
		return glake__fail(GLAKE_E_PROTOCOL,
		                   "the daemon's answer about tables of readers is invalid");
	}
	cleanup_free char *text = malloc(n_bytes + 1);
	if (!text) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	/* Every program has the same open file. */
	int r = owned_read_text(call->fds.fds[0], text, n_bytes);
	if (r < 0) {
		return glake__fail(r, "tables of readers: %s", strerrordesc_np(-r));
	}
	text[n_bytes] = '\0';
	*text_out = ptr_steal(text);
	*n_bytes_out = n_bytes;
	return 0;
}

int glake__readers_get(struct glake_session *session, char **text_out, size_t *n_bytes_out)
{
	struct glake__call call;
	*text_out = NULL;
	*n_bytes_out = 0;
	int r = glake__call(&session->link, &call, REQUEST(READERS_GET, ReadersGet, readers_get),
	                    GLAKE__WIRE__ANSWER__BODY_READERS, NULL, 0);
	if (r < 0) {
		/* An older one knows of none. */
		return r == GLAKE_E_BAD_REQUEST ? 0 : r;
	}
	r = take_tables(&call, text_out, n_bytes_out);
	glake__call_end(&session->link, &call);
	return r;
}
