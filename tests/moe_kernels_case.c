#include "tests/moe_kernels_case.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/isa.h"
#include "tests/kernel_run.h"

/* ---- arrays of either type ---------------------------------------------------------------- */

static float value_at(int64_t index)
{
    uint32_t bits = (uint32_t)index * 2654435761u;
    bits ^= bits >> 15;
    bits *= 2246822519u;
    bits ^= bits >> 13;
    return ldexpf((float)(int32_t)bits, -31 + (int)(bits % 13) - 6);
}

void array_set(struct array *a, int64_t i, float value)
{
    if (a->type == DTYPE_BF16)
        ((uint16_t *)a->values)[i] = f32_to_bf16(value);
    else
        ((float *)a->values)[i] = value;
}

float array_get(const struct array *a, int64_t i)
{
    return a->type == DTYPE_BF16 ? bf16_to_f32(((uint16_t *)a->values)[i])
                                 : ((float *)a->values)[i];
}

struct array array_of(enum dtype type, int64_t count, int64_t seed)
{
    struct array a = {type, count, malloc((size_t)((count + ARRAY_GUARD) * dtype_bytes(type)))};
    if (!a.values)
        abort();
    for (int64_t i = 0; i < count + ARRAY_GUARD; i++)
        array_set(&a, i, value_at(seed * 1000003 + i));
    return a;
}

struct array array_copy(const struct array *a)
{
    struct array copy = array_of(a->type, a->count, 0);
    memcpy(copy.values, a->values, (size_t)((a->count + ARRAY_GUARD) * dtype_bytes(a->type)));
    return copy;
}

void array_release(struct array *arrays[], int count)
{
    for (int i = 0; i < count; i++)
        free(arrays[i]->values);
}

/* Elements whose bits differ, the guard included; every NaN is one NaN. */
static int64_t array_faults(const struct array *got, const struct array *want)
{
    int64_t faults = 0;
    for (int64_t i = 0; i < want->count + ARRAY_GUARD; i++) {
        float a = array_get(got, i), b = array_get(want, i);
        faults += f32_bits(a) != f32_bits(b) && !(isnan(a) && isnan(b));
    }
    return faults;
}

static uint32_t random_state = 1;

int32_t array_random_below(int64_t end)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int32_t)((random_state >> 8) % (uint32_t)end);
}

int32_t *array_permutation(int64_t count)
{
    int32_t *list = malloc((size_t)(count + 1) * sizeof *list);
    if (!list)
        abort();
    for (int64_t i = 0; i < count; i++)
        list[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        int32_t j = array_random_below(i + 1), held = list[i];
        list[i] = list[j];
        list[j] = held;
    }
    return list;
}

/* ---- every variant ------------------------------------------------------------------------ */

int64_t launch_faults(const struct launch *l)
{
    int64_t faults = 0;
    struct array before[2];
    for (int i = 0; i < 2 && l->out[i]; i++)
        before[i] = array_copy(l->out[i]);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int width = 1; isa_available((enum isa)isa) && width <= MOE_KERNEL_WIDTHS; width++) {
            isa_force((enum isa)isa);
            for (int i = 0; i < 2 && l->out[i]; i++)
                memcpy(l->out[i]->values, before[i].values,
                    (size_t)((before[i].count + ARRAY_GUARD) * dtype_bytes(before[i].type)));
            kernel_run(l->pool, width, l->kernel, l->args);
            for (int i = 0; i < 2 && l->out[i]; i++)
                faults += array_faults(l->out[i], l->want[i]);
        }
    for (int i = 0; i < 2 && l->out[i]; i++)
        free(before[i].values);
    return faults;
}
