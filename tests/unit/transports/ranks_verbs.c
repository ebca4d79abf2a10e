/* Opens the fake provider (tests/verbs) in place of libibverbs, by the setting TUTTI_VERBS. */
#include "tests/unit/transports/ranks_verbs.h"
#include "backend/transports/verbs/verbs.h"
#include <dlfcn.h>
#include <string.h>

struct fake_controls fake;
struct fabric verbs_fabrics[VERBS_MOST];

bool ranks_verbs_open(void)
{
    setenv("TUTTI_VERBS", FAKE_VERBS, 1);
    for (int r = 0; r < VERBS_MOST; r++) verbs_fabrics[r] = (struct fabric)FABRIC(&verbs_operations);
    void *opened = dlopen(FAKE_VERBS, RTLD_NOW);
    if (!opened) return false;
#define X(name) \
    fake.name = (__typeof__(fake.name))dlsym(opened, #name); \
    if (!fake.name) return false;
    FAKE_CONTROLS(X)
#undef X
    return fabric_is_there("verbs", verbs_describe);
}
void ranks_verbs_apart(int size, enum waiting waiting, body *each)
{
    ranks_fabric_apart(verbs_fabrics, size, waiting, each);
}
void rank_swap(struct rank *me, uint64_t name)
{
    unsigned char out[8], in[8];
    struct transfer x[2];
    struct piece pieces[2];
    memset(out, me->rank + 1, sizeof out);
    rank_send(me, &x[0], 1 - me->rank, name, &pieces[0], out, sizeof out);
    rank_recv(me, &x[1], 1 - me->rank, name, &pieces[1], in, sizeof in);
    rank_await(me, x, 2);
    REQUIRE(x[0].state == TRANSFER_DONE && x[1].state == TRANSFER_DONE && in[0] == 2 - me->rank);
}
void rank_connect(struct rank *me)
{
    rank_swap(me, 0);
    rank_settle(me);
    rank_meet(me);
}
int ranks_verbs_begin(void **state)
{
    (void)state;
    fake.fake_reset();
    return 0;
}
int ranks_verbs_end(void **state)
{
    (void)state;
    return fake.fake_left() ? -1 : 0;
}
