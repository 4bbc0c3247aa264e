/* SPDX-License-Identifier: Apache-2.0 */
/* A process's name, its pod, and how a long name is shown: all by text alone. */
#include <stdlib.h>
#include <string.h>

#include "ctl/text.h"
#include "libclient/admin/pod.h"
#include "libclient/link/process.h"
#include "tests/check_glake.h"

/* ---- what an interpreter runs ------------------------------------------------------------------ */

static const struct {
	const char *program;
	const char *line; /* arguments, a bar between them */
	const char *script;
} lines[] = {
	{"python3", "python3|serve.py|--key=x", "serve.py"},
	{"python3.12", "/usr/bin/python3.12|/opt/app/serve.py", "serve.py"},
	{"python3", "python3|-m|vllm|serve", "-m vllm"},
	{"python3", "python3|-um|vllm.entrypoints", "-m vllm.entrypoints"},
	{"python3", "python3|-mvllm", "-m vllm"},
	{"python3", "python3|-X|dev|-W|ignore|-u|a.py", "a.py"},
	{"python3", "python3|-Xdev|-Wignore|a.py", "a.py"},
	{"python3", "python3|--check-hash-based-pycs|always|a.py", "a.py"},
	{"python3", "python3|-c|import secret", "-c"},
	{"python3",
         "python3|-c|from multiprocessing.spawn import spawn_main|--multiprocessing-fork",
         "multiprocessing"},
	{"python3", "python3|-", ""},
	{"python3", "python3", ""},
	{"python3", "python3|-m", "-m "},
	{"python3", "python3|-X", ""},
	{"python3.13t", "python3.13t|a.py", "a.py"},
	{"pypy3", "pypy3|a.py", "a.py"},
	/* A console script is what it is called, and a title is a title. */
	{"python3", "/usr/bin/python3|/usr/local/bin/vllm|serve|model", "vllm"},
	{"python3", "VLLM::EngineCore||||", "VLLM::EngineCore"},
	{"python3", "worker --key=x", "worker"},
	{"bash", "-bash|run.sh", "run.sh"},
	{"bash", "bash|-c|secret", ""},
	{"node", "node|/srv/app.js|x", "app.js"},
	{"julia", "julia|--project|a.jl", ""},
	{"trainer", "trainer|a.py", ""},
	{"pythonic", "pythonic|a.py", ""},
	{"python3", "", ""},
};

START_TEST_WITH(the_script_is_found, .n = (int)(sizeof(lines) / sizeof(lines[0])))
{
	char bytes[256];
	size_t n_bytes = strlen(lines[_i].line);
	strcpy(bytes, lines[_i].line);
	for (size_t i = 0; i < n_bytes; i++) {
		bytes[i] = bytes[i] == '|' ? '\0' : bytes[i];
	}
	struct glake__process process;
	glake__process_parse(lines[_i].program, bytes, n_bytes, &process);
	ck_assert_str_eq(process.script, lines[_i].script);
}
END_TEST

START_TEST(arguments_are_cut)
{
	static char bytes[8192];
	struct glake__process process;
	memset(bytes, 'x', sizeof(bytes) - 1);
	memcpy(bytes, "python3", 8);
	glake__process_parse("python3", bytes, sizeof(bytes) - 1, &process);
	ck_assert_uint_eq(strlen(process.script), GLAKE_MAX_LABEL_BYTES - 1);
	ck_assert_uint_eq(strlen(process.arguments), GLAKE_MAX_NAME_BYTES - 1);
	glake__process_parse("a", "a\0b c\0\0\0", 7, &process);
	ck_assert_str_eq(process.arguments, "a b c");
	/* Empty arguments are arguments. */
	glake__process_parse("a", "a\0\0b", 4, &process);
	ck_assert_str_eq(process.arguments, "a  b");
	glake__process_describe(&process);
	ck_assert_ptr_nonnull(strstr(process.arguments, "test_identity"));
	ck_assert_str_eq(process.script, "");
}
END_TEST

/* ---- pods -------------------------------------------------------------------------------------- */

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define UID "0b5c2d3e-1f20-4a5b-8c6d-7e8f90a1b2c3"
#define UNDER "0b5c2d3e_1f20_4a5b_8c6d_7e8f90a1b2c3"
#define STATIC "0b5c2d3e1f204a5b8c6d7e8f90a1b2c3"

static const struct {
	const char *cgroup;
	const char *uid;
	const char *container;
} cgroups[] = {
	{"/kubepods/burstable/pod" UID "/" ID, UID, ID},
	{"/kubepods/besteffort/pod" UID "/crio-" ID, UID, ID},
	{"/kubepods/pod" UID "/" ID "/init/sub", UID, ID},
	{"/kubepods/pod" UID, UID, ""},
	{"/kubepods/pod" STATIC "/" ID, STATIC, ID},
	{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UNDER
         ".slice/cri-containerd-" ID ".scope",
         UID, ID},
	{"/kubepods.slice/kubepods-pod" UNDER ".slice/crio-" ID ".scope/container", UID, ID},
	{"/kubepods.slice/kubepods-pod" STATIC ".slice/docker-" ID ".scope", STATIC, ID},
	{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" UNDER ".slice", UID,
         ""},
	{"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
         "kubelet-kubepods-burstable-pod" UNDER ".slice/cri-containerd-" ID ".scope",
         UID, ID},
	{"/system.slice/containerd.service/kubepods-burstable-pod" UNDER
         ".slice:cri-containerd:" ID,
         UID, ID},
	/* glaked in a cgroup namespace of its own. */
	{"/../../kubepods-burstable-pod" UNDER ".slice/cri-containerd-" ID ".scope", UID, ID},
	/* The outer one counts, and what a user makes does not. */
	{"/kubepods/pod" UID "/" ID "/kubepods/podffffffff-ffff-ffff-ffff-ffffffffffff/x", UID, ID},
	{"/user.slice/user-1000.slice/user@1000.service/kubepods/pod" UID "/" ID, "", ""},
	{"/system.slice/docker-" ID ".scope", "", ""},
	{"/pod" UID, "", ""},
	{"/kubepods/podless", "", ""},
	{"/kubepods/pod" UID "x", "", ""},
	{"/kubepods/pod0b5c2d3e-1f204a5b-8c6d-7e8f-90a1b2c3", "", ""},
	{"/", "", ""},
	{"", "", ""},
};

START_TEST_WITH(the_pod_is_found, .n = (int)(sizeof(cgroups) / sizeof(cgroups[0])))
{
	struct glake__pod pod;
	glake__pod_of_cgroup(cgroups[_i].cgroup, &pod);
	ck_assert_str_eq(pod.uid, cgroups[_i].uid);
	ck_assert_str_eq(pod.container, cgroups[_i].container);
}
END_TEST

/* ---- long names -------------------------------------------------------------------------------- */

static const struct {
	const char *text;
	size_t columns;
	const char *shown;
} names[] = {
	{"abcdefghij", 10, "abcdefghij"},
	{"abcdefghijk", 10, "abcd...ijk"},
	{"abcdefghijk", 9, "abc...ijk"},
	{"\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc", 5, "\xc3\xa4...\xc3\xbc"},
	{"abcdef", 5, "a...f"},
	{"", 5, ""},
};

START_TEST_WITH(a_long_name_ends_in_the_middle, .n = (int)(sizeof(names) / sizeof(names[0])))
{
	char text[64];
	strcpy(text, names[_i].text);
	text_shorten(text, names[_i].columns);
	ck_assert_str_eq(text, names[_i].shown);
}
END_TEST
