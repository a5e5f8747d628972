# flatpeak: `make help` lists the targets.
#
# Everything that is built goes to BUILDDIR; the tree stays clean. What the machine offers is probed
# once into $(BUILDDIR)/config.mk (`make showconfig` prints it, `make reconfigure` probes again).

BUILDDIR ?= build
CC ?= cc
CUDA ?= auto
MPI ?= auto
JANSSON_PREFIX ?=
XXHASH_PREFIX ?=
SANITIZE ?=
WERROR ?=
PREFIX ?= /usr/local
DESTDIR ?=

B := $(BUILDDIR)
VERSION := 0.1.0

ifneq ($(MAKECMDGOALS),)
ifeq ($(filter-out help clean deps distclean format format-check,$(MAKECMDGOALS)),)
NO_CONFIG := 1
endif
endif
ifndef NO_CONFIG
include $(B)/config.mk
endif

# ---- flags -----------------------------------------------------------------------------------------

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
	-Wno-unknown-pragmas -Wno-psabi $(if $(WERROR),-Werror)
# The contract behind "bitwise": no contraction, no fast-math. -fno-math-errno and
# -fno-trapping-math change no value; they let loops over exp and log be vectorised.
EXACT := -ffp-contract=off -fno-math-errno -fno-trapping-math
SAN := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -g)
CPPFLAGS += -I. -D_GNU_SOURCE $(patsubst %,-I%/include,$(JANSSON_PREFIX) $(XXHASH_PREFIX))
CFLAGS ?= -O3
override CFLAGS += -std=c11 $(EXACT) $(WARN) $(SAN) -pthread
LDFLAGS += $(SAN) -pthread $(patsubst %,-L%/lib -Wl$(comma)-rpath$(comma)%/lib,\
	$(JANSSON_PREFIX) $(XXHASH_PREFIX))
LDLIBS += -ljansson -lxxhash -lm
comma := ,

# Kernels whose file ends in _isa.c are compiled once per instruction set, each with ISA_NAME.
ISA_FLAGS_generic :=
ISA_FLAGS_scalar := -mfma -fno-tree-vectorize -fno-tree-slp-vectorize
ISA_FLAGS_avx2 := -march=x86-64-v3
ISA_FLAGS_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
ISAS := generic $(if $(filter x86_64,$(ARCH)),scalar avx2 avx512)

# ---- sources ---------------------------------------------------------------------------------------

LIB_DIRS := probe device kernels ops baselines reference bench/harness
ISA_SRC := $(wildcard kernels/*_isa.c)
LIB_SRC := $(filter-out $(ISA_SRC),$(wildcard $(addsuffix /*.c,$(LIB_DIRS))))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/obj/%.o) \
	$(foreach isa,$(ISAS),$(ISA_SRC:%_isa.c=$(B)/obj/%_$(isa).o))
LIB := $(B)/libflatpeak.a

# Programs that measure us against other libraries are built by `make bench-peers` alone.
PEER_SRC := $(wildcard bench/peers*.c)
BIN_SRC := $(filter-out $(PEER_SRC),$(wildcard bench/*.c))
BIN := $(BIN_SRC:bench/%.c=$(B)/bin/%)

TEST_SRC := $(wildcard tests/test_*.c)
# tests/slow_*.c run in check-full only.
SLOW_SRC := $(wildcard tests/slow_*.c)
TESTS := $(TEST_SRC:tests/%.c=$(B)/tests/%)
SLOW_TESTS := $(SLOW_SRC:tests/%.c=$(B)/tests/%)
TEST_SCRIPTS := $(wildcard tests/*.t)

.PHONY: all lib programs tests check check-full clean help showconfig reconfigure
all: programs
lib: $(LIB)
programs: $(BIN)
tests: $(TESTS)

# ---- rules -----------------------------------------------------------------------------------------

$(B)/config.mk: Makefile
	@mkdir -p $(@D)
	@printf 'ARCH := %s\n' "$$(uname -m)" >$@

# Objects are rebuilt when the flags change.
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)' | cmp -s - $@ || \
		echo '$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)' >$@
FORCE:

$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

# The reference's loops are plain; it may use the fused multiply-add that the contract names.
REFERENCE_FLAGS := $(if $(filter x86_64,$(ARCH)),-march=x86-64-v3)
$(B)/obj/reference/%.o: reference/%.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(REFERENCE_FLAGS) -MMD -MP -c $< -o $@

define ISA_RULE
$(B)/obj/%_$(1).o: %_isa.c $(B)/flags
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(ISA_FLAGS_$(1)) -DISA_NAME=$(1) -DISA_IS_$(1) -MMD -MP -c $$< -o $$@
endef
$(foreach isa,$(ISAS),$(eval $(call ISA_RULE,$(isa))))

$(LIB): $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(B)/bin/%: $(B)/obj/bench/%.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

$(B)/tests/%: $(B)/obj/tests/%.o $(B)/obj/tests/tap.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(LDLIBS) $(TEST_LIBS) -o $@

check: programs tests
	BUILDDIR=$(B) prove -e '' $(TESTS) $(TEST_SCRIPTS)

clean:
	rm -rf $(B)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
.SECONDARY:
