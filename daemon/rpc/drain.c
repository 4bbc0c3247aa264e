/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/drain.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"

int drain_open(struct drain *drain, const char *beside)
{
	if (asprintf(&drain->path, "%s.drained", beside) < 0) {
		drain->path = NULL;
		return -ENOMEM;
	}
	drained_read(drain->path, &drain->mark);
	if (drain->mark.is_on) {
		log_warning(
			"glaked is drained, as it was told before: no new program is let in until "
			"'glakectl drain --undo'%s%s",
			drain->mark.reason[0] ? ": " : "", drain->mark.reason);
	}
	return 0;
}

void drain_close(struct drain *drain)
{
	free(drain->path);
	drain->path = NULL;
}

bool drain_lets_in(const struct drain *drain, const struct holder *holder, bool only_looks)
{
	return !drain->mark.is_on || only_looks || holder_has_program(holder);
}

void drain_say_why(const struct drain *drain, char why_out[DRAIN_WHY_BYTES])
{
	const char *reason = drain->mark.reason;
	snprintf(why_out, DRAIN_WHY_BYTES,
	         "glaked is drained and takes no new programs%s%s; an operator ends that with "
	         "'glakectl drain --undo'",
	         *reason ? ": " : "", reason);
}
