/* All ranks continue with the values, moments and numbers of steps that each rank writes to its own pieces, as from a
   checkpoint in parts, in each placement. */
#include "include/tutti_zero.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
enum { PARAMETERS = 3, MOST = 5000 };
static const tutti_zero_parameter three[PARAMETERS] = { { 5000, 0, 0 }, { 77, 1, 0 }, { 3000, 1, 0 } };
static const tutti_zero_rates gentle = { .rate = 0.5, .momentum = 0.5 };
static tutti_zero_config config_of(struct rank *me, tutti_zero_placement placement, const tutti_dtype *types)
{
    tutti_zero_config c = TUTTI_ZERO_CONFIG_INIT;
    c.comm = me->comm;
    c.groups = 1;
    c.placement = placement;
    c.parameters = PARAMETERS;
    c.units = 2;
    c.parameter = three;
    c.dtype = types;
    c.rule = TUTTI_ZERO_MOMENTUM;
    return c;
}
static tutti_zero *make(struct rank *me, tutti_zero_placement placement, tutti_dtype dtype)
{
    tutti_zero *zero;
    const tutti_dtype types[2] = { dtype, dtype };
    tutti_zero_config c = config_of(me, placement, types);
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK && tutti_zero_begin(zero) == TUTTI_OK);
    return zero;
}
static void write_gradients(tutti_zero *zero, tutti_dtype dtype)
{
    void *at;
    bool adds;
    for (int u = 0; u < 2; u++) REQUIRE(tutti_zero_use(zero, u) == TUTTI_OK);
    for (int p = PARAMETERS - 1; p >= 0; p--) {
        REQUIRE(tutti_zero_gradient(zero, p, &at, &adds) == TUTTI_OK && !adds);
        for (size_t i = 0; i < three[p].count; i++) {
            if (dtype == TUTTI_FLOAT32) ((float *)at)[i] = 1;
            else ((uint16_t *)at)[i] = 0x3f80;
        }
        REQUIRE(tutti_zero_ready(zero, p) == TUTTI_OK);
    }
}
static float number(int parameter, size_t i) { return (float)((parameter + 1) * 8 + (int)(i % 16)); }
static void write_pieces(tutti_zero *zero)
{
    tutti_zero_piece piece;
    for (int p = 0; p < PARAMETERS; p++) {
        REQUIRE(tutti_zero_get_piece(zero, p, &piece) == TUTTI_OK);
        for (size_t i = 0; i < piece.count; i++) {
            ((float *)piece.value)[i] = number(p, piece.at + i);
            piece.first[i] = 4;
        }
        REQUIRE(tutti_zero_set_steps(zero, p, 7) == TUTTI_OK);
    }
}
/* Checks that all values are those of number(), minus `less`. */
static void require_values(struct rank *me, tutti_zero *zero, tutti_dtype dtype, float less)
{
    REQUIRE(tutti_zero_keep(zero, true) == TUTTI_OK);
    for (int p = 0; p < PARAMETERS; p++) {
        const void *at = tutti_zero_parameter_at(zero, p);
        for (size_t i = 0; i < three[p].count; i++) {
            float wanted = number(p, i) - less, found;
            uint32_t wide = dtype == TUTTI_FLOAT32 ? 0 : (uint32_t)((const uint16_t *)at)[i] << 16;
            if (dtype == TUTTI_FLOAT32) found = ((const float *)at)[i];
            else memcpy(&found, &wide, sizeof found);
            REQUIRE(found == wanted);
        }
    }
    REQUIRE(tutti_zero_keep(zero, false) == TUTTI_OK);
    /* All ranks have read the values before the next step. */
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
/* With a first moment of 4, half of which is kept, a gradient of 1 gives a step of 3, times a rate of 0.5. */
static void continue_from_pieces(struct rank *me)
{
    tutti_zero_report report = { .struct_size = sizeof report };
    tutti_zero_piece piece;
    for (int n = 0; n < 2 * TUTTI_ZERO_PLACEMENTS; n++) {
        tutti_dtype dtype = n < TUTTI_ZERO_PLACEMENTS ? TUTTI_FLOAT32 : TUTTI_BFLOAT16;
        tutti_zero *zero = make(me, n % TUTTI_ZERO_PLACEMENTS, dtype);
        write_gradients(zero, dtype);
        REQUIRE(tutti_zero_step(zero, &gentle, 1) == TUTTI_OK);
        /* In the second turn, gradients are written before the pieces, and stay. */
        for (int turn = 0; turn < 2; turn++) {
            if (turn) write_gradients(zero, dtype);
            REQUIRE(tutti_zero_claim_pieces(zero) == TUTTI_OK);
            write_pieces(zero);
            REQUIRE(tutti_zero_begin_pieces(zero) == TUTTI_OK);
            require_values(me, zero, dtype, 0);
            if (!turn) write_gradients(zero, dtype);
            REQUIRE(tutti_zero_step(zero, &gentle, 1) == TUTTI_OK);
            require_values(me, zero, dtype, 1.5f);
            REQUIRE(tutti_zero_get_piece(zero, 0, &piece) == TUTTI_OK && piece.steps == 8);
        }
        REQUIRE(tutti_zero_get_report(zero, &report) == TUTTI_OK && report.steps == 3);
        REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
    }
}
static void test_all_ranks_continue_from_the_pieces(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size *= 2) world_threads(size, NULL, continue_from_pieces, NULL);
    world_threads_on("2", 4, NULL, continue_from_pieces, NULL);
    world_threads_on("0,1,0,1", 4, NULL, continue_from_pieces, NULL);
}
/* After pieces were read, the training continues without a call of tutti_zero_begin_pieces. */
static void read_pieces(struct rank *me)
{
    tutti_zero_piece piece;
    for (tutti_zero_placement placement = 0; placement < TUTTI_ZERO_PLACEMENTS; placement++) {
        tutti_zero *zero = make(me, placement, TUTTI_FLOAT32);
        REQUIRE(tutti_zero_claim_pieces(zero) == TUTTI_OK);
        write_pieces(zero);
        REQUIRE(tutti_zero_begin_pieces(zero) == TUTTI_OK && tutti_zero_claim_pieces(zero) == TUTTI_OK);
        REQUIRE(tutti_zero_get_piece(zero, 2, &piece) == TUTTI_OK);
        REQUIRE(placement != TUTTI_ZERO_WHOLE || piece.count == three[2].count);
        for (size_t i = 0; i < piece.count; i++) REQUIRE(((const float *)piece.value)[i] == number(2, piece.at + i));
        write_gradients(zero, TUTTI_FLOAT32);
        REQUIRE(tutti_zero_step(zero, &gentle, 1) == TUTTI_OK);
        require_values(me, zero, TUTTI_FLOAT32, 1.5f);
        REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
    }
}
static void test_pieces_can_be_read(void **state)
{
    (void)state;
    world_threads(2, NULL, read_pieces, NULL);
    world_threads_on("2", 4, NULL, read_pieces, NULL);
}
static void compress_whole(struct rank *me)
{
    tutti_zero *zero = NULL;
    const tutti_dtype types[2] = { TUTTI_FLOAT32, TUTTI_FLOAT32 };
    tutti_zero_config c = config_of(me, TUTTI_ZERO_WHOLE, types);
    c.compression.form = TUTTI_COMPRESS_INT8;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_UNSUPPORTED && !zero && tutti_last_error_is_refusal());
    REQUIRE_ERROR("tutti_compressor");
}
static void test_placement_whole_cannot_be_compressed(void **state)
{
    (void)state;
    world_threads(2, NULL, compress_whole, NULL);
}
unit_function test_pieces;
int test_pieces(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ranks_continue_from_the_pieces),
        cmocka_unit_test(test_pieces_can_be_read),
        cmocka_unit_test(test_placement_whole_cannot_be_compressed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
