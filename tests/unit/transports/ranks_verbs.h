/* Ranks over verbs on the device that is none (tests/verbs), each as if it were a process of its own. */
#pragma once
#include "tests/unit/transports/ranks_fabric.h"
#include "tests/verbs/fake.h"

#ifdef FEW
enum { VERBS_LEAST = 2, VERBS_MOST = 3 };
#else
enum { VERBS_LEAST = 1, VERBS_MOST = 4 };
#endif
/* The controls of that device, as it is opened by dlopen. */
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
bool ranks_verbs_open(void); /* first; false: there is none, and it is said why */
void ranks_verbs_apart(int size, enum waiting waiting, body *each);
/* Both send 8 bytes to each other, then both receive them, as an all-reduce of two does. */
void rank_swap(struct rank *me, uint64_t name);
void rank_connect(struct rank *me); /* both do so, by a message each way */
/* Before and after a test: the device is well, and nothing of it is left. */
int ranks_verbs_begin(void **state);
int ranks_verbs_end(void **state);
