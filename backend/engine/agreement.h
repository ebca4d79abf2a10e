/* The agreement of a communicator with several hosts: backend/agree with what it needs of the world. It is fed by the
 * driver, and by the watch thread: so a rank that only computes answers questions and learns of failures. It speaks
 * over the control channels, and claims and decides in its host's segment. A communicator of one host has none: NULL.
 * All functions are of any thread, but those of the driver. */
#pragma once
#include "backend/agree/agree.h"
#include "backend/base/status.h"
#include "include/tutti.h"

struct agreement;
tutti_status agreement_create(tutti_comm *comm, struct agreement **out); /* its segment is mapped; it listens at once */
void agreement_destroy(struct agreement *agreement); /* may be NULL; sends no word of leaving */
size_t agreement_account_bytes(void);                      /* of each rank in its host's segment */

/* ---- driver only ---- */
void agreement_announce(struct agreement *agreement);            /* the executor is about to announce an operation, */
void agreement_begin(tutti_comm *comm);                    /* and has */
bool agreement_may_end(struct agreement *agreement, uint64_t number); /* the last look before success; see agree.h */
/* Whom this rank waits for now, and what has come and met nothing; and time passes. Costs nothing if it was called a
   moment ago. */
void agreement_poll(tutti_comm *comm);
/* Records a reason to fail that this rank has found. `detail` is its text; the calls may be NULL. */
void agreement_fail(struct agreement *agreement, const struct agree_cause *cause);
/* Deaths that are noted are reasons to fail only now: what could end by then has. */
void agreement_accept_deaths(struct agreement *agreement);
/* This operation is late, and all of this host have come. true: look again; those that this rank waits for are just
   being asked whether they have begun it, or another rank may know who has not and fail before this one. */
bool agreement_asks(struct agreement *agreement, uint64_t number);
/* Marks the ranks of other hosts, and those that they miss on theirs, that have not begun it as far as is known. */
void agreement_list_absent(struct agreement *agreement, uint64_t number, bool *absent);
void agreement_leave(tutti_comm *comm);                    /* tells the other hosts, a decision that is due first */
/* No rank of this host succeeds in that operation (from 0) or a later one that not all of them have begun yet, and
   nobody begins to touch tensors of others. */
void agreement_close_roll_call(const struct agreement *agreement, uint64_t operation);
void agreement_tell_host(const struct agreement *agreement); /* its ranks are to look at what is said in the segment */

/* ---- any thread ---- */
void agreement_record_lost(struct agreement *agreement, int rank); /* its process is gone */
bool agreement_has_lost(const struct agreement *agreement);      /* deaths to accept */
bool agreement_has_left(const struct agreement *agreement, int rank);           /* of another host: in good order */
bool agreement_is_failing(const struct agreement *agreement);    /* a reason is known; the decision comes by itself */
bool agreement_is_over(const struct agreement *agreement);       /* the decision is known */
void agreement_get_decision(struct agreement *agreement, struct agree_cause *out); /* once agreement_is_over */
