# SPDX-License-Identifier: Apache-2.0
# glake: `make help` lists the targets.

B ?= build
V ?= 0
Q = $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-5s %s\n' $(1) $(2))

VERSION := 0.1.0
SOVERSION := 0

# ---- toolchain ----------------------------------------------------------------------------------
CC := gcc
CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v nvcc 2>/dev/null))))
NVCC ?= $(CUDA_HOME)/bin/nvcc
SANITIZE ?=

WARN := -Wall -Wextra -Wmissing-prototypes -Wstrict-prototypes -Wundef -Wshadow -Wvla \
	-Wpointer-arith -Wwrite-strings -Wold-style-definition -Wno-unused-parameter $(WERROR)
CPPFLAGS += -D_GNU_SOURCE -DGLAKE_VERSION='"$(VERSION)"' -I. -Ilibclient -I$(B)/gen \
	-isystem $(CUDA_HOME)/include
CFLAGS ?= -O2 -g
CFLAGS += -std=gnu11 $(WARN) -fPIC -fvisibility=hidden -fno-common -MMD -MP $(SANITIZE)
LDFLAGS += $(SANITIZE)

CLIENT_LIBS = -lprotobuf-c -ljansson -lxxhash -ldl -lpthread
DAEMON_LIBS = -luv -lprotobuf-c -lconfig -lsystemd -lxxhash -ldl -lpthread
MOVER_LIBS = -lprotobuf-c -ljansson -lxxhash -ldl -lpthread
CTL_LIBS = -ljansson
TEST_LIBS = $(shell pkg-config --libs check 2>/dev/null)

# ---- sources ------------------------------------------------------------------------------------
objects = $(patsubst %.c,$(B)/obj/%.o,$(wildcard $(1)))
PB := $(B)/gen/proto/glake.pb-c.c $(B)/gen/proto/mover.pb-c.c
PB_OBJ := $(PB:$(B)/gen/%.c=$(B)/obj/%.o)
PROTO_OBJ := $(call objects,proto/*.c) $(PB_OBJ)
DAEMON_OBJ := $(filter-out %/main.o,$(call objects,daemon/*.c))
MOVER_OBJ := $(filter-out %/main.o,$(call objects,daemon/mover/*.c)) $(B)/obj/daemon/mover/digest_image.o
CLIENT_OBJ := $(call objects,libclient/*.c)
CTL_OBJ := $(call objects,libclient/ctl/*.c)
HARNESS_OBJ := $(call objects,tests/harness/*.c)
CUDASIM_OBJ := $(call objects,tests/cudasim/*.c)
TESTS := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/unit/test_*.c tests/integration/test_*.c))
BENCHES := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/bench/bench_*.c))

.PHONY: all daemon lib ctl cudasim tests clean
all: daemon lib ctl
daemon: $(B)/bin/glaked $(B)/bin/glake-mover
lib: $(B)/lib/libglake-client.so $(B)/lib/libglake-client.a
ctl: $(B)/bin/glakectl
cudasim: $(B)/cudasim/libcuda.so.1
tests: all cudasim $(TESTS) $(BENCHES)
clean:
	rm -rf $(B)

# ---- rules --------------------------------------------------------------------------------------
$(B)/gen/proto/%.pb-c.c: proto/%.proto
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
$(B)/gen/digest.fatbin: daemon/mover/digest.cu
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O3 -I. --fatbin \
		-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 \
		-gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 -o $@ $<

$(B)/obj/daemon/mover/digest_image.o: $(B)/gen/digest.fatbin
	$(call say,EMBED,$<)
	@mkdir -p $(@D)
	$(Q)printf '.section .rodata\n.global digest_image\n.balign 16\ndigest_image:\n.incbin "%s"\n.section .note.GNU-stack,"",@progbits\n' $< | \
		$(CC) -x assembler -c -o $@ -

$(B)/lib/proto.a: $(PROTO_OBJ)
$(B)/lib/daemon.a: $(DAEMON_OBJ)
$(B)/lib/mover.a: $(MOVER_OBJ)
$(B)/lib/harness.a: $(HARNESS_OBJ)
$(B)/lib/libglake-client.a: $(CLIENT_OBJ) $(PROTO_OBJ)
$(B)/lib/%.a:
	$(call say,AR,$@)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/bin/glaked: $(B)/obj/daemon/main.o $(B)/lib/daemon.a $(B)/lib/proto.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS)

$(B)/bin/glake-mover: $(B)/obj/daemon/mover/main.o $(B)/lib/mover.a $(B)/lib/proto.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(MOVER_LIBS)

$(B)/lib/libglake-client.so: $(CLIENT_OBJ) $(PROTO_OBJ) libclient/glake.map
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libglake-client.so.$(SOVERSION) \
		-Wl,--version-script,libclient/glake.map $(if $(SANITIZE),,-Wl,-z,defs) -o $@ \
		$(CLIENT_OBJ) $(PROTO_OBJ) $(CLIENT_LIBS)
	$(Q)ln -sf libglake-client.so $@.$(SOVERSION)

$(B)/bin/glakectl: $(CTL_OBJ) $(B)/lib/libglake-client.so
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(CTL_OBJ) -L$(B)/lib -lglake-client $(CTL_LIBS) \
		-Wl,-rpath,'$$ORIGIN/../lib'

$(B)/cudasim/libcuda.so.1: $(CUDASIM_OBJ)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -lxxhash -lpthread

TEST_ARCHIVES = $(B)/lib/harness.a $(B)/lib/daemon.a $(B)/lib/mover.a $(B)/lib/libglake-client.a
$(B)/tests/%: $(B)/obj/tests/%.o $(TEST_ARCHIVES)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(TEST_ARCHIVES) $(DAEMON_LIBS) -ljansson $(TEST_LIBS) -lm

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
