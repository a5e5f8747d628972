/* Fifty steps of compositions on 1, 2 and 4 ranks: the bits of the standard step in their declared
 * orders; and the standard step in every order, against itself in its own.
 *
 * Every dispatch with every vocabulary meets each way to treat boundaries and each optimizer once,
 * in pairs that move on from one to the next, so that all pairs occur: 240 compositions to a
 * layout. With the argument `all` it is all 960. */
#include <string.h>
#include "tests/composition_case.h"
#include "tests/tap.h"

enum { STEPS = 50 };

/* Boundaries and optimizers make no sum: they are met in turn. */
static bool is_met(const struct compositions *all, struct composition c)
{
    return (c.dispatch + c.vocab + c.checkpoint) % all->optimizers == c.optimizer;
}

static void test_layout(int ranks, int sequence, int experts, int vocab, bool whole)
{
    struct compositions all;
    if (compositions_open(&all, ranks, sequence, experts, vocab, STEPS)) {
        tap_ok(false, "P=%d: no memory for the outcomes", ranks);
    } else {
        for (int64_t i = 0; i < compositions_count(&all); i++)
            if (whole || is_met(&all, compositions_at(&all, i)))
                compositions_check(&all, compositions_at(&all, i));
        for (int d = 0; d < all.dispatchers; d++)
            for (int v = 0; v < all.vocabs; v++)
                compositions_check_own(&all, d, v);
    }
    compositions_close(&all);
}

int main(int argc, char **argv)
{
    bool whole = argc > 1 && !strcmp(argv[1], "all");
    test_layout(1, 1, 1, 1, whole);
    test_layout(2, 1, 2, 2, whole);
    test_layout(4, 2, 4, 4, whole);
    return tap_done();
}
