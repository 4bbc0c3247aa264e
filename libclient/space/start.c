/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/fill.h"
#include "libclient/space/gate.h"
#include "libclient/space/space.h"

int glake__space_start(const char *libcuda, const struct glake__gate *gate)
{
	struct cudrv drv;
	int r = cudrv_open(&drv, libcuda, NULL, 0);
	if (r == 0) {
		glake__space_begin();
		glake__lock();
		if (!glake__space.gate.close) {
			glake__space.gate = *gate;
		}
		glake__unlock();
		glake__space_open(&drv);
		glake__lock();
		glake__fill_start();
		glake__unlock();
	}
	return r;
}
