/* If blocks differ in length, a chunk of SCRATCH is as long as the block that it holds. For every algorithm over
   messages that accepts uneven counts, the block of each chunk is known, and both ends of a message find the same
   blocks. */
#include "backend/collectives/collectives.h"
#include "backend/schedule/blocks.h"
#include "backend/schedule/match.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/plans.h"

/* The number of ranks, and the host of each. */
static const int placements[][9] = { { 3, 0, 0, 0 }, { 4, 0, 1, 0, 1 }, { 3, 0, 1, 2 }, { 4, 0, 1, 1, 1 },
    { 5, 0, 1, 0, 2, 1 }, { 6, 0, 0, 1, 1, 2, 2 }, { 8, 0, 1, 2, 3, 0, 1, 2, 0 }, { 7, 0, 0, 0, 0, 1, 1, 1 } };
enum { PLACEMENTS = sizeof placements / sizeof *placements, IN_PLACE = 1, SHARED = 2, STAGE_INPUTS = 4, MIXED = 8 };
static int compared;

static struct plan plan_by(const struct algorithm *a, const struct layout *l, int way)
{
    struct plan p = plan_of(a, l, 0);
    p.in_place = way & IN_PLACE ? mask_all : NULL;
    p.shared = way & MIXED ? mask_of(0x5a) : way & SHARED ? mask_all : NULL;
    p.stage_inputs = way & STAGE_INPUTS && is_reducing(a->collective);
    p.hoists_receives = true;
    return p;
}
/* Returns the block of chunk number `chunk` of a message, counted over all its spans; BLOCK_UNKNOWN after the last. */
static int block_of_message(const struct schedule *s, const struct chunk_blocks *b, int step, int chunk)
{
    const struct step *t = &s->steps[step];
    for (int k = t->span; k < t->span + t->from_count + t->to_count; chunk -= s->spans[k++].count)
        if (chunk < s->spans[k].count) return b->block[b->first[k] + chunk];
    return BLOCK_UNKNOWN;
}
static void compare_messages(const struct plan *p, const struct chunk_blocks *blocks)
{
    struct match *m = match_create(p);
    assert_non_null(m);
    for (int r = 0; r < p->count; r++)
        for (int j = 0; j < p->ranks[r].step_count; j++) {
            struct position other = match_find_other_end(m, r, j);
            for (int c = 0, block; p->ranks[r].steps[j].kind == SEND; c++, compared++) {
                block = block_of_message(&p->ranks[r], &blocks[r], j, c);
                assert_int_equal(block, block_of_message(&p->ranks[other.rank], &blocks[other.rank], other.step, c));
                /* All blocks are known, so this is the end of the message. */
                if (block == BLOCK_UNKNOWN) break;
            }
        }
    match_destroy(m);
}
static void check_blocks(struct plan *p)
{
    struct chunk_blocks blocks[8];
    char text[200];
    describe(p, text, sizeof text);
    assert_int_equal(plan_build_staging(p), TUTTI_OK);
    for (int r = 0; r < p->count; r++) {
        const struct schedule *s = &p->ranks[r];
        assert_int_equal(chunk_blocks_find(p, r, &blocks[r]), TUTTI_OK);
        for (int k = 0; k < s->span_count; k++)
            for (int i = 0; i < s->spans[k].count; i++)
                if (blocks[r].block[blocks[r].first[k] + i] < 0) fail_msg("%s: rank %d, span %d", text, r, k);
    }
    compare_messages(p, blocks);
    for (int r = 0; r < p->count; r++) chunk_blocks_finish(&blocks[r]);
    plan_finish(p);
}
static void test_blocks_are_known_at_both_ends_of_a_message(void **state)
{
    static struct hosts hosts;
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if ((a->collective != REDUCE_SCATTER && a->collective != ALLGATHER) || a->equal_chunks) continue;
        for (int l = a->host_memory ? PLACEMENTS : 0; l < PLACEMENTS; l++)
            for (int way = 0; way < 16; way++) {
                struct plan p = plan_by(a, placed(&hosts, &placements[l][1], placements[l][0]), way);
                check_blocks(&p);
            }
    }
    print_message("%d blocks of messages\n", compared);
    assert_true(compared > 1000);
}
/* The received block is in two chunks of SCRATCH in turn. Only the later steps show which block it is. */
static void passes_on(struct schedule *s)
{
    struct span received = span_new_scratch(s, 1), moved = span_new_scratch(s, 1);
    if (s->rank == 0) step_send(s, span_of_chunk(0, INPUT, 1), 1);
    else {
        step_recv(s, received, 0);
        step_copy(s, moved, received);
        step_reduce(s, moved, span_of_chunk(1, INPUT, 1));
    }
    step_copy(s, span_of_buffer(s, s->rank, OUTPUT), s->rank ? moved : span_of_chunk(0, INPUT, 0));
}
static void test_block_is_found_by_later_steps(void **state)
{
    static const struct algorithm a = { .name = "passes_on", .collective = REDUCE_SCATTER, .record = passes_on };
    static struct hosts hosts;
    struct plan p = plan_of(&a, apart(&hosts, 2), 0);
    (void)state;
    check_blocks(&p);
}

unit_function test_blocks;
int test_blocks(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_known_at_both_ends_of_a_message),
        cmocka_unit_test(test_block_is_found_by_later_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
