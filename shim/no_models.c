/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim opens no models. The client library's session ends them, though, and with models.c comes
 * a JSON parser, which Debian does not build for use in shared libraries. So here is the end of what
 * never begins, found by the linker before the archive's.
 */
#include "libclient/model/model.h"

void glake__models_deinit(struct glake_session *session)
{
	(void)session;
}
