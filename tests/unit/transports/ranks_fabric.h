/* Ranks over a fabric, on loopback. */
#pragma once
#include "backend/transports/fabric/fabric.h"
#include "tests/unit/transports/ranks.h"

/* The result of a test file that is skipped. */
enum { SKIPPED = 77 };
/* Prints what `tutti info` reports about a fabric. false: the fabric is unavailable here. */
bool fabric_is_there(const char *name, void (*describe)(char *out, size_t bytes));
/* Returns the id of the key of the one group that the ranks of a test form. */
struct key_id ranks_key(void);
/* Runs `each` on threads that share the fabric of their process. */
void ranks_fabric_threads(struct fabric *fabric, int size, enum waiting waiting, body *each);
/* Runs `each` on threads with a fabric each, fabrics[size], as processes have. */
void ranks_fabric_apart(struct fabric *fabrics, int size, enum waiting waiting, body *each);
/* Runs `each` on processes. */
void ranks_fabric_processes(struct fabric *fabric, int size, enum waiting waiting, body *each);
/* These have two networks beside each other. Messages of more than some 1,010 bytes take the second. */
void ranks_fabric_apart_beside(struct fabric *first, struct fabric *next, int size, enum waiting waiting, body *each);
void ranks_fabric_processes_beside(struct fabric *first, struct fabric *next, int size, enum waiting waiting,
    body *each);
