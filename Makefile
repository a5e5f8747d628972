# flatpeak: `make help` lists the targets and variables.
#
# Everything that is built goes to BUILDDIR; the tree stays clean. What the machine offers is probed
# once (make/configure.sh) into $(BUILDDIR)/config.mk; `make showconfig` prints it.

comma := ,
SANITIZE ?=
BUILDDIR ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
CC ?= cc
CUDA ?= auto
NCCL ?= auto
CUPTI ?= auto
MPI ?= auto
JANSSON_PREFIX ?=
XXHASH_PREFIX ?=
WERROR ?=
PREFIX ?= /usr/local
DESTDIR ?=
PROVE_FLAGS ?= -j2
ONLY ?=
V ?=

VERSION := 0.1.0
B := $(BUILDDIR)

ifneq ($(words $(BUILDDIR)),1)
$(error BUILDDIR is '$(BUILDDIR)'; it must be one path without spaces)
endif
ifeq ($(abspath $(BUILDDIR)),$(CURDIR))
$(error BUILDDIR is the source tree itself; give a folder of its own)
endif

# As many jobs as there are cores, unless -j says otherwise.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:
.PHONY: all lib programs tests peers check check-full accept cuda gpu-tests emu bench-peers install deps format format-check
.PHONY: showconfig reconfigure clean help FORCE
all: programs

# ---- what the machine offers -------------------------------------------------------------------------

PREFIXES := $(abspath $(JANSSON_PREFIX) $(XXHASH_PREFIX))
override CPPFLAGS += -I. -D_GNU_SOURCE $(PREFIXES:%=-I%/include)
override LDFLAGS += $(foreach p,$(PREFIXES),-L$(p)/lib -Wl$(comma)-rpath$(comma)$(p)/lib)

# These goals work before anything is installed.
UNCONFIGURED := help clean deps
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(UNCONFIGURED),$(MAKECMDGOALS)),all),)
include $(B)/config.mk
endif

# $(call record,FILE,TEXT): FILE holds TEXT and is as old as its last change, so that what depends on
# it is rebuilt exactly when the text changes.
define record
$(1): export RECORD = $(2)
$(1): FORCE
	@mkdir -p $$(@D)
	@printf '%s\n' "$$$$RECORD" | cmp -s - $$@ || printf '%s\n' "$$$$RECORD" >$$@
endef

PROBED = CC CXX NVCC MPICC CUDA NCCL CUPTI MPI CPPFLAGS LDFLAGS JANSSON_PREFIX XXHASH_PREFIX
$(eval $(call record,$(B)/config.args,$$(foreach name,$$(PROBED),$$(name)=$$($$(name)))))
$(B)/config.mk: make/configure.sh $(B)/config.args
	@env $(foreach name,$(PROBED),$(name)='$($(name))') sh make/configure.sh >$@

# ---- flags -------------------------------------------------------------------------------------------

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
	-Wno-unknown-pragmas -Wno-psabi $(if $(WERROR),-Werror)
# The contract behind "bitwise": no contraction, no fast-math. -fno-math-errno and
# -fno-trapping-math change no value; they let loops over exp and log be vectorised. Each object
# records the flags that it was built with; tests/flags.t reads them.
EXACT := -ffp-contract=off -fno-math-errno -fno-trapping-math -frecord-gcc-switches
SAN := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
CFLAGS ?= $(if $(SANITIZE),-O1,-O3)
override CFLAGS += -std=c11 $(EXACT) $(WARN) $(SAN) -pthread
override LDFLAGS += $(SAN) -pthread
# The MPI library of a program: the first, but for those that are linked once more with another.
MPI_NAME = $(firstword $(MPI_NAMES))
override LDLIBS += $(MPI_LIBS_$(MPI_NAME)) -ljansson -lxxhash -lm

# Kernels whose file ends in _isa.c are compiled once per instruction set, each with ISA_NAME.
ISA_FLAGS_generic :=
ISA_FLAGS_scalar := -mfma -fno-tree-vectorize -fno-tree-slp-vectorize
ISA_FLAGS_avx2 := -march=x86-64-v3
ISA_FLAGS_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
ISAS := generic $(if $(filter x86_64,$(ARCH)),scalar avx2 avx512)

# The reference's loops are plain; it may use the fused multiply-add that the contract names.
REFERENCE_FLAGS := $(if $(filter x86_64,$(ARCH)),-march=x86-64-v3)

NVCC_FLAGS := -O3 -std=c++17 -I. -fmad=false -ftz=false -prec-div=true -prec-sqrt=true \
	-Xcompiler -ffp-contract=off,-Wall,-Wextra$(if $(WERROR),$(comma)-Werror) $(CUDA_DEFINES) \
	$(foreach n,$(CUDA_ARCHITECTURES),-gencode arch=compute_$(n)$(comma)code=sm_$(n)) \
	$(foreach n,$(lastword $(CUDA_ARCHITECTURES)),-gencode arch=compute_$(n)$(comma)code=compute_$(n))

# The emulator compiles the same .cu files for the CPU (docs/EMULATOR.md). Variables without an
# initial value hold a pattern, as unwritten memory does; kernels read memory in words of any type, as
# nvcc allows.
CXXFLAGS ?= $(if $(SANITIZE),-O1,-O2)
override CXXFLAGS += -std=c++17 $(EXACT) -Wall -Wextra -Wno-unknown-pragmas \
	$(if $(WERROR),-Werror) $(SAN) -pthread -Itests/cuda_emu
EMU_KERNEL_FLAGS := -march=x86-64-v3 -ftrivial-auto-var-init=pattern -fno-strict-aliasing \
	-Wno-unknown-warning-option -Wno-maybe-uninitialized -DHAVE_NCCL -DHAVE_CUBLASLT -DHAVE_CUPTI

# ---- sources -----------------------------------------------------------------------------------------

LIB_DIRS := probe device kernels ops baselines reference bench/harness
ISA_SRC := $(wildcard kernels/*_isa.c)
# What includes mpi.h: that of a library, or, in a build without MPI, of device/sockets, which then is
# the library.
MPI_CALLS := $(wildcard device/mpi*.c)
SOCKETS_SRC := $(wildcard device/sockets/*.c)
MPI_CFLAGS_sockets := -Idevice/sockets
LIB_SRC := $(filter-out $(ISA_SRC) $(if $(MPI_NAMES),,device/mpi_peer.c),$(wildcard $(addsuffix /*.c,$(LIB_DIRS)))) \
	$(if $(MPI_NAMES),,$(SOCKETS_SRC))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/obj/%.o) \
	$(foreach isa,$(ISAS),$(ISA_SRC:%_isa.c=$(B)/obj/%_$(isa).o))
LIB := $(B)/libflatpeak.a

# Programs that measure us against other libraries are built by `make bench-peers` alone.
PEER_SRC := $(wildcard bench/peers*.c)
PEERS := $(B)/bin/peers
# Messages against those of the MPI library alone.
MESSAGE_PEERS := $(B)/bin/message_peers
BIN_SRC := $(filter-out $(PEER_SRC) bench/message_peers.c,$(wildcard bench/*.c))
BIN := $(BIN_SRC:bench/%.c=$(B)/bin/%)

TEST_SRC := $(if $(ONLY),$(patsubst %,tests/test_%.c,$(filter-out cuda_% mpi sockets,$(ONLY))), \
	$(wildcard tests/test_*.c))
TEST_SCRIPTS := $(filter-out tests/slow_%,$(wildcard \
	$(if $(ONLY),$(patsubst %,tests/%.t,$(filter cuda_% mpi sockets,$(ONLY))),tests/*.t)))
TESTS := $(TEST_SRC:tests/%.c=$(B)/tests/%)
# tests/slow_*.c and tests/slow_*.t run in check-full only.
SLOW_SRC := $(wildcard tests/slow_*.c)
SLOW_TESTS := $(SLOW_SRC:tests/%.c=$(B)/tests/%)
SLOW_SCRIPTS := $(wildcard tests/slow_*.t)

CUDA_SRC := $(wildcard kernels/*.cu device/*.cu tests/*.cu)
CUDA_OBJ := $(CUDA_SRC:%.cu=$(B)/cuda/%.o)
# What the programs hold of it, where the cuda device is built. The library refers to it weakly, so
# that one library serves programs with and without.
CUDA_PART := $(if $(CUDA_FOUND),$(filter-out $(B)/cuda/tests/%,$(CUDA_OBJ)))

# The thread sanitizer cannot follow the emulator's switches from stack to stack.
ifneq ($(findstring thread,$(SANITIZE)),)
EMULATOR :=
EMULATOR_LACKS := not under the thread sanitizer
endif

# For a machine with GPUs: the tests of the kernels and of the messages, and gpu_bars.
GPU_TEST_SRC := $(wildcard tests/*.cu tests/cuda_*.c)
GPU_TESTS := $(if $(CUDA_FOUND),$(patsubst tests/%,$(B)/gpu/%,$(basename $(GPU_TEST_SRC))))

# The same with the emulator in the place of CUDA: every program, and the tests tests/cuda_*.c and
# tests/cuda_*.cu, which check runs too where the emulator can be built.
EMU_OBJ := $(patsubst %,$(B)/emu/obj/%.o,$(basename $(wildcard kernels/*.cu device/*.cu \
	tests/cuda_emu/*.cpp)))
EMU_BIN := $(if $(EMULATOR),$(BIN_SRC:bench/%.c=$(B)/emu/bin/%))
EMU_TEST_SRC := $(wildcard $(foreach e,c cu,$(if $(ONLY),$(ONLY:%=tests/%.$(e)),tests/cuda_*.$(e))))
EMU_TESTS := $(if $(EMULATOR),$(patsubst tests/%,$(B)/emu/tests/%,$(basename $(EMU_TEST_SRC))))
OTHER_MPI := $(wordlist 2,9,$(MPI_NAMES))
# What the scripts tests/cuda_*.t run; the programs between processes with every MPI library.
EMU_RUNS := $(if $(EMULATOR),$(B)/emu/tests/cuda_emu/faults $(EMU_BIN) \
	$(B)/emu/tests/mpi_faults $(OTHER_MPI:%=$(B)/emu/%/dispatch))

FORMATTED := $(wildcard $(foreach d,$(LIB_DIRS) device/sockets bench tests,$(foreach e,c h cu cuh,$(d)/*.$(e))) \
	$(foreach e,h cpp cu,tests/cuda_emu/*.$(e)))

# ---- rules -------------------------------------------------------------------------------------------

$(eval $(call record,$(B)/flags,$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(LDFLAGS) $$(LDLIBS) $$(MPFR_LIBS) \
	$$(foreach n,$$(MPI_NAMES),$$(MPI_CFLAGS_$$n) $$(MPI_LIBS_$$n))))
$(eval $(call record,$(B)/objects,$$(LIB_OBJ)))

# $(call run,VERB,FILE,COMMAND): the verb and the file, or under V=1 the command.
run = $(if $(V),,@printf '%-5s %s\n' '$(1)' '$(2)';) $(3)

COMPILE = $(CC) $(CPPFLAGS) $(CFLAGS) $(MORE_FLAGS)
$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call run,cc,$<,$(COMPILE) -MMD -MP -c $< -o $@)

# Version, flags and the state of the tree, for probe/host_build.c alone; as old as its last change.
$(B)/build_info.h: export FLAGS = $(CFLAGS)
$(B)/build_info.h: FORCE
	@mkdir -p $(@D)
	@VERSION='$(VERSION)' sh make/build_info.sh >$@.new
	@cmp -s $@.new $@ || cp $@.new $@
	@rm -f $@.new
$(B)/obj/probe/host_build.o: MORE_FLAGS := -I$(B)
$(B)/obj/probe/host_build.o: $(B)/build_info.h

$(B)/obj/reference/%.o: reference/%.c $(B)/flags
	@mkdir -p $(@D)
	$(call run,cc,$<,$(COMPILE) $(REFERENCE_FLAGS) -MMD -MP -c $< -o $@)

define isa_rule
$(B)/obj/%_$(1).o: %_isa.c $(B)/flags
	@mkdir -p $$(@D)
	$$(call run,cc,$$< ($(1)),\
		$$(COMPILE) $$(ISA_FLAGS_$(1)) -DISA_NAME=$(1) -DISA_IS_$(1) -MMD -MP -c $$< -o $$@)
endef
$(foreach isa,$(ISAS),$(eval $(call isa_rule,$(isa))))

$(LIB): $(LIB_OBJ) $(B)/objects
	@rm -f $@
	$(call run,ar,$@,$(AR) rcs $@ $(LIB_OBJ))

$(MPI_CALLS:%.c=$(B)/obj/%.o): MORE_FLAGS := $(MPI_CFLAGS_$(or $(firstword $(MPI_NAMES)),sockets))

LINK = $(CC) $(LDFLAGS) $(filter %.o %.a,$^) $(MORE_LIBS) $(LDLIBS) -o $@
$(BIN): MORE_LIBS := $(if $(CUDA_FOUND),$(CUDA_LIBS))
$(B)/bin/%: $(B)/obj/bench/%.o $(CUDA_PART) $(LIB)
	@mkdir -p $(@D)
	$(call run,link,$@,$(LINK))

# What tests share: TAP, and tests/*_case.c, which run one case of a family.
SUPPORT := $(B)/tests/support.a
$(SUPPORT): $(patsubst %.c,$(B)/obj/%.o,tests/tap.c $(wildcard tests/*_case.c))
	@mkdir -p $(@D)
	@rm -f $@
	$(call run,ar,$@,$(AR) rcs $@ $^)

$(B)/tests/%: $(B)/obj/tests/%.o $(SUPPORT) $(LIB)
	@mkdir -p $(@D)
	$(call run,link,$@,$(LINK))

# A program of the suite with one call tampered with; tests/tables.t runs it.
TAMPERED := $(B)/tests/vocab_one_byte
$(B)/tests/vocab_one_byte: $(B)/obj/tests/vocab_one_byte.o $(B)/obj/bench/vocab.o $(LIB)
	@mkdir -p $(@D)
	$(call run,link,$@,$(LINK))

# The MPI programs and tests once more with every other library: BUILDDIR/NAME/vocab, ...; and with
# sockets in the place of one.
MPI_PROGRAMS := vocab dispatch checkpoint optimizer train message_peers
MPI_TESTS := test_comm mpi_faults
SOCKETS_RUNS := vocab dispatch test_comm mpi_faults
mpi_objects = $(patsubst %.c,$(B)/obj/$(1)/%.o,$(filter-out $(if $(filter sockets,$(1)),device/mpi_peer.c),$(MPI_CALLS))) \
	$(if $(filter sockets,$(1)),$(SOCKETS_SRC:%.c=$(B)/obj/%.o))
define mpi_rules
$(MPI_CALLS:%.c=$(B)/obj/$(1)/%.o): $(B)/obj/$(1)/%.o: %.c $(B)/flags
	@mkdir -p $$(@D)
	$$(call run,cc,$$< ($(1)),$$(COMPILE) $$(MPI_CFLAGS_$(1)) -MMD -MP -c $$< -o $$@)
$(MPI_PROGRAMS:%=$(B)/$(1)/%): MORE_LIBS := $$(if $(CUDA_FOUND),$(CUDA_LIBS))
$(MPI_PROGRAMS:%=$(B)/$(1)/%): MPI_NAME := $(1)
$(MPI_PROGRAMS:%=$(B)/$(1)/%): $(B)/$(1)/%: $(B)/obj/bench/%.o $(call mpi_objects,$(1)) \
	$(CUDA_PART) $(LIB)
	@mkdir -p $$(@D)
	$$(call run,link,$$@,$$(LINK))
$(MPI_TESTS:%=$(B)/$(1)/%): MPI_NAME := $(1)
$(MPI_TESTS:%=$(B)/$(1)/%): $(B)/$(1)/%: $(B)/obj/tests/%.o $(call mpi_objects,$(1)) \
	$(SUPPORT) $(LIB)
	@mkdir -p $$(@D)
	$$(call run,link,$$@,$$(LINK))
endef
$(foreach n,$(OTHER_MPI) sockets,$(eval $(call mpi_rules,$(n))))
# What tests/mpi.t runs, and the launchers that it runs it with.
MPI_RUNS := $(B)/sockets/vocab $(if $(MPI_NAMES),$(MPI_TESTS:%=$(B)/tests/%) $(MESSAGE_PEERS)) \
	$(foreach n,$(OTHER_MPI),$(patsubst %,$(B)/$(n)/%,$(MPI_PROGRAMS) $(MPI_TESTS)))

$(SLOW_SRC:%.c=$(B)/obj/%.o): MORE_FLAGS := $(if $(MPFR_LIBS),-DHAVE_MPFR)
$(SLOW_TESTS): MORE_LIBS := $(MPFR_LIBS)

# One program. OpenBLAS is loaded at run time, after its overrides are removed from the environment.
$(PEERS): MORE_LIBS := -ldl
$(PEERS): $(PEER_SRC:%.c=$(B)/obj/%.o) $(LIB)
	@mkdir -p $(@D)
	$(call run,link,$@,$(LINK))

# The calls that these tests make fail or tamper with.
$(B)/tests/test_moe_faults: MORE_LIBS := $(foreach call,dev_wait dev_alloc comm_exchange add_f32 \
	moe_layout_index,-Wl$(comma)--wrap=$(call))
$(B)/tests/vocab_one_byte: MORE_LIBS := -Wl$(comma)--wrap=dev_alloc $(if $(CUDA_FOUND),$(CUDA_LIBS))
$(B)/tests/test_relay_faults: MORE_LIBS := $(foreach call,relay_held dev_wait dev_wait_stream \
	dev_alloc comm_exchange,-Wl$(comma)--wrap=$(call))
$(B)/tests/test_stack: MORE_LIBS := $(foreach call,dev_wait dev_copy_h2d dev_copy_d2h, \
	-Wl$(comma)--wrap=$(call))
$(B)/tests/test_probe_failures: MORE_LIBS := $(foreach call,malloc calloc reallocarray strdup pread \
	XXH3_createState,-Wl$(comma)--wrap=$(call))

# What ptxas tells of registers and spills goes to a file beside the object (tests/slow_ptxas.t reads
# it), everything else to the terminal.
$(B)/cuda/%.o: %.cu Makefile $(B)/config.mk
	@mkdir -p $(@D)
	$(call run,nvcc,$<,$(NVCC_FOUND) $(NVCC_FLAGS) -Xptxas -v -MMD -MP -c $< -o $@ \
		2>$(@:.o=.ptxas) || failed=1; \
		grep -Ev '^ptxas info|bytes stack frame|^$$' $(@:.o=.ptxas) >&2; test -z "$$failed")

$(GPU_TESTS): MORE_LIBS := $(CUDA_LIBS)
$(B)/gpu/%: $(B)/cuda/tests/%.o $(CUDA_PART) $(SUPPORT) $(LIB)
	@mkdir -p $(@D)
	$(call run,link,$@,$(LINK))
$(patsubst tests/%.c,$(B)/gpu/%,$(filter %.c,$(GPU_TEST_SRC))): \
$(B)/gpu/%: $(B)/obj/tests/%.o $(CUDA_PART) $(SUPPORT) $(LIB)
	@mkdir -p $(@D)
	$(call run,link,$@,$(LINK))

# ---- the emulator ------------------------------------------------------------------------------------

$(eval $(call record,$(B)/emu/flags,$$(CXX) $$(CPPFLAGS) $$(CXXFLAGS) $$(EMU_KERNEL_FLAGS) $$(LDFLAGS)))
$(eval $(call record,$(B)/emu/objects,$$(EMU_OBJ)))

EMU_COMPILE = $(CXX) $(CPPFLAGS) $(CXXFLAGS)
$(B)/emu/obj/%.o: %.cpp $(B)/emu/flags
	@mkdir -p $(@D)
	$(call run,c++,$<,$(EMU_COMPILE) -MMD -MP -c $< -o $@)

$(B)/emu/obj/%.o: %.cu $(B)/emu/flags
	@mkdir -p $(@D)
	$(call run,emu,$<,$(EMU_COMPILE) $(EMU_KERNEL_FLAGS) -MMD -MP -x c++ -c $< -o $@)

# Objects, not an archive: weak references from the library must find them.
EMU_LINK = $(CXX) $(LDFLAGS) $(filter %.o %.a,$^) $(LDLIBS) -o $@
$(B)/emu/bin/%: $(B)/obj/bench/%.o $(EMU_OBJ) $(LIB) $(B)/emu/objects
	@mkdir -p $(@D)
	$(call run,link,$@,$(EMU_LINK))

$(B)/emu/tests/%: $(B)/emu/obj/tests/%.o $(EMU_OBJ) $(SUPPORT) $(LIB) $(B)/emu/objects
	@mkdir -p $(@D)
	$(call run,link,$@,$(EMU_LINK))

$(patsubst tests/%.c,$(B)/emu/tests/%,$(filter %.c,$(EMU_TEST_SRC)) tests/mpi_faults.c): \
$(B)/emu/tests/%: $(B)/obj/tests/%.o $(EMU_OBJ) $(SUPPORT) $(LIB) $(B)/emu/objects
	@mkdir -p $(@D)
	$(call run,link,$@,$(EMU_LINK))

define emu_mpi_rules
$(B)/emu/$(1)/dispatch: MPI_NAME := $(1)
$(B)/emu/$(1)/dispatch: $(B)/obj/bench/dispatch.o $(call mpi_objects,$(1)) $(EMU_OBJ) \
	$(LIB) $(B)/emu/objects
	@mkdir -p $$(@D)
	$$(call run,link,$$@,$$(EMU_LINK))
endef
$(foreach n,$(OTHER_MPI) sockets,$(eval $(call emu_mpi_rules,$(n))))

# ---- goals -------------------------------------------------------------------------------------------

# A cross compiler finds headers but no library to link: it can build `lib` alone.
ifneq ($(filter header,$(JANSSON) $(XXHASH)),)
ifneq ($(filter-out lib showconfig reconfigure format format-check $(UNCONFIGURED),$(or $(MAKECMDGOALS),all)),)
$(error jansson or xxhash has headers for $(CC) but cannot be linked (make showconfig): only 'lib' can be built)
endif
endif

lib: $(LIB)
programs: $(BIN)
tests: $(TESTS) $(EMU_TESTS) $(if $(ONLY),,$(TAMPERED)) $(if $(filter tests/cuda_%,$(TEST_SCRIPTS)),$(EMU_RUNS)) \
	$(if $(filter tests/mpi.t,$(TEST_SCRIPTS)),$(MPI_RUNS)) \
	$(if $(filter tests/sockets.t,$(TEST_SCRIPTS)),$(SOCKETS_RUNS:%=$(B)/sockets/%) $(if $(EMULATOR),$(B)/emu/sockets/dispatch))
peers: $(if $(OPENBLAS_LIBS),$(PEERS))

MPI_LAUNCHERS := $(foreach n,$(MPI_NAMES),$(n)=$(MPI_RUN_$(n)))
RUN_TESTS = BUILDDIR='$(B)' CC='$(CC)' MPI_LAUNCHERS='$(MPI_LAUNCHERS)' $(if $(PROVE),prove,$(error prove not found (Debian: perl); run 'make deps')) \
	-e '' $(PROVE_FLAGS)
check: programs tests
	$(RUN_TESTS) $(TESTS) $(EMU_TESTS) $(TEST_SCRIPTS)

check-full: programs tests $(SLOW_TESTS) $(if $(NVCC_FOUND),$(CUDA_OBJ))
	$(RUN_TESTS) $(TESTS) $(EMU_TESTS) $(TEST_SCRIPTS) $(SLOW_TESTS) $(SLOW_SCRIPTS)

# What tests/accepted.t holds every change against; the diff is what a reviewer reads.
accept: programs
	BUILDDIR='$(B)' bench/accepted_cases.sh results/accepted
	@git diff --stat -- results/accepted 2>/dev/null || true

gpu-tests: $(GPU_TESTS)
	@$(if $(CUDA_FOUND),,echo 'gpu-tests: CUDA is not built here (make showconfig)' >&2; exit 1)

cuda: $(CUDA_OBJ)
	@$(if $(NVCC_FOUND),,echo 'cuda: nvcc not found (make showconfig)' >&2; exit 1)
	@echo 'cuda: $(words $(CUDA_SRC)) sources compiled for $(CUDA_ARCHITECTURES:%=sm_%)'

emu: $(EMU_BIN) $(EMU_TESTS) $(EMU_RUNS)
	@$(if $(EMULATOR),,echo 'emu: not here: $(EMULATOR_LACKS)' >&2; exit 1)
	@echo 'emu: programs with emulated CUDA in $(B)/emu/bin'

bench-peers: $(PEERS) $(if $(MPI_NAMES),$(MESSAGE_PEERS))
	$(PEERS) $(PEER_OPTIONS)
	$(if $(MPI_RUN_$(MPI_NAME)),$(MPI_RUN_$(MPI_NAME)) -np 2 $(MESSAGE_PEERS))

# Program names are common words, so they are installed as flatpeak-NAME.
install: programs
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/share/doc/flatpeak'
	set -e; for program in $(notdir $(BIN)); do \
		install -m 755 $(B)/bin/$$program '$(DESTDIR)$(PREFIX)/bin'/flatpeak-$$program; done
	install -d '$(DESTDIR)$(PREFIX)/share/flatpeak/profiles/models'
	install -m 644 $(wildcard profiles/*.conf) '$(DESTDIR)$(PREFIX)/share/flatpeak/profiles'
	install -m 644 $(wildcard profiles/models/*.txt) '$(DESTDIR)$(PREFIX)/share/flatpeak/profiles/models'
	install -d '$(DESTDIR)$(PREFIX)/share/flatpeak/results'
	install -m 644 results/claims.tsv '$(DESTDIR)$(PREFIX)/share/flatpeak/results'
	install -m 644 LICENSE $(wildcard README.md CITATION.cff docs/*.md) '$(DESTDIR)$(PREFIX)/share/doc/flatpeak'

deps:
	@sh make/deps.sh

format:
	$(or $(CLANG_FORMAT),$(error clang-format not found)) -i $(FORMATTED)

format-check:
	$(or $(CLANG_FORMAT),$(error clang-format not found)) --dry-run -Werror $(FORMATTED)

showconfig:
	@echo 'flatpeak $(VERSION) in $(B)'
	@sed -n 's/^# //p' $(B)/config.mk
	@echo 'instruction sets: $(ISAS)'
	@echo 'flags: $(CFLAGS)'

reconfigure:
	@rm -f $(B)/config.mk
	@$(MAKE) --no-print-directory showconfig

# Only what the build made: BUILDDIR may be a folder of the user's.
clean:
	rm -rf $(addprefix $(B)/,$(OTHER_MPI) sockets obj bin tests cuda emu libflatpeak.a build_info.h flags objects config.mk config.args)
	@rmdir $(B) 2>/dev/null || true

help:
	@sed -n '/^# HELP/,$$s/^# \{0,1\}//p' Makefile | sed 1d

-include $(shell find $(B)/obj $(B)/cuda $(B)/emu -name '*.d' 2>/dev/null)

# HELP
# Targets
#   all           the programs, in BUILDDIR/bin (default)
#   check         every test but the exhaustive ones
#   check-full    all tests; an hour and more
#   accept        writes results/accepted anew: the peaks, counts and bits that check demands
#   cuda          compiles the CUDA sources
#   gpu-tests     tests for a machine with GPUs, in BUILDDIR/gpu; bench/gpu_check.sh runs them
#   emu           the programs with the CUDA sources compiled for the CPU, in BUILDDIR/emu/bin
#   bench-peers   measures our kernels against other libraries', with a pass or fail per bar
#   lib           the static library alone
#   install       programs as PREFIX/bin/flatpeak-NAME, profiles, claims, documents
#   deps          installs what is missing, with the system's package manager
#   showconfig    what was found on this machine
#   reconfigure   looks again
#   format        formats the sources in place; format-check only tells
#   clean         removes what was built
# Variables
#   BUILDDIR      where to build; build, or build-SANITIZE
#   CC CFLAGS     C compiler and its optimisation flags; cc, -O3 (-O1 under SANITIZE)
#   CXX CXXFLAGS  C++ compiler of the emulator; g++, -O2 (-O1 under SANITIZE)
#   V             1: prints the commands
#   WERROR        1: warnings are errors
#   SANITIZE      address,undefined or thread
#   CUDA MPI      0, 1 or auto: not, required, if found; CUDA=auto
#                 wants a GPU too, CUDA=1 wants NCCL, cuBLASLt and CUPTI
#   NCCL CUPTI    0: without them, where CUDA is built
#   NVCC MPICC    their compilers; found in PATH, in CUDA_HOME or /usr/local/cuda
#   JANSSON_PREFIX XXHASH_PREFIX
#                 take that library from PREFIX/include and PREFIX/lib
#   PREFIX DESTDIR
#                 where to install; /usr/local
#   ONLY          check runs these tests alone: ONLY='memory npy cuda_gemm' for
#                 tests/test_memory.c, tests/test_npy.c, tests/cuda_gemm.cu
#   PROVE_FLAGS   for check; -j2
#   PEER_OPTIONS  for bench-peers; '--only square --rounds 15'
