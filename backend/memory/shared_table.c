/* Keeps the tables of this process in a list. The lock guards the list and the state of each table. Data that was set
   does not change, so it is read without the lock. */
#include "backend/memory/shared_table.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct shared_table {
    unsigned char token[16];
    /* The number of ranks that have entered it and not left. */
    int users;
    enum { TABLE_IS_EMPTY, TABLE_IS_BEING_MADE, TABLE_IS_SET } state;
    const void *data;
    /* The bytes of a mapping, or 0 for memory of malloc. */
    size_t mapped_bytes;
    struct shared_table *next;
};
static struct shared_table *tables;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Signals that a table was set or given up. Its timed waits use the monotonic clock. */
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void shared_tables_before_fork(void) { pthread_mutex_lock(&lock); }
static void shared_tables_after_fork_parent(void) { pthread_mutex_unlock(&lock); }
/* The child is not a member of its parent's groups, so it forgets the list. Inherited communicators, which are never
   destroyed there, still read their tables. */
static void shared_tables_after_fork_child(void)
{
    tables = NULL;
    clock_condition_init(&changed);
    pthread_mutex_unlock(&lock);
}
static void shared_tables_prepare(void)
{
    clock_condition_init(&changed);
    pthread_atfork(shared_tables_before_fork, shared_tables_after_fork_parent, shared_tables_after_fork_child);
}
tutti_status shared_table_enter(const unsigned char token[16], struct shared_table **out)
{
    pthread_once(&once, shared_tables_prepare);
    pthread_mutex_lock(&lock);
    struct shared_table *table = tables;
    while (table && memcmp(table->token, token, sizeof table->token) != 0) table = table->next;
    if (!table && (table = memory_alloc_zeroed(1, sizeof *table)) != NULL) {
        memcpy(table->token, token, sizeof table->token);
        table->next = tables;
        tables = table;
    }
    if (table) table->users++;
    pthread_mutex_unlock(&lock);
    *out = table;
    return table ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for the list of tables");
}

/* ---- making it ---- */
enum shared_table_turn shared_table_await(struct shared_table *table, int64_t until_ms)
{
    struct timespec until = { until_ms / 1000, until_ms % 1000 * 1000000 };
    pthread_mutex_lock(&lock);
    while (table->state == TABLE_IS_BEING_MADE && clock_ms() < until_ms)
        pthread_cond_timedwait(&changed, &lock, &until);
    enum shared_table_turn turn = table->state == TABLE_IS_SET ? SHARED_TABLE_READY
        : table->state == TABLE_IS_EMPTY                       ? SHARED_TABLE_YOURS
                                                               : SHARED_TABLE_BUSY;
    if (turn == SHARED_TABLE_YOURS) table->state = TABLE_IS_BEING_MADE;
    pthread_mutex_unlock(&lock);
    return turn;
}
void shared_table_set_mapped(struct shared_table *table, const void *data, size_t bytes)
{
    pthread_mutex_lock(&lock);
    assert(table->state == TABLE_IS_BEING_MADE);
    table->data = data;
    table->mapped_bytes = bytes;
    table->state = TABLE_IS_SET;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
void shared_table_set(struct shared_table *table, const void *data) { shared_table_set_mapped(table, data, 0); }
void shared_table_give_up(struct shared_table *table)
{
    pthread_mutex_lock(&lock);
    assert(table->state == TABLE_IS_BEING_MADE);
    table->state = TABLE_IS_EMPTY;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
const void *shared_table_data(const struct shared_table *table) { return table->data; }

/* ---- the end ---- */
/* Drops a user. After the last, removes the table from the list and returns true. */
static bool shared_table_drop_user(struct shared_table *table)
{
    pthread_mutex_lock(&lock);
    bool is_last = --table->users == 0;
    for (struct shared_table **at = &tables; is_last && *at; at = &(*at)->next)
        if (*at == table) { *at = table->next; break; }
    pthread_mutex_unlock(&lock);
    return is_last;
}
void shared_table_leave(struct shared_table *table)
{
    if (!table || !shared_table_drop_user(table)) return;
    void *data = (void *)(uintptr_t)table->data;
    if (table->mapped_bytes) munmap(data, table->mapped_bytes);
    else free(data);
    free(table);
}
