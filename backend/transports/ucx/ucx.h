/* The transport between hosts, over UCX (https://openucx.org, UCP 1.13 or later), which is opened with dlopen when it
   is first needed. One worker serves a process and one endpoint a pair of processes, whatever the number of groups. */
#pragma once
#include "backend/transports/router.h"

enum { UCX_CARD_BYTES = 2048 };
struct ucx_ground { /* what it needs of the processes of its members */
    void *context;
    const unsigned char *(*process)(void *context, int rank); /* a nonce of 16 bytes: equal, the same process */
    /* What ucx_open gave in that process. IN_PROGRESS: ask again. */
    tutti_status (*card)(void *context, int rank, void *out, size_t *bytes);
    void (*name)(void *context, int rank, char *out, size_t bytes); /* of its host and address, for messages */
};
/* Opens UCX for this process, whose nonce `process` is, if it is not open: *card is how others reach it. `device`: the
   network interface for TCP, or NULL; all ranks may pretend to be on several hosts: then `pretended`, and nothing but
   TCP is used. Pair with ucx_close. UNSUPPORTED: there is no UCX, and the text says what to do. */
tutti_status ucx_open(const unsigned char process[16], const char *device, bool pretended, void *card, size_t *bytes);
void ucx_close(void);
/* Leads to those ranks that no transport of the router leads to yet. Between ucx_open and ucx_close. */
tutti_status ucx_connect(struct router *router, const struct ucx_ground *ground);
/* For tutti info: the library that is used or would be, its version and transports; or why there is none, with what to
   do about it. */
void ucx_describe(char *out, size_t bytes);
