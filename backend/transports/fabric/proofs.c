/* How two processes prove their identity when a fabric connects them. A handshake message needs no answer, so it has no
 * challenge. Instead each endpoint of a process has a turn, which only grows and which the proof covers. A message of
 * an earlier turn than the latest one is outdated. A fabric forgets the turns when it ends, so each message also names
 * the life of the fabric that it is for. A stranger that repeats a message of an earlier connection has an outdated
 * turn or another life. */
#include "backend/base/log.h"
#include "backend/transports/fabric/fabric.h"
#include <stdatomic.h>
#include <string.h>

/* Returns a number that grows across all fabrics of this process and all their lives. */
static uint64_t fabric_handshake_next_turn(void)
{
    static _Atomic uint64_t turns;
    return atomic_fetch_add(&turns, 1) + 1;
}
tutti_status endpoint_init_identity(const struct fabric *fabric, struct endpoint *endpoint,
    const unsigned char process[16], uint64_t life, const struct key_id *key)
{
    memcpy(endpoint->process, process, sizeof endpoint->process);
    endpoint->key = *key;
    endpoint->life = life;
    endpoint->turn = fabric_handshake_next_turn();
    if (pair_key_derive(key, fabric->process, process, &endpoint->pair_key)) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM, "the key that its process shares with this one is no longer known");
}
void fabric_handshake_init(const struct fabric *fabric, const struct endpoint *endpoint, struct fabric_handshake *out)
{
    *out = (struct fabric_handshake){ .key = endpoint->key, .turn = endpoint->turn, .life = endpoint->life };
    memcpy(out->from, fabric->process, sizeof out->from);
    memcpy(out->to, endpoint->process, sizeof out->to);
}
/* Logs why a handshake was refused, and returns false. It logs only the first refusal, because a stranger may cause
   many. */
static bool fabric_handshake_log_refusal(const struct fabric *fabric, const char *why)
{
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&logged))
        LOG(WARN,
            "%s: a handshake was refused: %s (from another program, or from a host with another TUTTI_SECRET_FILE)",
            fabric->operations->name, why);
    return false;
}
bool fabric_handshake_is_proved(const struct fabric *fabric, const struct fabric_handshake *handshake,
    const void *message, size_t bytes, const unsigned char proof[PROOF_BYTES])
{
    struct pair_key pair;
    if (memcmp(handshake->to, fabric->process, sizeof handshake->to) != 0 || handshake->life != fabric->life)
        return false;
    if (!pair_key_derive(&handshake->key, handshake->from, fabric->process, &pair))
        return fabric_handshake_log_refusal(fabric, "its key is unknown");
    bool is_right = proof_check(&pair, message, bytes, proof);
    explicit_bzero(&pair, sizeof pair);
    return is_right || fabric_handshake_log_refusal(fabric, "its proof is wrong");
}
bool fabric_handshake_is_outdated(const struct fabric *fabric, const struct fabric_handshake *handshake)
{
    for (const struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        if (handshake->turn < endpoint->least_turn
            && memcmp(endpoint->process, handshake->from, sizeof endpoint->process) == 0)
            return true;
    return false;
}
