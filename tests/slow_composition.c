/* All compositions there are, fifty steps each, on 1, 2 and 4 ranks: the bits of the standard step
 * in their declared orders; and the standard step in every order, against itself in its own. */
#include "tests/composition_case.h"
#include "tests/tap.h"

enum { STEPS = 50 };

static void test_layout(int ranks, int sequence, int experts, int vocab)
{
    struct compositions all;
    if (compositions_open(&all, ranks, sequence, experts, vocab, STEPS)) {
        tap_ok(false, "P=%d: no memory for the outcomes", ranks);
    } else {
        for (int64_t i = 0; i < compositions_count(&all); i++)
            compositions_check(&all, compositions_at(&all, i));
        for (int d = 0; d < all.dispatchers; d++)
            for (int v = 0; v < all.vocabs; v++)
                compositions_check_own(&all, d, v);
    }
    compositions_close(&all);
}

int main(void)
{
    test_layout(1, 1, 1, 1);
    test_layout(2, 1, 2, 2);
    test_layout(4, 2, 4, 4);
    return tap_done();
}
