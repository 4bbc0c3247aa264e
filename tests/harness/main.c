/* SPDX-License-Identifier: Apache-2.0 */
/* The main() of test programs that have none of their own. */
#include "tests/check_glake.h"

int main(void)
{
	return tests_run();
}
