/* Fuzzes a group that is formed through a key-value store. The input decides every answer of the store: no value, too
   many bytes, an error, any bytes, or a valid record of which some bytes are changed. */
#include "backend/join/bootstrap.h"
#include "backend/join/join_result.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/simulated_clock.h"

enum { SIZE = 3, TIMEOUT_MS = 10 };
enum answer { ABSENT, ABSENT_TOO, RECORD, RESULT, TABLE, FORMED, BYTES, LARGER, BROKEN, ANSWERS };

static struct member mine;
/* The statement of rank 0, or of a rank with other members. */
static struct statement statement;
static struct {
    struct join_result result;
    struct member table[SIZE];
} table;

static void change(struct input *in, unsigned char *bytes, size_t count)
{
    for (int changes = input_byte(in) % 4; changes > 0; changes--) {
        size_t at = ((size_t)input_byte(in) << 8 | input_byte(in)) % count;
        bytes[at] = input_byte(in);
    }
}
/* Answers with a record, with up to three changed bytes. */
static tutti_status give(struct input *in, const void *from, size_t bytes, void *value, size_t capacity, size_t *out)
{
    unsigned char copy[sizeof table];
    memcpy(copy, from, bytes);
    change(in, copy, bytes);
    *out = bytes;
    if (bytes > capacity) return TUTTI_NO_MEMORY;
    memcpy(value, copy, bytes);
    return TUTTI_OK;
}
static tutti_status get(void *context, const char *key, void *value, size_t capacity, size_t *bytes, int64_t timeout_ms)
{
    struct input *in = context;
    FUZZ_CHECK(strlen(key) < 64);
    simulated_ns += 1000 * (1 + timeout_ms);
    if (!in->left) return TUTTI_SYSTEM;
    enum answer answer = input_byte(in) % ANSWERS;
    size_t raw = ((size_t)input_byte(in) << 8 | input_byte(in)) % (sizeof table + 16);
    switch (answer) {
    case RECORD:
        if (!strcmp(key, "r0") || strstr(key, "/other"))
            return give(in, &statement, sizeof statement, value, capacity, bytes);
        return give(in, &mine, sizeof mine, value, capacity, bytes);
    case RESULT: return give(in, &table.result, sizeof table.result, value, capacity, bytes);
    case TABLE: return give(in, table.table, sizeof table.table, value, capacity, bytes);
    case FORMED: return give(in, &table, FORMED_BYTES, value, capacity, bytes);
    case BYTES:
        *bytes = input_take(in, value, raw < capacity ? raw : capacity);
        return raw > capacity ? TUTTI_NO_MEMORY : TUTTI_OK;
    case LARGER: return TUTTI_NO_MEMORY;
    case BROKEN: return TUTTI_SYSTEM;
    default: return TUTTI_TIMEOUT;
    }
}
static tutti_status put(void *context, const char *key, const void *value, size_t bytes)
{
    struct input *in = context;
    FUZZ_CHECK(key && (value || !bytes));
    return in->left && *in->at == 0xff ? TUTTI_SYSTEM : TUTTI_OK;
}
static tutti_status take_out(void *context, const char *key)
{
    (void)context;
    FUZZ_CHECK(key);
    return TUTTI_OK;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct shared_table *found;
    struct key_id key;
    tutti_config config = TUTTI_CONFIG_INIT;
    mine = (struct member){ .size = SIZE, .build = 1, .timeout_ms = TIMEOUT_MS, .group = "group" };
    config.rank = input_byte(&in) % SIZE;
    config.size = SIZE;
    config.store = (tutti_store){ &in, put, get };
    config.store_remove = take_out;
    mine.identity.pid = 1;
    mine.token[0] = config.rank == 0;
    mine.status = input_byte(&in) % 4 ? TUTTI_OK : TUTTI_SYSTEM;
    statement =
        (struct statement){ .member = mine, .terms = { .digest = mine.terms, .name = "group", .members = "0-2" } };
    join_result_decide(&table.result, TUTTI_OK, SIZE);
    for (int r = 0; r < SIZE; r++) table.table[r] = mine;
    tutti_status status = bootstrap_store(&config, &mine, &statement.terms, clock_deadline(TIMEOUT_MS), &found, &key);
    if (status == TUTTI_OK) {
        const struct member *members = shared_table_data(found);
        FUZZ_CHECK(memcmp(&members[config.rank].identity, &mine.identity, sizeof mine.identity) == 0);
    }
    shared_table_leave(found);
    group_keys_forget();
    return 0;
}
