/* Ranks over a fabric, on loopback. */
#pragma once
#include "backend/transports/fabric/fabric.h"
#include "tests/unit/transports/ranks.h"

enum { SKIPPED = 77 };   /* what a test returns then */
/* What `tutti info` says of a fabric, printed: false, it is not there. */
bool fabric_is_there(const char *name, void (*describe)(char *out, size_t bytes));
struct key_id ranks_key(void);  /* of the one group that all ranks of a test are of */
/* threads of one process, which share the fabric */
void ranks_fabric_threads(struct fabric *fabric, int size, enum waiting waiting, body *each);
/* threads, each as if it were a process of its own: fabrics[size] */
void ranks_fabric_apart(struct fabric *fabrics, int size, enum waiting waiting, body *each);
void ranks_fabric_processes(struct fabric *fabric, int size, enum waiting waiting, body *each);
/* Over two beside each other: of some 1,010 bytes on a message goes by the second. */
void ranks_fabric_apart_beside(struct fabric *first, struct fabric *next, int size, enum waiting waiting, body *each);
void ranks_fabric_processes_beside(struct fabric *first, struct fabric *next, int size, enum waiting waiting,
    body *each);
