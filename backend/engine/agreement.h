/* The agreement of a communicator with several hosts: it connects backend/agree to memory, clock and channels. The
 * driver and the watch thread both feed it. So a rank that only computes also answers questions and learns of failures.
 * It sends control messages, and records claims and decisions in its host's segment. A communicator of one host has no
 * agreement (NULL). Any thread may call the functions, except those marked driver only. */
#pragma once
#include "backend/agree/agree.h"
#include "backend/base/status.h"
#include "include/tutti.h"

struct agreement;
struct remote_states;
/* Creates the agreement, which receives messages at once. The segment must be mapped. */
tutti_status agreement_create(tutti_comm *comm, struct agreement **out);
/* Frees the agreement without announcing that this rank leaves. NULL is allowed. */
void agreement_destroy(struct agreement *agreement);
/* Returns the bytes of each rank's account in its host's segment: the room for its records of failures. */
size_t agreement_account_bytes(void);

/* ---- driver only ---- */
/* Makes recorded deaths wait already before agreement_begin_operation, as they do while an operation is open. The
   driver calls it before the executor publishes an operation. */
void agreement_hold_deaths(struct agreement *agreement);
/* Reports to the agreement that this rank has begun the operation at the head of the run queue. */
void agreement_begin_operation(tutti_comm *comm);
/* Ends operation `number` in the agreement before it succeeds here, and sends the messages that are due. Returns false
   if it fails instead, with the coming decision; see agree_try_end_operation in agree/agree.h. */
bool agreement_try_end_operation(struct agreement *agreement, uint64_t number);
/* Reports to the agreement which ranks this rank waits for, which early messages have come, the records of this host,
   and the time. It does nothing if the last update is recent. */
void agreement_poll(tutti_comm *comm);
/* Reports a reason to fail that this rank has found, with cause->detail as its text. The agreement sets the reporter
   and the operation; cause->calls are optional. */
void agreement_propose_cause(struct agreement *agreement, const struct agree_cause *cause);
/* Turns the recorded deaths into reasons to fail. The driver first ends all operations that can still end. */
void agreement_accept_deaths(struct agreement *agreement);
/* Asks the awaited ranks, in its first call for this operation, about a late operation in which all ranks of this host
   have arrived. Returns true if its failure must wait, and the driver calls again later. Until then the awaited ranks
   can answer whether they have begun it, or a rank that knows more can fail first. They have a quarter of the
   operation's timeout for that, from 200 ms to 2 s, and twice as long while no rank is known to be missing. */
bool agreement_ask_before_timeout(struct agreement *agreement, uint64_t number, int64_t timeout_ms);
/* Sets absent[r] for each rank r that is known not to have begun operation `number`: ranks of other hosts, by their
   reports about themselves and about the ranks of their hosts. absent: [size of the group], false before. */
void agreement_list_absent(struct agreement *agreement, uint64_t number, bool *absent);
/* Informs the other hosts that this rank leaves. It sends a pending decision first. */
void agreement_announce_leaving(tutti_comm *comm);
/* Makes operation `operation` (from 0) and later ones fail on all ranks of this host, unless all its ranks have arrived
   in them. From now on no rank of the host begins to touch tensors of others. */
void agreement_close_roll_call(const struct agreement *agreement, uint64_t operation);
/* Makes the other ranks of this host read the records in the segment. */
void agreement_notify_host(const struct agreement *agreement);

/* ---- any thread ---- */
/* Records that the process of a rank has died. */
void agreement_record_lost(struct agreement *agreement, int rank);
/* Returns true if recorded deaths wait for agreement_accept_deaths. */
bool agreement_has_lost_ranks(const struct agreement *agreement);
/* Returns true if that rank has left in good order. */
bool agreement_rank_has_left(const struct agreement *agreement, int rank);
/* Returns the states of ranks of other hosts, which the agreement owns. */
struct remote_states *agreement_get_states(struct agreement *agreement);
/* Returns true from when a reason to fail is known. The decision then follows without further calls. */
bool agreement_is_failing(const struct agreement *agreement);
/* Returns true once the decision is known. agreement_get_decision may be called from then on. */
bool agreement_has_decided(const struct agreement *agreement);
void agreement_get_decision(struct agreement *agreement, struct agree_cause *out);
