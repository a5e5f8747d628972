/* Which variant of the CPU kernels runs. All variants give the same bits. */
#pragma once

enum isa { ISA_GENERIC, ISA_SCALAR, ISA_AVX2, ISA_AVX512, ISA_COUNT };

/* "generic" (any CPU), "scalar" (one lane, fused multiply-add), "avx2", "avx512". */
const char *isa_name(enum isa isa);

/* True when this build has the variant and this CPU can run it. */
int isa_available(enum isa isa);

/* The widest available variant, unless FLATPEAK_ISA or isa_force says otherwise; decided once. */
enum isa isa_selected(void);

/* For tests: every later launch uses this variant. 0, or -1 when it is not available. */
int isa_force(enum isa isa);

/* Reads FLATPEAK_ISA. 0, or -1 with a message naming the value and what is allowed here. */
int isa_from_environment(char *error, int size);
