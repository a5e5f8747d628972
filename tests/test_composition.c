/* Every implementation of every family in the composed step, and a few drawn together: the bits of
 * the standard step in their declared orders, on 1, 2 and 4 ranks. All of them, for fifty steps:
 * tests/slow_composition.c. */
#include "tests/composition_case.h"
#include "tests/tap.h"

static void test_layout(int ranks, int sequence, int experts, int vocab)
{
    struct compositions all;
    if (compositions_open(&all, ranks, sequence, experts, vocab, 2))
        tap_ok(false, "P=%d: no memory for the outcomes", ranks);
    else
        compositions_check_each(&all, 6, (uint64_t)ranks);
    compositions_close(&all);
}

int main(void)
{
    test_layout(1, 1, 1, 1);
    test_layout(2, 1, 2, 2);
    test_layout(4, 2, 4, 4);
    return tap_done();
}
