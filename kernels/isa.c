/* Which variant of the CPU kernels runs: what this build has, what this CPU can do, and what
 * FLATPEAK_ISA asks for.
 *
 * The choice is the one piece of process-wide state in kernels/: a kernel is a constant and has no
 * context that could carry it. It is a single atomic, and because every variant gives the same bits
 * it can change how fast a result is made but not the result. */
#include "kernels/isa.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOT_CHOSEN (-1)

static atomic_int chosen = NOT_CHOSEN;

const char *isa_name(enum isa isa)
{
    static const char *const names[ISA_COUNT] = {
        [ISA_GENERIC] = "generic",
        [ISA_SCALAR] = "scalar",
        [ISA_AVX2] = "avx2",
        [ISA_AVX512] = "avx512",
    };
    return names[isa];
}

#ifdef __x86_64__
/* The features are those of the flags that the Makefile gives each variant: x86-64-v3, x86-64-v4.
 * __builtin_cpu_supports also asks whether the operating system saves the wide registers. */
static int has_fma(void)
{
    return __builtin_cpu_supports("avx") && __builtin_cpu_supports("fma");
}

static int has_avx2(void)
{
    return has_fma() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

int isa_available(enum isa isa)
{
    switch (isa) {
    case ISA_GENERIC:
        return 1;
#ifdef __x86_64__
    case ISA_SCALAR:
        return has_fma();
    case ISA_AVX2:
        return has_avx2();
    case ISA_AVX512:
        return has_avx512();
#endif
    default:
        return 0;
    }
}

static enum isa widest(void)
{
    for (int isa = ISA_COUNT - 1; isa > ISA_GENERIC; isa--)
        if (isa_available((enum isa)isa))
            return (enum isa)isa;
    return ISA_GENERIC;
}

/* The variant of that name, or ISA_COUNT. */
static enum isa find(const char *name)
{
    int isa = 0;
    while (isa < ISA_COUNT && strcmp(name, isa_name((enum isa)isa)))
        isa++;
    return (enum isa)isa;
}

/* FLATPEAK_ISA, or NULL where it is absent or empty. */
static const char *asked_for(void)
{
    const char *name = getenv("FLATPEAK_ISA");
    return name && *name ? name : NULL;
}

int isa_from_environment(char *error, int size)
{
    const char *name = asked_for();
    enum isa isa = name ? find(name) : widest();
    if (isa < ISA_COUNT && isa_available(isa)) {
        atomic_store(&chosen, (int)isa);
        return 0;
    }
    char allowed[64] = "";
    for (int i = 0; i < ISA_COUNT; i++) {
        size_t used = strlen(allowed);
        if (isa_available((enum isa)i))
            snprintf(allowed + used, sizeof allowed - used, "%s%s", used ? ", " : "",
                isa_name((enum isa)i));
    }
    snprintf(error, (size_t)size, "FLATPEAK_ISA: '%s' %s; allowed here: %s", name,
        isa < ISA_COUNT ? "cannot run on this CPU" : "is not an instruction set", allowed);
    return -1;
}

int isa_force(enum isa isa)
{
    if (!isa_available(isa))
        return -1;
    atomic_store(&chosen, (int)isa);
    return 0;
}

/* A value of FLATPEAK_ISA that cannot be met is refused by the program (isa_from_environment)
 * before the first kernel runs; here, with no way to fail, it counts as absent. */
enum isa isa_selected(void)
{
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa != NOT_CHOSEN)
        return (enum isa)isa;
    const char *name = asked_for();
    enum isa wanted = name ? find(name) : ISA_COUNT;
    if (wanted == ISA_COUNT || !isa_available(wanted))
        wanted = widest();
    int before = NOT_CHOSEN;
    /* Two threads may arrive here at once; the first one decides. */
    if (!atomic_compare_exchange_strong(&chosen, &before, (int)wanted))
        return (enum isa)before;
    return wanted;
}
