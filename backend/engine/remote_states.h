/* The states of the ranks of other hosts, in a group of several hosts. A process asks for them over the control channel
 * when `tutti status` or an error text needs them. The watch threads answer, so also ranks that hang do, but no stopped
 * process. The program of a rank tells its line later than the watch thread answers, so an asker asks repeatedly. */
#pragma once
#include "backend/agree/agree.h"
#include "backend/control/channel.h"
#include "backend/engine/rank_state.h"
#include <pthread.h>
#include <stdatomic.h>

/* All ranks are asked at most once in this time, and an asker that waits for an answer asks again after it. */
enum { ASK_AGAIN_MS = 20 };
/* The types of messages, behind those of agreement.c. */
enum { STATE_QUESTION = AGREE_MESSAGES + 1, STATE_ANSWER };
/* The last answer of a rank, and when it came; at_ms is 0 without one. */
struct remote_state { int64_t at_ms; struct rank_state state; };
struct remote_states {
    const tutti_comm *comm;
    /* The channel of the agreement, which sets it once it is open, and owns both. */
    struct channel *channel;
    /* When all ranks were asked last. */
    _Atomic int64_t asked_ms;
    /* Guards `of_rank`, which has an entry for each rank, and is NULL until this process asks for the first time. */
    pthread_mutex_t lock;
    struct remote_state *of_rank;
};
/* Initialises the states of a communicator whose channel opens next. */
void remote_states_init(struct remote_states *states, const tutti_comm *comm);
/* Frees the states. The channel is closed. */
void remote_states_finish(struct remote_states *states);
/* Asks a rank of another host for its state. Any thread. */
void remote_states_ask(struct remote_states *states, int rank);
/* Asks all ranks of other hosts, if this rank does that: each rank of a small group does, so a stopped one does not
   matter, and only the first rank of a host in a group with many pairs. Any thread. */
void remote_states_ask_all(struct remote_states *states);
/* Copies the last answer of a rank. Returns false if it has not answered since since_ms (a clock_ms()). Any thread. */
bool remote_states_find(struct remote_states *states, int rank, int64_t since_ms, struct remote_state *out);
/* Handles a question or an answer of rank `from`, on the watch thread. */
void remote_states_on_message(struct remote_states *states, int from, unsigned type, const void *bytes, size_t length);
