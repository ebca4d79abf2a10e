/* What runs when nobody chose. The ranks are on one host, so the host-memory algorithms always win over messages;
 * what is left to decide is whether reading everything everywhere (one round) beats sharing the reduction out (two
 * rounds). Two rounds read 2(p - 1)/p of the message instead of p - 1 times it: with up to three ranks the saved
 * round is worth more at every size, and with more ranks for messages that fit in the first-level cache. Shared tensors
 * are read where they lie and not copied first, so two rounds move less than half of what one does, for two ranks
 * too. */
#include "backend/collectives/collectives.h"
#include <assert.h>

enum { FEW_RANKS = 3, SMALL_BYTES = 16 * 1024 };

static bool takes_one_round(int size, size_t bytes, bool shared)
{
    return bytes <= SMALL_BYTES || (size <= FEW_RANKS && !shared);
}
static const char *default_name(enum family family, int size, size_t bytes, bool shared)
{
    switch (family) {
    case ALLREDUCE: return takes_one_round(size, bytes, shared) ? "one_shot" : "two_shot";
    case REDUCE: return takes_one_round(size, bytes, shared) ? "read" : "two_shot_read";
    case GATHER: return "write";                                       /* all ranks copy at once, not the root alone */
    default: return "read";
    }
}
const struct algorithm *collectives_select(enum family family, int size, size_t bytes, bool uneven, bool shared)
{
    const struct algorithm *chosen = collectives_find(family, default_name(family, size, bytes, shared));
    assert(chosen && !(uneven && chosen->equal_chunks));
    (void)uneven;
    return chosen;
}
