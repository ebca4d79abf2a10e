/* The table of a group's members on one host. One process of the host reads it from the store, and sends it to the
 * others as a sealed memfd, over the connections whose ends have proved that they know the group's key. So a host has
 * one table. A process that does not get it reads it from the store, too.
 *
 * On the host of rank 0 the process of rank 0 sends the table. On any other host it is the process that won the host
 * election. A table of less than SHARED_TABLE_LEAST bytes is not worth a mapping: each process reads it. */
#pragma once
#include "backend/engine/member.h"
#include "backend/memory/shared_table.h"

enum { SHARED_TABLE_LEAST = 4096 };
/* Maps a table of `size` members that has arrived, and closes its descriptor. Fails unless its file is constant, its
   size is right and all its texts are printable. Other fields are checked where they are used. */
tutti_status host_table_map(uint32_t size, int descriptor, const struct member **out);
/* A rank whose group has formed. */
struct host_table {
    /* The records of rank 0 and of this rank. */
    const struct member *first, *mine;
    /* The id of the group's key. */
    const struct key_id *key;
    int rank;
    int64_t deadline_ms;
    /* Returns true if the caller of this rank has cancelled its join; may be NULL. */
    bool (*is_cancelled)(void *context);
    void *cancel_context;
};
/* The part of this process. */
enum host_table_role { HOST_TABLE_READ, HOST_TABLE_READ_AND_SEND, HOST_TABLE_RECEIVE };
enum host_table_role host_table_get_role(const struct host_table *host);

/* Sets the data of `table`, which this rank makes, to the `members` of the group, and frees them if they are in a
   memfd now. Sets *descriptor to that memfd, or to -1 if this process does not send the table, or cannot make one. */
void host_table_set(const struct host_table *host, struct member *members, struct shared_table *table, int *descriptor);
/* Sends the descriptor to the other processes of this host if that is the part of this process, and closes it. With -1
   they learn that they must read the table. A process that cannot be reached is left out. ABORTED: the caller has
   cancelled the join. */
tutti_status host_table_send(const struct host_table *host, const struct member *members, int descriptor);
/* Closes the descriptor of the group of rank 0, whose record `first` is, when it arrives, because no rank of this
   process needs it. `key` is the id of the group's key. */
void host_table_refuse(const struct key_id *key, const struct member *first);
/* Waits for the table that another process sends, checks it, and sets *out to its mapping. Only the first call of
   a process waits. ABORTED: the caller has
   cancelled the join. After any other error this process should read the table. */
tutti_status host_table_receive(const struct host_table *host, const struct member **out);
