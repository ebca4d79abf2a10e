/* The agreement of a communicator with several hosts: backend/agree with what it needs of the world. It is fed by the
 * driver, and by the watch thread: so a rank that only computes answers questions and learns of failures. It speaks
 * over the control channels, and claims and decides in its host's segment. A communicator of one host has none: NULL.
 * All functions are of any thread, but those of the driver. */
#pragma once
#include "backend/agree/agree.h"
#include "backend/base/status.h"
#include "include/tutti.h"

struct accord;
tutti_status accord_create(tutti_comm *comm, struct accord **out);     /* its segment is mapped; it listens at once */
void accord_destroy(struct accord *accord);             /* NULL is fine; nobody is told that this rank leaves */
size_t accord_account_bytes(void);                      /* of each rank in its host's segment */

/* ---- driver only ---- */
void accord_announce(struct accord *accord);            /* the executor is about to announce an operation, */
void accord_begin(tutti_comm *comm);                    /* and has */
bool accord_may_end(struct accord *accord, uint64_t number);           /* the last look before success; see agree.h */
/* Whom this rank waits for now, and what has come and met nothing; and time passes. Costs nothing if it was called a
   moment ago. */
void accord_look(tutti_comm *comm);
/* What this rank knows to be a reason to fail. The detail is what it says of it; calls may be left out. */
void accord_fail(struct accord *accord, const struct agree_cause *cause);
/* Deaths that are noted are reasons to fail only now: what could end by then has. */
void accord_accept_deaths(struct accord *accord);
/* This operation is late, and all of this host have come. true: look again; those that this rank waits for are just
   being asked whether they have begun it, or another rank may know who has not and fail before this one. */
bool accord_asks(struct accord *accord, uint64_t number);
/* Marks the ranks of other hosts, and those that they miss on theirs, that have not begun it as far as is known. */
void accord_list_absent(struct accord *accord, uint64_t number, bool *absent);
void accord_leave(tutti_comm *comm);                    /* tells the other hosts, a verdict that is due first */
/* No rank of this host succeeds in that operation (from 0) or a later one that not all of them have begun yet, and
   nobody begins to touch tensors of others. */
void accord_close_roll_call(const struct accord *accord, uint64_t operation);
void accord_tell_host(const struct accord *accord);     /* its ranks are to look at what is said in the segment */

/* ---- any thread ---- */
void accord_record_lost(struct accord *accord, int rank); /* its process is gone */
bool accord_has_lost(const struct accord *accord);      /* deaths to accept */
bool accord_has_left(const struct accord *accord, int rank);           /* of another host: in good order */
bool accord_is_failing(const struct accord *accord);    /* a reason is known; the verdict comes by itself */
bool accord_is_over(const struct accord *accord);       /* the verdict is known */
void accord_verdict(struct accord *accord, struct agree_cause *out);   /* then */
