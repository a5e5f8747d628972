/* The choice of boundaries. Forward order, because a boundary made early stays longest before
 * backward comes back to it: the longer it is gone, the more the device gains, and the more time
 * its copy has. */
#include "ops/sco_policy.h"

int64_t sco_pinned_bytes(int64_t bytes, enum pinned_rounding rounding)
{
    int64_t power = 1;
    if (rounding == PINNED_EXACT || bytes <= 0)
        return bytes;
    while (power < bytes)
        power *= 2;
    return power;
}

struct sco_choice sco_choose(const int64_t *boundary_bytes, int64_t boundaries,
    const struct sco_budget *budget, bool *chosen)
{
    struct sco_choice choice = {0};
    for (int64_t i = 0; i < boundaries; i++) {
        int64_t bytes = boundary_bytes[i];
        int64_t pinned = sco_pinned_bytes(bytes, budget->rounding);
        /* Differences, so that no sum can leave 64 bits. */
        bool fits = budget->bytes < 0 || bytes <= budget->bytes - choice.logical_bytes;
        if (budget->pinned_limit_bytes > 0)
            fits = fits && pinned <= budget->pinned_limit_bytes - choice.pinned_bytes;
        if (chosen)
            chosen[i] = fits;
        if (!fits)
            continue;
        choice.count++;
        choice.logical_bytes += bytes;
        choice.pinned_bytes += pinned;
    }
    return choice;
}
