/* Fuzzes the join reply of rank 0 to the other ranks of a new group: the join result and the records of all members.
   Accepted members are placed on hosts, checked, and named in error texts, as in joining. */
#include "backend/join/contacts.h"
#include "backend/join/hosts.h"
#include "backend/join/join_result.h"
#include "tests/fuzz/input.h"
#include <stdlib.h>

enum { SIZE = 4, RANK = 2 };
static struct member member_of_input(struct input *in)
{
    struct member m = { .size = SIZE, .build = 1, .timeout_ms = 1000, .group = "group", .identity.host = "host" };
    unsigned char *bytes = (unsigned char *)&m;
    for (int changes = input_byte(in) % 16; changes > 0; changes--) {
        size_t at = input_byte(in) % sizeof m;
        bytes[at] = input_byte(in);
    }
    return m;
}
/* Checks that a copied record has only printable text. */
static void check_record(struct member *m, int rank)
{
    struct member copy;
    member_copy_record(&copy, m);
    FUZZ_CHECK(strnlen(copy.group, sizeof copy.group) < sizeof copy.group);
    for (const char *c = copy.group; *c; c++) FUZZ_CHECK((unsigned char)*c >= ' ' && *c != 0x7f);
    for (const char *c = copy.identity.host; *c; c++) FUZZ_CHECK((unsigned char)*c >= ' ' && *c != 0x7f);
    member_fail_unable(&copy, rank, "why");
}
static void place(struct member *table)
{
    struct group group = { .rank = RANK, .size = SIZE, .members = table, .name = "group" };
    char text[MEMBER_TEXT_BYTES];
    for (int r = 0; r < SIZE; r++) member_print(&group, r, text);
    if (hosts_create_layout(&group, &group.layout) != TUTTI_OK) return;
    for (int r = 0; r < SIZE; r++) FUZZ_CHECK(layout_host(group.layout, r) >= 0 && layout_host(group.layout, r) < SIZE);
    group.host = layout_host(group.layout, RANK);
    if (group.layout->hosts > 1) members_check_addresses(&group);
    layout_destroy(group.layout);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct join_result result;
    struct member *table = calloc(SIZE, sizeof *table), mine = member_of_input(&in);
    mine.size = SIZE;
    bool raw = input_byte(&in) % 2;
    join_result_decide(&result, TUTTI_OK, SIZE);
    if (raw) input_take(&in, &result, sizeof result);
    for (int r = 0; r < SIZE; r++) {
        table[r] = member_of_input(&in);
        if (!raw && r != RANK) table[r].size = SIZE;
        check_record(&table[r], r);
        member_check_match(&mine, r, &table[r]);
    }
    if (input_byte(&in) % 8) table[RANK] = mine;
    members_fail_absent(&mine, table);
    join_result_is_formed(&result, input_byte(&in) % 2 ? FORMED_BYTES : sizeof result);
    bool formed = join_result_apply(&result, &mine) == TUTTI_OK;
    members_make_printable(table, SIZE);
    if (formed && members_check_own(table, RANK, &mine) == TUTTI_OK) place(table);
    free(table);
    return 0;
}
