/* How a family of kernels is built once per instruction set and picked at run time.
 *
 * kernels/X_isa.c is compiled once per variant with ISA_NAME set to the variant's name. Each
 * compilation defines one constant table of its functions:
 *
 *     const struct x_functions ISA_VARIANT(x_functions) = {...};    x_functions_avx2, ...
 *
 * and kernels/X.c, compiled once for any CPU, gathers the tables and picks one per call:
 *
 *     ISA_DECLARE(struct x_functions, x_functions);
 *     static const struct x_functions *const variants[ISA_COUNT] = ISA_TABLE(x_functions);
 *     ... variants[isa_selected()]->function(...)
 *
 * A variant that this architecture does not build stays NULL; isa_selected() never names it. */
#pragma once
#include "kernels/isa.h"

#define ISA_PASTE_EXPANDED(name, isa) name##_##isa
#define ISA_PASTE(name, isa) ISA_PASTE_EXPANDED(name, isa)

/* The name of this compilation's table. */
#define ISA_VARIANT(name) ISA_PASTE(name, ISA_NAME)

#ifdef __x86_64__
#define ISA_DECLARE(type, name)                                                                    \
    extern const type name##_generic, name##_scalar, name##_avx2, name##_avx512
#define ISA_TABLE(name)                                                                            \
    {                                                                                              \
        [ISA_GENERIC] = &name##_generic, [ISA_SCALAR] = &name##_scalar, [ISA_AVX2] = &name##_avx2, \
        [ISA_AVX512] = &name##_avx512                                                              \
    }
#else
#define ISA_DECLARE(type, name) extern const type name##_generic
#define ISA_TABLE(name)                                                                            \
    {                                                                                              \
        [ISA_GENERIC] = &name##_generic                                                            \
    }
#endif
