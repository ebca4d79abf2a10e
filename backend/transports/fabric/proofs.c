/* How two processes prove to each other that they are whom they say, when a fabric connects them. Their greetings are
 * messages that need no answer before the next, so there is no challenge: each endpoint of a process has a turn, which
 * only grows, a proof covers it, and a greeting of an earlier turn than the latest that was heard is over. A stranger
 * that repeats what it has seen brings a turn that is known, or over. */
#include "backend/base/log.h"
#include "backend/transports/fabric/fabric.h"
#include <stdatomic.h>
#include <string.h>

/* Across the lives of all fabrics of this process: what was said in an earlier one is over. */
static uint64_t next_turn(void)
{
    static _Atomic uint64_t turns;
    return atomic_fetch_add(&turns, 1) + 1;
}
tutti_status endpoint_introduce(const struct fabric *fabric, struct endpoint *e, const unsigned char process[16],
    const struct key_id *key)
{
    memcpy(e->process, process, sizeof e->process);
    e->key = *key;
    e->turn = next_turn();
    if (key_of_pair(key, fabric->process, process, &e->pair)) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM, "the key that its process shares with this one is not known any more");
}
void greeting_begin(const struct fabric *fabric, const struct endpoint *e, struct greeting *out)
{
    *out = (struct greeting){ .key = e->key, .turn = e->turn };
    memcpy(out->from, fabric->process, sizeof out->from);
    memcpy(out->to, e->process, sizeof out->to);
}
/* Whoever sends it may send many, so they are told of once. */
static bool refuse(struct fabric *fabric, const char *why)
{
    if (!fabric->refused)
        LOG(WARN, "%s: a greeting was refused: %s (a stranger, or a host with another TUTTI_SECRET_FILE)",
            fabric->operations->name, why);
    fabric->refused = true;
    return false;
}
bool greeting_is_proved(struct fabric *fabric, const struct greeting *said, const void *text, size_t bytes,
    const unsigned char proof[PROOF_BYTES])
{
    struct pair_key pair;
    if (memcmp(said->to, fabric->process, sizeof said->to) != 0) return false;
    if (!key_of_pair(&said->key, said->from, fabric->process, &pair)) return refuse(fabric, "its key is unknown");
    bool right = proof_check(&pair, text, bytes, proof);
    explicit_bzero(&pair, sizeof pair);
    return right || refuse(fabric, "its proof is wrong");
}
bool greeting_is_over(const struct fabric *fabric, const struct greeting *said)
{
    for (const struct endpoint *e = fabric->endpoints; e; e = e->next)
        if (said->turn < e->least_turn && memcmp(e->process, said->from, sizeof e->process) == 0) return true;
    return false;
}
