/* How a thread writes slots that peers read: by ordinary stores, or around its cache (kernels/stream.h). Where the
   peers' cores share a cache with this one, ordinary stores are as good or better; where not, a store into a line that
   a peer has just read costs many times as much. Which of it is true can change at any time, when the system or a
   hypervisor moves a core, so it is not asked once but all the time: now and then a line is fetched with a clock beside
   it. What a thread finds is its own business; nobody else needs to know. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* How a run of 1 KiB and more, to begin at `to`, is better written at present: around the cache? */
bool pace_streams(void *to);

/* ---- how it decides; of pace.c and its test ---- */
struct pace {
    bool ordinary;                                     /* the way at present                                      */
    unsigned calls;
    double line_ns;                                    /* to get a line that a peer has read: a low quantile      */
};
bool pace_is_due(struct pace *pace);                   /* this call is to be measured                             */
void pace_record(struct pace *pace, double line_ns);     /* one measurement; it may have been interrupted           */
