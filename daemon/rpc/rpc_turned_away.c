/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/rpc_turned_away.h"

#include "proto/bounds.h"
#include "proto/glake.pb-c.h"

static size_t refuse(uint64_t request, enum status status, const char *text,
                     uint8_t answer_out[TURNED_AWAY_BYTES])
{
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	answer.id = request;
	answer.status = (Glake__Wire__Status)status;
	answer.error = (char *)text;
	size_t n_bytes = glake__wire__answer__get_packed_size(&answer);
	return n_bytes <= TURNED_AWAY_BYTES ? glake__wire__answer__pack(&answer, answer_out) : 0;
}

size_t turned_away_answer(const uint8_t *bytes, size_t n_bytes, enum status status,
                          const char *text, uint8_t answer_out[TURNED_AWAY_BYTES])
{
	Glake__Wire__Request *request = bounds_check_request(bytes, n_bytes)
	                                        ? NULL
	                                        : glake__wire__request__unpack(NULL, n_bytes,
	                                                                       bytes);
	if (!request) {
		return 0;
	}
	size_t n_answer = 0;
	if (request->id != 0 && request->body_case == GLAKE__WIRE__REQUEST__BODY_HELLO &&
	    request->hello->key.len == 0) {
		n_answer = refuse(request->id, status, text, answer_out);
	}
	glake__wire__request__free_unpacked(request, NULL);
	return n_answer;
}
