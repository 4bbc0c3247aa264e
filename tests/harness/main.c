/* SPDX-License-Identifier: Apache-2.0 */
/* Of a test program without a main() of its own. */
#include "tests/check_glake.h"

int main(void)
{
	return tests_run();
}
