# SPDX-License-Identifier: Apache-2.0
# glake: `make help` lists the targets.

B ?= build
V ?= 0
Q = $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-5s %s\n' $(1) $(2))

VERSION := 0.1.0
SOVERSION := 0
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
SYSCONFDIR ?= /etc
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
SECONDS ?= 3600

# ---- toolchain ----------------------------------------------------------------------------------
CC := gcc
SANITIZE ?=
# What does not depend on B's flags (the fatbin, the Python environment) is shared by all builds.
SHARED ?= $(B)

ifeq ($(CUDA_HOME),)
CUDA_HOME := $(or $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v nvcc)))),/usr/local/cuda)
endif
NVCC := $(CUDA_HOME)/bin/nvcc
CUDA_VERSION := $(and $(wildcard $(NVCC)),$(shell sed -n 's/^\#define CUDA_VERSION //p' \
	$(CUDA_HOME)/include/cuda.h 2>/dev/null))
without_cuda := help deps clean format format-check check-layers
ifneq ($(filter-out $(without_cuda),$(or $(MAKECMDGOALS),all)),)
ifneq ($(shell test 0$(CUDA_VERSION) -ge 12040 && echo yes),yes)
$(error CUDA toolkit 12.4 or newer needed, $(if $(CUDA_VERSION),but \
	$(CUDA_HOME) has version $(CUDA_VERSION),none in $(CUDA_HOME)): install cuda-toolkit of \
	https://developer.nvidia.com/cuda-downloads or set CUDA_HOME to the folder of one)
endif
endif

WARN := -Wall -Wextra -Wmissing-prototypes -Wstrict-prototypes -Wundef -Wshadow -Wvla \
	-Wpointer-arith -Wwrite-strings -Wold-style-definition -Wno-unused-parameter $(WERROR)
CPPFLAGS += -D_GNU_SOURCE -DGLAKE_VERSION='"$(VERSION)"' -I. -Ilibclient -I$(B)/gen \
	-isystem $(CUDA_HOME)/include
# With a sanitizer -O1, and lines as all debugging information: it builds in less than half the time.
CFLAGS ?= $(if $(SANITIZE),-O1 -g1,-O2 -g)
# As distributions build; a sanitizer sees more.
HARDENING = $(if $(SANITIZE),,-fstack-protector-strong -fstack-clash-protection -D_FORTIFY_SOURCE=2)
CFLAGS += $(HARDENING) -std=gnu11 $(WARN) -fPIC -fvisibility=hidden -fno-common -MMD -MP $(SANITIZE)
LDFLAGS += $(SANITIZE) -Wl,-z,relro,-z,now
# DT_RPATH, not DT_RUNPATH: only the former finds what a library beside us needs in turn, and so
# makes the tree of `make dist` self-sufficient.
rpath = -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN/$(1)'

CLIENT_LIBS = -lprotobuf-c -ljansson -lxxhash -ldl -lpthread
DAEMON_LIBS = -luv -lprotobuf-c -lconfig -lsystemd -lsubid -lxxhash -ldl -lpthread
MOVER_LIBS = -lprotobuf-c -ljansson -lxxhash -ldl -lpthread
CTL_LIBS = -lsystemd -ljansson -lsmartcols -Wl,--push-state,--as-needed -lmicrohttpd -Wl,--pop-state
TOP_LIBS = $(shell pkg-config --libs ncursesw)
TEST_LIBS = $(shell pkg-config --libs check) -lm

# ---- sources ------------------------------------------------------------------------------------
objects = $(patsubst %.c,$(B)/obj/%.o,$(wildcard $(1)))
programs = $(patsubst %.c,$(B)/%,$(wildcard $(1)))
PB := $(addprefix $(B)/gen/proto/,glake.pb-c.c mover.pb-c.c state.pb-c.c)
PB_OBJ := $(PB:$(B)/gen/%.c=$(B)/obj/%.o)
PROTO_OBJ := $(call objects,proto/*.c) $(PB_OBJ)
DAEMON_FOLDERS := $(addprefix daemon/,base keep net config memory store holders books rpc)
DAEMON_OBJ := $(filter-out %/main.o,$(call objects,daemon/*.c $(DAEMON_FOLDERS:%=%/*.c)))
MOVER_OBJ := $(filter-out %/main.o,$(call objects,daemon/mover/*.c)) \
	$(B)/obj/daemon/mover/digest_image.o
CLIENT_FOLDERS := $(addprefix libclient/,link space order stitch heap seal sleep elastic api model admin)
CLIENT_OBJ := $(call objects,libclient/*.c $(CLIENT_FOLDERS:%=%/*.c))
CTL_OBJ := $(filter-out %/main.o,$(call objects,libclient/ctl/*.c)) $(B)/obj/libclient/ctl/map_page.o
SHIM_OBJ := $(call objects,shim/*.c) $(B)/obj/shim/trampolines.o
REPLAY_OBJ := $(call objects,shim/run/replay/*.c)
NVML_OBJ := $(call objects,shim/nvml/*.c) $(B)/obj/shim/nvml/trampolines.o \
	$(addprefix $(B)/obj/shim/,library.o policy.o view.o)
HARNESS_OBJ := $(call objects,tests/harness/*.c) \
	$(filter-out %/bench_%,$(call objects,tests/bench/*.c))
CUDASIM_OBJ := $(call objects,tests/cudasim/*.c)
TESTS := $(call programs,tests/unit/test_*.c tests/integration/test_*.c)
PY_TESTS := $(wildcard tests/integration/test_*.py)
# Those that take longest, see the last lines of a run, begin first: else they go on alone in the end.
LONGEST := seal_kills vllm_kv vllm_ranks shim_auto shim_waits kvcached journal two_gpus shim_mistakes python shim_naps sleep_restart \
	client_model
longest_first = $(foreach name,$(LONGEST),$(filter %/test_$(name) %/test_$(name).py,$(1))) \
	$(filter-out $(foreach name,$(LONGEST),%/test_$(name) %/test_$(name).py),$(1))
GPU_TESTS := $(call programs,tests/gpu/test_*.c)
BENCHES := $(call programs,tests/bench/bench_*.c)
DEMO := $(call programs,tests/demo/*.c)
TRACES := $(addprefix $(B)/traces/,$(addsuffix .trace,generate lora moe pipeline twins unet))
SHIM_PROGRAMS := $(addprefix $(B)/tests/shim/,program linked driver_usage contexts driver_api \
	driver_api_per_thread green_contexts ipc numbers nvml patcher quota runtime seal seal_random outside full \
	fault graphmem graphmem_random waits sleep sleep_random sleep_whole elastic auto constructor.so second.so)
FUZZERS := $(call programs,tests/fuzz/fuzz_*.c)
# docs/security.md says what each stands for.
ATTACKS := $(addprefix $(B)/tests/unit/test_,bounds fdstore inflight mover_headers notify owned owner turn) \
	$(addprefix $(B)/tests/integration/test_,bad_files books false_mover file_identity flood hostile holder \
	keeper manifests realms secrets shim_bad_day shim_tables subuid unread users weights_wire wire_abuse) \
	tests/integration/test_metrics_abuse.py tests/integration/test_metrics_token.py
FORMATTED := $(wildcard $(addsuffix /*.[ch],proto daemon $(DAEMON_FOLDERS) daemon/keeper daemon/mover libclient \
	$(CLIENT_FOLDERS) libclient/ctl libclient/top \
	tests/harness tests/unit tests/integration tests/gpu tests/bench tests/fuzz tests/demo \
	tests/cudasim tests/nvmlsim tests/clocksim tests shim shim/nvml shim/run shim/run/replay \
	tests/shim))

.PHONY: help all daemon lib shim ctl cudasim tests deps test check run-tests run-c-tests demo play bench \
	check-asan check-tsan check-gpu check-deploy soak attack fuzz format format-check check-layers check-calls install dist deb wheel clean ci
.DEFAULT_GOAL := all

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile
all: daemon lib shim ctl ## daemon, client library, shim and glakectl (the default)
daemon: $(addprefix $(B)/bin/,glaked glake-keeper glake-mover) ## glaked, glake-keeper and glake-mover
lib: $(B)/lib/libglake-client.so $(B)/lib/libglake-client.a ## the client library
shim: $(addprefix $(B)/lib/glake/,libglake-shim.so libglake-nvml.so) $(B)/bin/glake ## the preload libraries and `glake run`
ctl: $(B)/bin/glakectl $(B)/lib/glake/glake-top ## the command line tool
cudasim: $(B)/cudasim/libcuda.so.1 ## a CUDA driver for machines without a GPU, for tests
tests: all cudasim $(TESTS) $(TRACES) $(SHIM_PROGRAMS) $(GPU_TESTS) $(BENCHES) $(DEMO) ## all test programs, not run
deps: ## install what is missing to build and test (apt-get)
	@tests/deps build

# ---- tests --------------------------------------------------------------------------------------
# A sub-make, because what `deps` installs has to be there when the rest is looked at.
# With + before it: else make does not see that it is one, and keeps the jobs of -j from it.
submake = $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))
# Those that start no thread, and those whose threads others have, too: files that are written, killed and read again.
OF_ONE_THREAD := $(addprefix test_,books old_books journal manifests superblock seal_kills sleep_restart config ctl safetensors \
	bad_files admit bounds client_tables copy_orders events extent holder plan pressure runs)
# Without -Werror: what the sanitizers insert makes gcc see ghosts.
sanitized = $(submake) SHARED=$(SHARED) B=$(B)/$(1) WERROR= SANITIZE="-fsanitize=$(2) \
	-fno-sanitize-recover=all -fno-omit-frame-pointer" SKIP="$(3)" run-c-tests

test: deps ## install what is missing, build, run all tests, or T=NAME: a program's or a test's (no GPU needed)
	@+$(submake) run-tests
check: test ## the same
run-tests: tests $(SHARED)/venv/.done
	@PYTHON=$(SHARED)/venv/bin/python tests/run $(B) $(call longest_first,$(PY_TESTS) $(TESTS))
C_TESTS = $(filter-out $(addprefix %/,$(SKIP)),$(TESTS))
run-c-tests: all cudasim $(C_TESTS) $(TRACES) $(SHIM_PROGRAMS)
	@tests/run $(B) $(call longest_first,$(C_TESTS))
check-asan: deps ## the C tests under AddressSanitizer and UBSan
	@+$(call sanitized,asan,address$(,)undefined)
check-tsan: deps ## the C tests under ThreadSanitizer, but those of one thread
	@+$(call sanitized,tsan,thread,$(OF_ONE_THREAD))
, := ,
check-gpu: tests ## tests and benchmarks of a GPU host (needs PyTorch)
	@GLAKE_LIBCUDA= TEST_JOBS=1 tests/run $(B) $(GPU_TESTS) $(B)/tests/unit/test_shim_drain
	@python3 tests/gpu/run.py --out $(B)/gpu
check-deploy: tests wheel ## the wheel; the packages on a bare Debian with a systemd of its own (needs root)
	@tests/deps deb && tests/deps boot
	@VERSION=$(VERSION) SOVERSION=$(SOVERSION) PYTHON=$(SHARED)/deploy/venv/bin/python \
		tests/run $(B) $(wildcard tests/deploy/test_*.py)
demo: deps ## model servers that share weights, programs that do without being asked, six that take turns, and two that lend each other memory
	@+$(submake) all cudasim $(DEMO)
	@tests/demo/run.sh $(B)
play: deps ## a shell beside a glaked on two simulated GPUs, with models and programs, to look around in
	@+$(submake) all cudasim $(DEMO)
	@tests/demo/play.sh $(B)
soak: all cudasim ## everything at random for SECONDS=3600, and what can die dies; GLAKE_LIBCUDA= for a GPU
	@GLAKE_BUILD=$(B) python3 tests/soak.py --seconds $(SECONDS)
bench: tests ## run all benchmarks
	@for bench in $(BENCHES); do GLAKE_BUILD=$(B) $$bench || exit 1; done
attack: deps ## the tests that attack, then fuzz: docs/security.md lists them
	@+$(submake) run-attacks
	@+$(submake) fuzz
.PHONY: run-attacks list-attacks
list-attacks:
	@echo $(ATTACKS) $(FUZZERS)
run-attacks: tests $(SHARED)/venv/.done
	@PYTHON=$(SHARED)/venv/bin/python tests/run $(B) $(ATTACKS)
fuzz: deps ## fuzz what parses foreign bytes, FUZZ_SECONDS=60 in all
	@tests/deps clang
	@+$(submake) SHARED=$(SHARED) B=$(B)/fuzz CC=clang WERROR= \
		SANITIZE="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all" fuzzers
	@tests/fuzz/run $(B)/fuzz $(FUZZ_SECONDS) $(FUZZERS:$(B)/%=$(B)/fuzz/%)
.PHONY: fuzzers
fuzzers: $(FUZZERS) cudasim
ci: ## what the project's CI does
	@bash .ci/run

CLANG_FORMAT = $(firstword $(shell command -v clang-format-14 clang-format))
format: ## clang-format 14 over all C sources
	@$(CLANG_FORMAT) -i $(FORMATTED)
format-check: ## fail where clang-format would change something
	@$(CLANG_FORMAT) --dry-run --Werror $(FORMATTED)
check-layers: ## the layering rules and the nouns, by grep; and check-calls, where there is a build
	@tests/check-nouns
	@tests/check-layers $(B)
check-calls: all ## no circle between folders, by include or by call
	@tests/check-calls $(B)

$(SHARED)/deploy/venv/.done:
	$(call say,VENV,$(@D))
	$(Q)python3 -m venv --clear $(@D)
	$(Q)$(@D)/bin/python -m pip install -q --disable-pip-version-check kubernetes-validate grafana-foundation-sdk
	@touch $@
$(SHARED)/venv/.done:
	$(call say,VENV,$(@D))
	$(Q)tests/deps venv $(@D)
	@touch $@

# ---- rules --------------------------------------------------------------------------------------
# The header is a target, too: else who includes it may be looked at before it is new, and stay old.
$(B)/gen/proto/%.pb-c.c $(B)/gen/proto/%.pb-c.h: proto/%.proto
	$(call say,PB,$<)
	@mkdir -p $(@D)
	$(Q)protoc-c --c_out=$(B)/gen $<

$(PB_OBJ): $(B)/obj/%.o: $(B)/gen/%.c
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(B)/obj/%.o: %.c | $(PB)
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# The kernels travel inside glake-mover as one fatbin.
$(SHARED)/gen/digest.fatbin: daemon/mover/digest.cu
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O3 -I. --fatbin -MMD -MP -MF $(@:.fatbin=.d) -MT $@ \
		-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 \
		-gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 -o $@ $<

$(B)/obj/daemon/mover/digest_image.o: $(SHARED)/gen/digest.fatbin
	$(call say,EMBED,$<)
	@mkdir -p $(@D)
	$(Q)printf '.section .rodata\n.global digest_image\n.balign 16\ndigest_image:\n.incbin "%s"\n.section .note.GNU-stack,"",@progbits\n' $< | \
		$(CC) -x assembler -c -o $@ -

# With a zero behind it.
$(B)/obj/libclient/ctl/map_page.o: libclient/ctl/map_page.html
	$(call say,EMBED,$<)
	@mkdir -p $(@D)
	$(Q)printf '.section .rodata\n.global map_page\nmap_page:\n.incbin "%s"\n.byte 0\n.section .note.GNU-stack,"",@progbits\n' $< | \
		$(CC) -x assembler -c -o $@ -

$(B)/lib/proto.a: $(PROTO_OBJ)
$(B)/lib/daemon.a: $(DAEMON_OBJ)
$(B)/lib/mover.a: $(MOVER_OBJ)
$(B)/lib/ctl.a: $(CTL_OBJ)
$(B)/lib/harness.a: $(HARNESS_OBJ)
$(B)/lib/shim.a: $(SHIM_OBJ) $(addprefix $(B)/obj/shim/run/,program.o learn_merge.o)
$(B)/lib/replay.a: $(REPLAY_OBJ)
$(B)/lib/client.a: $(CLIENT_OBJ) $(PROTO_OBJ)
$(B)/lib/libglake-client.a: $(CLIENT_OBJ) $(PROTO_OBJ)
	$(call say,AR,$@)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^
# Thin ones, for us alone: lists of objects, so that the linker names those that it takes.
$(B)/lib/%.a:
	$(call say,AR,$@)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcsT $@ $^

$(B)/bin/glaked: $(B)/obj/daemon/main.o $(B)/lib/daemon.a $(B)/lib/proto.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS) $(call rpath,../lib)

$(B)/bin/glake-mover: $(B)/obj/daemon/mover/main.o $(B)/lib/mover.a $(B)/lib/proto.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(MOVER_LIBS) $(call rpath,../lib)

# It is there longer than glaked, and small: libc is all that it loads.
$(B)/bin/glake-keeper: $(call objects,daemon/keeper/*.c) $(addprefix $(B)/obj/,proto/wire.o proto/fdlist.o)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lpthread

$(B)/lib/libglake-client.so: $(CLIENT_OBJ) $(PROTO_OBJ) libclient/glake.map
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libglake-client.so.$(SOVERSION) -Wl,-Bsymbolic \
		-Wl,--version-script,libclient/glake.map $(if $(SANITIZE),,-Wl,-z,defs) -o $@ \
		$(CLIENT_OBJ) $(PROTO_OBJ) $(CLIENT_LIBS) $(call rpath,.)
	$(Q)ln -sf libglake-client.so $@.$(SOVERSION)

# For the wheel: it brings what it needs but libc.
$(B)/wheel/libglake-client.so.$(SOVERSION): $(CLIENT_OBJ) $(PROTO_OBJ) $(B)/obj/shim/jansson.o \
		libclient/glake.map
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,-Bsymbolic -Wl,--exclude-libs,ALL \
		-Wl,--version-script,libclient/glake.map $(if $(SANITIZE),,-Wl,-z,defs) -Wl,--wrap=stdin \
		-o $@ $(filter %.o,$^) $(SHIM_LIBS)

$(B)/bin/glakectl: $(B)/obj/libclient/ctl/main.o $(B)/lib/ctl.a $(B)/lib/libglake-client.so
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(B)/lib/ctl.a -L$(B)/lib -lglake-client $(CTL_LIBS) \
		$(call rpath,../lib)

# `glakectl top` on a terminal: glakectl itself needs no library for screens.
$(B)/lib/glake/glake-top: $(call objects,libclient/top/*.c) $(B)/lib/ctl.a $(B)/lib/libglake-client.so
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(B)/lib/ctl.a -L$(B)/lib -lglake-client $(CTL_LIBS) $(TOP_LIBS) \
		$(call rpath,..)

$(B)/cudasim/libcuda.so.1: $(CUDASIM_OBJ)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -lxxhash -lpthread

# A faster clock, for the tests of what takes its time.
$(B)/clocksim.so: $(B)/obj/tests/clocksim/clocksim.o
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -o $@ $< -ldl
$(filter $(B)/tests/integration/%,$(TESTS)): | $(B)/clocksim.so

$(TRACES) &: tests/traces/make.py
	$(call say,TRACE,$(B)/traces)
	$(Q)python3 $< $(B)/traces
$(B)/tests/integration/test_stitch_streams: | $(TRACES)

# What the device's own books say, for the tests that are about them.
$(B)/nvmlsim/libnvidia-ml.so.1: $(B)/obj/tests/nvmlsim/nvmlsim.o
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libnvidia-ml.so.1 -o $@ $^
$(addprefix $(B)/tests/integration/,test_account test_nvml test_shim_nvml): | \
	$(B)/nvmlsim/libnvidia-ml.so.1

# ---- shim: has the SONAMEs and entries of the driver and of NVML, and needs nothing but libc ---
# A preloaded library that needs another one would end every program of a tree where that is absent.
# In a folder of its own, for ldconfig must not take it for the driver.
SHIM_LIBS = -Wl,-Bstatic -lprotobuf-c -ljansson -lxxhash -Wl,-Bdynamic -ldl -lpthread
# The toolkit's stub library lacks the calls for graphics, which every driver has.
$(B)/gen/shim/names.def: shim/gen/names.sh shim/gen/graphics.txt $(CUDA_HOME)/lib64/stubs/libcuda.so
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)nm -D --defined-only $(CUDA_HOME)/lib64/stubs/libcuda.so | \
		awk '$$2 == "T" && $$3 ~ /^cu[A-Z]/ { print $$3 }' | \
		cat - shim/gen/graphics.txt | $< >$@.tmp && mv $@.tmp $@
$(B)/gen/shim/gates.def: shim/gen/gates.awk shim/gen/gates.txt shim/gen/graphics.h \
		$(CUDA_HOME)/include/cuda.h
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -E -P -D__CUDA_API_VERSION_INTERNAL -I$(CUDA_HOME)/include -x c shim/gen/graphics.h | \
		awk -f shim/gen/gates.awk shim/gen/gates.txt - >$@.tmp && mv $@.tmp $@
$(B)/gen/shim/handles.def: shim/gen/handles.awk $(CUDA_HOME)/include/cuda.h
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -E -P -D__CUDA_API_VERSION_INTERNAL -x c $(CUDA_HOME)/include/cuda.h | \
		awk -f shim/gen/handles.awk >$@.tmp && mv $@.tmp $@
# The library's API too: a program that uses both has one map of its memory, the shim's.
$(B)/gen/shim/shim.map: shim/shim.map libclient/glake.map
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)awk 'FNR == NR { if (/glake_.*;/) api = api $$0 "\n"; next } /local:/ { printf "%s", api } \
		{ print }' libclient/glake.map shim/shim.map >$@.tmp && mv $@.tmp $@
$(B)/gen/shim/nvml/names.def: shim/gen/names.sh shim/nvml/names.txt
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)$< <shim/nvml/names.txt >$@.tmp && mv $@.tmp $@

$(call objects,shim/*.c): $(B)/gen/shim/names.def $(B)/gen/shim/gates.def
$(call objects,shim/nvml/*.c): $(B)/gen/shim/nvml/names.def
$(addprefix $(B)/obj/tests/unit/,test_shim.o test_shim_gate.o): $(B)/gen/shim/names.def \
	$(B)/gen/shim/gates.def $(B)/gen/shim/handles.def $(B)/gen/shim/nvml/names.def
$(addsuffix /trampolines.o,$(B)/obj/shim $(B)/obj/shim/nvml): $(B)/obj/%/trampolines.o: \
		shim/trampolines.S $(B)/gen/%/names.def
	$(call say,AS,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -I$(B)/gen -DNAMES='"$*/names.def"' -c -o $@ $<

$(B)/lib/glake/libglake-shim.so: SONAME = libcuda.so.1
$(B)/lib/glake/libglake-shim.so: SHIM_LIBS += -Wl,--wrap=stdin
$(B)/lib/glake/libglake-shim.so: $(SHIM_OBJ) $(CLIENT_OBJ) $(PROTO_OBJ) $(B)/gen/shim/shim.map
$(B)/lib/glake/libglake-nvml.so: SONAME = libnvidia-ml.so.1
$(B)/lib/glake/libglake-nvml.so: $(NVML_OBJ) $(B)/lib/libglake-client.a shim/nvml/nvml.map
$(B)/lib/glake/%.so:
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,-Bsymbolic -Wl,--exclude-libs,ALL \
		-Wl,--version-script,$(filter %.map,$^) $(if $(SANITIZE),,-Wl,-z,defs) -o $@ \
		$(filter %.o %.a,$^) $(SHIM_LIBS)
	$(Q)ln -sf $(@F) $(@D)/$(SONAME)

$(B)/bin/glake: $(call objects,shim/run/*.c) $(REPLAY_OBJ) \
		$(addprefix $(B)/obj/,shim/library.o shim/policy.o shim/readers.o shim/reader_files.o shim/learned.o \
		proto/cudrv.o proto/owned.o libclient/ctl/text.o) \
		$(B)/lib/libglake-client.so
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(B)/lib -lglake-client $(call rpath,../lib)

# Every test program may use every part: the linker takes what it needs.
TEST_ARCHIVES = $(B)/lib/harness.a $(B)/lib/daemon.a $(B)/lib/mover.a $(B)/lib/ctl.a \
	$(B)/lib/shim.a $(B)/lib/replay.a $(B)/lib/client.a
# What fuzzers use. They are built with a compiler of their own: of nothing else.
FUZZ_ARCHIVES = $(B)/lib/daemon.a $(B)/lib/mover.a $(B)/lib/shim.a $(B)/lib/replay.a $(B)/lib/proto.a
# And it is linked again when a part that it took has changed: the linker says which, in $@.d.
define link_test
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(1) $(DAEMON_LIBS) $(CTL_LIBS) $(TEST_LIBS) \
		$(call rpath,../../lib) -Wl,--trace >$@.trace && \
		sed -n 's|^$(B)/lib/\.\.\(/obj/.*\.o\)$$|$@: $(B)\1\n$(B)\1:|p' $@.trace >$@.d && rm $@.trace
endef
$(B)/tests/%: $(B)/obj/tests/%.o Makefile | $(TEST_ARCHIVES)
	$(call link_test,$(TEST_ARCHIVES))
$(FUZZERS): TEST_LIBS += -fsanitize=fuzzer
$(B)/tests/fuzz/%: $(B)/obj/tests/fuzz/%.o Makefile | $(FUZZ_ARCHIVES)
	$(call link_test,$(FUZZ_ARCHIVES))

# Programs of others, that the shim is preloaded into: they get nothing of ours.
$(B)/obj/tests/shim/linked.o: CPPFLAGS += -DLINKED
$(B)/obj/tests/shim/linked.o: tests/shim/program.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<
$(B)/obj/tests/shim/driver_api_per_thread.o: CPPFLAGS += -DCUDA_API_PER_THREAD_DEFAULT_STREAM
$(B)/obj/tests/shim/driver_api_per_thread.o: tests/shim/driver_api.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<
$(addprefix $(B)/tests/shim/,linked driver_usage contexts driver_api driver_api_per_thread \
		green_contexts ipc numbers runtime seal seal_random outside full fault graphmem graphmem_random \
		waits sleep sleep_random sleep_whole elastic auto): \
	STUB = -L$(CUDA_HOME)/lib64/stubs -lcuda
# Programs that use the library as well.
$(addprefix $(B)/tests/shim/,seal seal_random full fault sleep_whole elastic): STUB += -L$(B)/lib -lglake-client $(call rpath,../../lib)
$(addprefix $(B)/tests/shim/,seal seal_random full fault sleep_whole elastic): | $(B)/lib/libglake-client.so
$(addprefix $(B)/tests/shim/,constructor.so second.so): $(B)/tests/shim/%.so: \
		$(B)/obj/tests/shim/%.o
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -o $@ $< -ldl
$(B)/tests/shim/%: $(B)/obj/tests/shim/%.o
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(STUB) -ldl -lpthread

$(B)/tests/demo/engine: $(B)/obj/tests/demo/engine.o
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -L$(CUDA_HOME)/lib64/stubs -lcuda -ljansson $(call rpath,../../lib)

# ---- install, dist ------------------------------------------------------------------------------
install: all ## into DESTDIR and PREFIX (/usr/local); an absent configuration into /etc
	$(Q)VERSION=$(VERSION) SOVERSION=$(SOVERSION) LIBDIR="$(LIBDIR)" SYSCONFDIR="$(SYSCONFDIR)" \
		deploy/install $(B) "$(DESTDIR)" "$(PREFIX)"
	$(call say,INST,"$(DESTDIR)$(PREFIX)")
dist: tests ## dist/glake-VERSION-x86_64.tar.gz, runs from any folder
	$(Q)VERSION=$(VERSION) SOVERSION=$(SOVERSION) CUDA_HOME="$(CUDA_HOME)" deploy/dist $(B)
# There is no bug of Debian's to close.
LINTIAN_IRRELEVANT = initial-upload-closes-no-bugs
deb: deps ## dist/*.deb
	@tests/deps deb
	@+$(submake) all
	$(Q)VERSION=$(VERSION) SOVERSION=$(SOVERSION) deploy/deb $(B) dist
	$(Q)lintian --allow-root --display-info --fail-on warning,info --suppress-tags $(LINTIAN_IRRELEVANT) dist/*.deb
wheel: $(B)/wheel/libglake-client.so.$(SOVERSION) $(SHARED)/deploy/venv/.done ## dist/*.whl: the Python binding with the client library (pip)
	$(Q)SOVERSION=$(SOVERSION) PYTHON=$(SHARED)/deploy/venv/bin/python deploy/wheel/build $(B) dist
clean: ## remove all that was built
	rm -rf $(B) dist

-include $(shell find $(B)/tests $(SHARED)/gen -name '*.d' 2>/dev/null)
# Objects of an earlier build whose source is gone need nothing.
-include $(shell find $(B)/obj -name '*.d' -exec awk 'FNR == 1 { first = $$2 } \
	(FNR == 1 && $$2 != "\\") || (FNR == 2 && first == "\\") { source = FNR == 1 ? $$2 : $$1; \
	if ((getline line <source) >= 0) { print FILENAME } close(source) }' {} + 2>/dev/null)
.SECONDARY:
