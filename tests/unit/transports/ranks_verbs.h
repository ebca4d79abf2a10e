/* Ranks over verbs on the fake provider (tests/verbs), each with a fabric of its own, as processes have. */
#pragma once
#include "tests/unit/transports/ranks_fabric.h"
#include "tests/verbs/fake.h"

#ifdef FEW
enum { VERBS_LEAST = 2, VERBS_MOST = 3 };
#else
enum { VERBS_LEAST = 1, VERBS_MOST = 4 };
#endif
/* The controls of the fake provider, which ranks_verbs_open looks up with dlsym. */
#define FAKE_CONTROLS(X) \
    X(fake_reset) X(fake_count) X(fake_fail_call) X(fake_fail_request) X(fake_set_faults) X(fake_limits) \
    X(fake_set_limits) X(fake_set_port) X(fake_break_device) X(fake_break_pair) X(fake_unplug_pair) X(fake_left) \
    X(fake_trace) X(fake_traced)
struct fake_controls {
#define X(name) __typeof__(&name) name;
    FAKE_CONTROLS(X)
#undef X
};
extern struct fake_controls fake;
extern struct fabric verbs_fabrics[VERBS_MOST];
/* Opens the fake provider. Call it before the other functions. false: verbs cannot be used here; the reason is
   printed. */
bool ranks_verbs_open(void);
/* Runs `each` on threads with a fabric each. */
void ranks_verbs_apart(int size, enum waiting waiting, body *each);
/* Ranks 0 and 1 send 8 bytes to each other. */
void rank_swap(struct rank *me, uint64_t name);
/* Opens the connection of ranks 0 and 1 by a message each way. */
void rank_connect(struct rank *me);
/* The setup of a test resets the fake provider, so that it works without faults. The teardown fails if the test has
   left an object of it. */
int ranks_verbs_begin(void **state);
int ranks_verbs_end(void **state);
