/* Cutting a model into slices: each element of each parameter belongs to one rank, whatever the sizes. */
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "zero/partition.h"

enum { MOST_PARAMETERS = 20, MOST_UNITS = 6, MOST_RANKS = 7 };
struct model {
    tutti_zero_parameter parameter[MOST_PARAMETERS];
    tutti_dtype dtype[MOST_UNITS];
    tutti_zero_config config;
};
static uint64_t seed = 11;
static int below(int n) { return (int)(random_next(&seed) % (uint64_t)n); }
static void draw(struct model *m)
{
    int unit = 0;
    m->config = (tutti_zero_config)TUTTI_ZERO_CONFIG_INIT;
    m->config.parameters = 1 + below(MOST_PARAMETERS);
    /* Some units have no parameters. */
    m->config.units = MOST_UNITS;
    m->config.groups = 2;
    for (int i = 0; i < m->config.parameters; i++) {
        if (unit < MOST_UNITS - 1) unit += below(2);
        size_t count = below(3) ? 1 + (size_t)below(100) : 1 + (size_t)below(20000);
        m->parameter[i] = (tutti_zero_parameter){ count, unit, below(2) };
    }
    for (int u = 0; u < MOST_UNITS; u++) m->dtype[u] = below(2) ? TUTTI_FLOAT32 : TUTTI_BFLOAT16;
    m->config.parameter = m->parameter;
    m->config.dtype = m->dtype;
}
static void check_unit(const struct unit_partition *u, int ranks)
{
    assert_int_equal(u->slice * u->element % 4096, 0);
    assert_int_equal(u->count, u->slice * (size_t)ranks);
}
static void check_parameter(const struct partition *partition, int i, const tutti_zero_parameter *given)
{
    const struct place_of_parameter *p = &partition->parameter[i];
    size_t next = 0;
    assert_int_equal(p->offset * partition->unit[p->unit].element % 64, 0);
    assert_true(p->count == given->count && p->unit == given->unit && p->group == given->group);
    if (i && partition->parameter[i - 1].unit == p->unit)
        assert_true(partition->parameter[i - 1].offset + partition->parameter[i - 1].count <= p->offset);
    for (int rank = 0; rank < partition->ranks; rank++) {
        struct slice_piece piece = partition_find_piece(partition, i, rank);
        if (!piece.count) continue;
        assert_int_equal(piece.at, next);
        assert_int_equal(piece.from + partition->unit[p->unit].slice * (size_t)rank, p->offset + piece.at);
        assert_true(piece.from + piece.count <= partition->unit[p->unit].slice);
        next += piece.count;
    }
    assert_int_equal(next, p->count);
}
static void test_each_element_has_one_owner(void **state)
{
    (void)state;
    for (int turn = 0; turn < 300; turn++) {
        struct model m;
        struct partition partition;
        int ranks = 1 + below(MOST_RANKS), rank = below(ranks), pieces = 0;
        draw(&m);
        assert_int_equal(partition_init(&partition, &m.config, rank, ranks), TUTTI_OK);
        for (int u = 0; u < partition.units; u++) check_unit(&partition.unit[u], ranks);
        for (int i = 0; i < partition.parameters; i++) check_parameter(&partition, i, &m.parameter[i]);
        for (int u = 0; u < partition.units; u++) {
            assert_int_equal(partition.unit[u].first_piece, pieces);
            for (int k = 0; k < partition.unit[u].pieces; k++, pieces++) {
                struct slice_piece mine = partition.piece[pieces],
                                   same = partition_find_piece(&partition, mine.parameter, rank);
                assert_true(mine.count == same.count && mine.from == same.from && mine.at == same.at);
            }
        }
        partition_finish(&partition);
    }
}
static void test_different_models_have_different_digests(void **state)
{
    (void)state;
    struct model m;
    struct partition partition;
    uint64_t digests[5];
    draw(&m);
    for (int k = 0; k < 5; k++) {
        if (k == 1) m.parameter[0].count += 1;
        if (k == 2) m.parameter[0].group ^= 1;
        if (k == 3) m.dtype[0] = m.dtype[0] == TUTTI_FLOAT32 ? TUTTI_BFLOAT16 : TUTTI_FLOAT32;
        if (k == 4) m.config.rule = TUTTI_ZERO_ADAM;
        assert_int_equal(partition_init(&partition, &m.config, k % 2, 2), TUTTI_OK);
        digests[k] = partition_digest(&partition, &m.config);
        for (int l = 0; l < k; l++) assert_true(digests[k] != digests[l]);
        partition_finish(&partition);
    }
    /* All ranks compute the same digest. */
    assert_int_equal(partition_init(&partition, &m.config, 1, 2), TUTTI_OK);
    assert_true(partition_digest(&partition, &m.config) == digests[4]);
    partition_finish(&partition);
}
/* Checks that the model is an error with these words, and draws the next model. */
static void require_refusal(struct model *m, const char *words)
{
    struct partition partition;
    assert_int_equal(partition_init(&partition, &m->config, 0, 2), TUTTI_INVALID_ARGUMENT);
    assert_true(tutti_last_error_is_refusal());
    if (!strstr(tutti_get_last_error(), words))
        fail_msg("\"%s\" does not contain \"%s\"", tutti_get_last_error(), words);
    partition_finish(&partition);
    draw(m);
}
static void test_invalid_models_are_errors(void **state)
{
    (void)state;
    struct model m;
    draw(&m);
    m.parameter[0].count = 0;
    require_refusal(&m, "parameter 0 has no elements");
    m.parameter[0].unit = MOST_UNITS;
    require_refusal(&m, "parameter 0 is of unit 6");
    m.parameter[0].group = 2;
    require_refusal(&m, "parameter 0 is of group 2");
    m.config.parameters = 0;
    require_refusal(&m, "at least one parameter");
    m.dtype[3] = TUTTI_INT32;
    require_refusal(&m, "unit 3 has elements of type int32");
    m.dtype[3] = TUTTI_FLOAT64;
    m.config.rule = TUTTI_ZERO_ADAM;
    require_refusal(&m, "unit 3 is float64, and the update rules compute in float32");
    m.dtype[3] = TUTTI_FLOAT16;
    m.config.compression.form = TUTTI_COMPRESS_INT8;
    require_refusal(&m, "gradients of type float16 (unit 3) cannot be compressed");
    m.parameter[0].count = SIZE_MAX / 2;
    require_refusal(&m, "exceeds the address space");
}
unit_function test_partition;
int test_partition(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_element_has_one_owner),
        cmocka_unit_test(test_different_models_have_different_digests),
        cmocka_unit_test(test_invalid_models_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
