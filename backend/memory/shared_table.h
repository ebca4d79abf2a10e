/* Constant data that all ranks of a process use, in ordinary memory or in a mapped file. Each rank enters it by its
 * token. One of them makes the data while the others wait; if it gives up, the next one makes it. The last rank that
 * leaves frees the data. A forked child keeps the data of its parent's ranks, and finds none of it by a token. Any
 * number of threads may call the functions. */
#pragma once
#include "include/tutti.h"

struct shared_table;
/* Sets *out to the table with that token, which the first rank to enter adds to a list. Pair with shared_table_leave.
   NO_MEMORY. */
tutti_status shared_table_enter(const unsigned char token[16], struct shared_table **out);
/* READY: the data is there. YOURS: the caller must make it, and then call one of shared_table_set,
   shared_table_set_mapped and shared_table_give_up. BUSY: another rank still makes it at that clock_ms(). */
enum shared_table_turn { SHARED_TABLE_READY, SHARED_TABLE_YOURS, SHARED_TABLE_BUSY };
enum shared_table_turn shared_table_await(struct shared_table *table, int64_t until_ms);
/* These two set the data, which the table then owns: memory of malloc, or a mapping of `bytes` bytes. */
void shared_table_set(struct shared_table *table, const void *data);
void shared_table_set_mapped(struct shared_table *table, const void *data, size_t bytes);
/* Lets another rank make the data, because this one cannot. */
void shared_table_give_up(struct shared_table *table);
/* Returns the data of a table that is READY or was set by the caller. */
const void *shared_table_data(const struct shared_table *table);
/* Ends one use of the table. NULL is allowed. */
void shared_table_leave(struct shared_table *table);
