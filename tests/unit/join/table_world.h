/* Processes of one host that have joined a group and get its table of members, for tests. */
#pragma once
#include "backend/join/member_table.h"
#include "backend/processes/host_election.h"
#include "tests/unit/processes/peers_world.h"
#include <assert.h>

/* The ranks of the group are in PROCESSES processes: rank r in process r % PROCESSES. */
enum { PROCESSES = 3, RANKS = 30, TABLE_BYTES = RANKS * sizeof(struct member) };
static_assert((int)TABLE_BYTES >= (int)SHARED_TABLE_LEAST, "the table is shared");
/* The number of times that processes have read the table from the store. */
extern _Atomic int *reads;
/* The records of all ranks, and the one that counts as rank 0's. */
extern struct member members[RANKS], first;
/* The test's actions in the store: the process with that number runs it when it reads the table. */
extern void (*at_read)(void);
extern int at_read_process;
/* is_elected: the elected process sends the table, and rank 0 is on another host. Otherwise rank 0 sends it. cancels:
   the caller cancels. fails_reads: the store fails. */
extern bool is_elected, cancels, fails_reads;

/* Runs `body` in all processes. Then the table must have been read that often. */
void table_run(void (*body)(void), unsigned victims, int expected_reads);
/* Joins the world, after which all processes have the same table. */
void table_begin(void);
/* Connects all processes, so that no socket is made later. Returns the number of descriptors. */
int table_connect_all(void);
/* Process 1 wins the election. */
void table_elect(void);
struct member_table_request table_request_of(int r);
/* Process 0, as rank 0: makes the table and sends it. */
struct shared_table *table_send(void);
/* Gets the table as rank r, and checks it. */
struct shared_table *table_receive(int r);
/* Checks that no descriptor is left, and ends this process's part. */
void table_end(struct shared_table *table, int descriptors);
