/* SPDX-License-Identifier: Apache-2.0 */
/* cuRAND: the generators, each with its own tables and states on the device. */
#include <curand.h>

#include "tests/shim/toolkit.h"

#define N (1u << 22)

static void generate(const char *what, curandRngType_t type)
{
	curandGenerator_t generator;
	float *out = device_bytes(sizeof(*out) * N);
	must_do(curandCreateGenerator(&generator, type));
	if (type != CURAND_RNG_QUASI_SOBOL32) {
		must_do(curandSetPseudoRandomGeneratorSeed(generator, 1234));
	}
	must_do(curandGenerateUniform(generator, out, N));
	must_do(curandGenerateNormal(generator, out, N / 2, 0, 1));
	must_do(cudaDeviceSynchronize());
	must_do(curandDestroyGenerator(generator));
	print_device(what, out, sizeof(*out) * N);
}

int main(void)
{
	generate("xorwow", CURAND_RNG_PSEUDO_XORWOW);
	generate("philox", CURAND_RNG_PSEUDO_PHILOX4_32_10);
	generate("mrg", CURAND_RNG_PSEUDO_MRG32K3A);
	generate("mtgp", CURAND_RNG_PSEUDO_MTGP32);
	generate("mt", CURAND_RNG_PSEUDO_MT19937);
	generate("sobol", CURAND_RNG_QUASI_SOBOL32);
	note_counts();
	return 0;
}
