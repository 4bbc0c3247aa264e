/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/state.h"

#define TO(state) (1u << GLAKE__LINK_##state)

static const unsigned moves[GLAKE__N_LINK_STATES] = {
	[GLAKE__LINK_GREETING] = TO(OPEN) | TO(GONE),
	[GLAKE__LINK_OPEN] = TO(DRAINING) | TO(LOST) | TO(GONE),
	[GLAKE__LINK_DRAINING] = TO(GONE),
	[GLAKE__LINK_LOST] = TO(RESUMING),
	[GLAKE__LINK_RESUMING] = TO(OPEN) | TO(LOST) | TO(GONE),
	[GLAKE__LINK_GONE] = 0,
};

bool glake__state_move(_Atomic(enum glake__link_state) *state, enum glake__link_state to)
{
	if (!(moves[*state] & 1u << to)) {
		return false;
	}
	*state = to;
	return true;
}
