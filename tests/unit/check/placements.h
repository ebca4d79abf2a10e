/* Layouts for proofs of algorithms: all layouts of equal hosts up to MOST_EQUAL hosts of MOST_EQUAL ranks, all layouts
   of up to 4 hosts of up to 3 ranks, and layouts in which the ranks of a host are not consecutive: round robin, in
   pairs, at random. */
#pragma once
#include "tests/unit/schedule/plans.h"

#ifdef FEW
enum { MOST_EQUAL = 4, SHUFFLED = 10 };
#else
enum { MOST_EQUAL = 6, SHUFFLED = 40 };
#endif
enum { MOST_UNEQUAL = 4, MOST_UNEVEN_RANKS = 3 };
typedef void layout_visitor(const struct layout *l);
static struct hosts visited;

static inline void visit_equal(layout_visitor *visit)
{
    for (int hosts = 1; hosts <= MOST_EQUAL; hosts++)
        for (int ranks = 1; ranks <= MOST_EQUAL; ranks++) {
            int sizes[MOST_EQUAL];
            for (int h = 0; h < hosts; h++) sizes[h] = ranks;
            visit(hosts_of(&visited, sizes, hosts));
        }
}
static inline bool are_equal(const int *sizes, int hosts)
{
    for (int h = 1; h < hosts; h++)
        if (sizes[h] != sizes[0]) return false;
    return true;
}
/* The digits of `code` are the sizes of hosts, less 1. */
static inline void visit_unequal(layout_visitor *visit)
{
    for (int hosts = 2, codes = 9; hosts <= MOST_UNEQUAL; hosts++, codes *= MOST_UNEVEN_RANKS)
        for (int code = 0; code < codes; code++) {
            int sizes[MOST_UNEQUAL];
            for (int h = 0, rest = code; h < hosts; h++, rest /= MOST_UNEVEN_RANKS)
                sizes[h] = 1 + rest % MOST_UNEVEN_RANKS;
            if (!are_equal(sizes, hosts)) visit(hosts_of(&visited, sizes, hosts));
        }
}
/* Places the ranks, and then pairs of ranks, round robin over 2 to 4 hosts. Some hosts may have a rank less. */
static inline void visit_interleaved(layout_visitor *visit)
{
    for (int hosts = 2; hosts <= 4; hosts++)
        for (int ranks = hosts; ranks <= 3 * hosts; ranks++) {
            int round_robin[MOST_PLACED], pairs[MOST_PLACED];
            for (int r = 0; r < ranks; r++) {
                round_robin[r] = r % hosts;
                pairs[r] = r / 2 % hosts;
            }
            visit(placed(&visited, round_robin, ranks));
            visit(placed(&visited, pairs, ranks));
        }
}
static inline void visit_shuffled(layout_visitor *visit)
{
    uint64_t random = 662607015;
    for (int i = 0; i < SHUFFLED; i++) {
        int host[MOST_PLACED], hosts = 2 + (int)(xorshift_next(&random) % 4),
                               ranks = hosts + (int)(xorshift_next(&random) % 6);
        for (int r = 0; r < ranks; r++) host[r] = (int)(xorshift_next(&random) >> 16 & 0xffff) % hosts;
        visit(placed(&visited, host, ranks));
    }
}
static inline void visit_all(layout_visitor *visit)
{
    visit_equal(visit);
    visit_unequal(visit);
    visit_interleaved(visit);
    visit_shuffled(visit);
}
