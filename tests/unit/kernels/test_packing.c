/* Packed gradients: the unpacked numbers and the residual sum to the given numbers, each form has its accuracy, and all
   instruction sets give the same bits. */
#include "kernels/compress.h"
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"
#include <math.h>

enum { COUNT_MAX = 3000, GUARD = 16, SOURCES = 3 };
static const size_t counts[] = { 1, 2, 3, 7, 31, 127, 128, 129, 255, 1000, 1023, 1024, 1025, 1153, 2048, COUNT_MAX };
enum { COUNTS = sizeof counts / sizeof counts[0] };
static const struct packing forms[] = {
    { .form = PACKING_FLOAT16 },
    { .form = PACKING_BFLOAT16 },
    { .form = PACKING_INT8 },
    { .form = PACKING_INT8, .stochastic = true, .seed = 5 },
    { .form = PACKING_INT4 },
    { .form = PACKING_INT4, .stochastic = true, .seed = 6 },
    { .form = PACKING_TOPK, .kept = 1 },
    { .form = PACKING_TOPK, .kept = 10 },
    { .form = PACKING_TOPK, .kept = 33 },
    { .form = PACKING_TOPK, .kept = 300 },
    { .form = PACKING_TOPK, .kept = PACKING_GROUP },
    { .form = PACKING_RANDOMK, .kept = 1, .seed = 7 },
    { .form = PACKING_RANDOMK, .kept = 100, .seed = 8 },
    { .form = PACKING_RANDOMK, .kept = PACKING_GROUP, .seed = 9 },
    { .form = PACKING_THRESHOLD, .kept = PACKING_GROUP, .threshold = 0.3f },
    { .form = PACKING_THRESHOLD, .kept = 300, .threshold = 0.7f },
    { .form = PACKING_THRESHOLD, .kept = 20, .threshold = 1e-6f },
};
enum { FORMS = sizeof forms / sizeof forms[0] };
/* The gradients, the residual before and after packing, and the unpacked numbers. */
static float from[COUNT_MAX], before[COUNT_MAX], lost[COUNT_MAX], arrived[COUNT_MAX + GUARD];
static char packed[COUNT_MAX * 8 + 4 + GUARD];

static bool same(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }
static void fill_ordinary(void)
{
    for (size_t i = 0; i < COUNT_MAX; i++) {
        from[i] = (float)ldexp((double)(int64_t)random_bits(), -63 - (int)(random_bits() % 6));
        before[i] = (float)ldexp((double)(int64_t)random_bits(), -66);
    }
}
/* Packs and unpacks, with a residual if `keeps` is set. No byte beside the arrays is written. */
static void pack_and_unpack(const struct packing *how, size_t count, bool keeps)
{
    const void *sources[1] = { packed };
    size_t bytes = packing_bytes(how, count);
    assert_true(bytes % 4 == 0 && bytes <= sizeof packed - GUARD);
    memset(packed, 0x5a, sizeof packed);
    memset(arrived, 0x5a, sizeof arrived);
    memcpy(lost, before, sizeof lost);
    pack_find(TUTTI_FLOAT32)(packed, from, keeps ? lost : NULL, count, how, 1000);
    unpack_find(TUTTI_FLOAT32)(arrived, sources, 1, count, how, 1000, 1.0f);
    for (size_t i = 0; i < GUARD; i++) assert_int_equal(packed[bytes + i], 0x5a);
    for (size_t i = 0; i < GUARD * sizeof(float); i++) assert_int_equal(((char *)&arrived[count])[i], 0x5a);
    for (size_t i = count; i < COUNT_MAX; i++) assert_true(lost[i] == before[i]);
}
static void test_residual_has_all_that_does_not_arrive(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++)
        for (int c = 0; c < COUNTS; c++) {
            fill_ordinary();
            pack_and_unpack(&forms[f], counts[c], true);
            for (size_t i = 0; i < counts[c]; i++) {
                float given = from[i] + before[i];
                assert_true(fabsf(arrived[i] + lost[i] - given) <= 0x1p-23f * (fabsf(given) + fabsf(arrived[i])));
            }
        }
}
static void test_all_instruction_sets_give_the_same_bits(void **state)
{
    (void)state;
    static float first_lost[COUNT_MAX], first_arrived[COUNT_MAX];
    static char first_packed[sizeof packed];
    for (int f = 0; f < FORMS; f++)
        for (int c = 0; c < COUNTS; c++) {
            if (c % 2) fill_ordinary();
            else fill(from, COUNT_MAX, TUTTI_FLOAT32);
            for (int i = 0; kernels_isa_name(i); i++) {
                assert_true(kernels_select_isa(kernels_isa_name(i)));
                pack_and_unpack(&forms[f], counts[c], true);
                if (i == 0) {
                    memcpy(first_lost, lost, sizeof lost);
                    memcpy(first_arrived, arrived, sizeof first_arrived);
                    memcpy(first_packed, packed, sizeof packed);
                }
                assert_memory_equal(first_packed, packed, packing_length(&forms[f], packed, counts[c]));
                for (size_t k = 0; k < counts[c]; k++) {
                    assert_true(same(first_lost[k], lost[k]));
                    assert_true(same(first_arrived[k], arrived[k]));
                }
            }
        }
}

/* ---- each form ---- */
static void test_numbers_of_16_bits_are_the_nearest(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct format f = format_of(half ? TUTTI_FLOAT16 : TUTTI_BFLOAT16);
        double most = half ? 65504 : decode(f, 0x7f7f);
        struct packing how = { .form = half ? PACKING_FLOAT16 : PACKING_BFLOAT16 };
        for (int turn = 0; turn < 30; turn++) {
            fill(from, COUNT_MAX, TUTTI_FLOAT32);
            for (size_t i = 0; i < COUNT_MAX; i += 3) from[i] = (float)ldexp(from[i], -20);
            pack_and_unpack(&how, COUNT_MAX, false);
            for (size_t i = 0; i < COUNT_MAX; i++) {
                double number = (double)from[i], nearest = decode(f, encode(f, number));
                if (isnan(from[i])) assert_true(isnan(arrived[i]));
                else if (isfinite(from[i]) && fabs(nearest) > most) assert_true(fabs((double)arrived[i]) == most);
                else assert_true((double)arrived[i] == nearest);
            }
        }
    }
}
static void test_integers_of_a_block_share_a_scale(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        if (forms[f].form != PACKING_INT8 && forms[f].form != PACKING_INT4) continue;
        float most = forms[f].form == PACKING_INT8 ? 127 : 7, slack = forms[f].stochastic ? 1.0f : 0.5f;
        fill_ordinary();
        pack_and_unpack(&forms[f], COUNT_MAX, false);
        for (size_t at = 0; at < COUNT_MAX; at += PACKING_BLOCK) {
            float largest = 0;
            for (size_t i = at; i < at + PACKING_BLOCK && i < COUNT_MAX; i++) largest = fmaxf(largest, fabsf(from[i]));
            for (size_t i = at; i < at + PACKING_BLOCK && i < COUNT_MAX; i++) {
                float code = arrived[i] / (largest / most);
                assert_true(fabsf(code - roundf(code)) < 1e-3f && fabsf(code) <= most + 1e-3f);
                assert_true(fabsf(arrived[i] - from[i]) <= (slack + 1e-3f) * largest / most);
            }
        }
    }
}
/* Over many seeds the mean is the given number, within six standard deviations. */
static void test_stochastic_rounding_has_the_right_mean(void **state)
{
    (void)state;
    enum { TURNS = 4000, NUMBERS = 64 };
    static double sum[NUMBERS];
    memset(sum, 0, sizeof sum);
    fill_ordinary();
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        struct packing how = { .form = PACKING_INT4, .stochastic = true, .seed = turn };
        pack_and_unpack(&how, NUMBERS, false);
        for (size_t i = 0; i < NUMBERS; i++) sum[i] += (double)arrived[i];
    }
    float largest = 0;
    for (size_t i = 0; i < NUMBERS; i++) largest = fmaxf(largest, fabsf(from[i]));
    for (size_t i = 0; i < NUMBERS; i++)
        assert_true(fabs(sum[i] / TURNS - (double)from[i]) < 6 * 0.5 * (double)(largest / 7) / sqrt(TURNS));
}
static int by_magnitude(const void *a, const void *b)
{
    float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
    return x < y ? 1 : x > y ? -1 : 0;
}
/* Checks that the `kept` largest numbers arrive and the others are 0. Numbers that differ by less than 0.1 % from the
   last kept one may be exchanged. */
static void check_largest(size_t kept, size_t count)
{
    static float sorted[COUNT_MAX];
    size_t found = 0;
    memcpy(sorted, from, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_magnitude);
    float bound = fabsf(sorted[kept - 1]), most = bound * 1.001f, least = bound * 0.999f;
    for (size_t i = 0; i < count; i++) {
        assert_true(arrived[i] == from[i] || arrived[i] == 0);
        if (fabsf(from[i]) > most) assert_true(arrived[i] == from[i]);
        if (fabsf(from[i]) < least) assert_true(arrived[i] == 0);
        found += arrived[i] != 0;
    }
    assert_true(found <= kept);
    if (bound != 0) assert_int_equal(found, kept);
}
static void test_topk_keeps_the_largest_numbers(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++)
        for (int c = 0; c < COUNTS; c++) {
            if (forms[f].form != PACKING_TOPK) continue;
            fill_ordinary();
            /* Some arrays have many equal numbers. */
            for (size_t i = 0; c % 3 == 0 && i < COUNT_MAX; i++) from[i] = (float)(random_bits() % 5) - 2;
            pack_and_unpack(&forms[f], counts[c], false);
            check_largest(packing_count_kept(&forms[f], counts[c]), counts[c]);
        }
}
/* The numbers that reach the threshold arrive, and no others. If there are too many, the largest ones arrive. */
static void test_threshold_keeps_the_numbers_that_reach_it(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++)
        for (int c = 0; c < COUNTS; c++) {
            size_t reach = 0, count = counts[c], kept;
            if (forms[f].form != PACKING_THRESHOLD) continue;
            fill_ordinary();
            pack_and_unpack(&forms[f], count, false);
            for (size_t i = 0; i < count; i++) reach += fabsf(from[i]) >= forms[f].threshold;
            kept = packing_count_kept(&forms[f], count);
            assert_int_equal(packing_length(&forms[f], packed, count), 4 + 8 * (reach < kept ? reach : kept));
            if (reach > kept) check_largest(kept, count);
            for (size_t i = 0; i < count && reach <= kept; i++)
                assert_true(arrived[i] == (fabsf(from[i]) >= forms[f].threshold ? from[i] : 0));
        }
}
static void test_randomk_draws_one_number_of_each_part(void **state)
{
    (void)state;
    enum { KEPT = 64, PART = PACKING_GROUP / KEPT, TURNS = 2000 };
    static int drawn[PART];
    memset(drawn, 0, sizeof drawn);
    for (size_t i = 0; i < COUNT_MAX; i++) from[i] = 1;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        struct packing how = { .form = PACKING_RANDOMK, .kept = KEPT, .seed = turn * 77 };
        pack_and_unpack(&how, PACKING_GROUP, false);
        for (size_t part = 0; part < KEPT; part++) {
            int of_part = 0;
            for (size_t i = 0; i < PART; i++) {
                of_part += arrived[part * PART + i] == 1;
                drawn[i] += arrived[part * PART + i] == 1;
            }
            assert_int_equal(of_part, 1);
        }
    }
    double each = (double)TURNS * KEPT / PART;
    for (size_t i = 0; i < PART; i++) assert_true(fabs(drawn[i] - each) < 6 * sqrt(each));
}

/* ---- infinity and NaN, sums, types ---- */
static void test_infinity_and_nan_arrive(void **state)
{
    (void)state;
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    for (int f = 0; f < FORMS; f++)
        for (int b = 0; b < 3; b++) {
            size_t at = 1500, not_finite = 0;
            enum packing_form form = forms[f].form;
            bool shares = form == PACKING_INT8 || form == PACKING_INT4;
            fill_ordinary();
            from[at] = bad[b];
            pack_and_unpack(&forms[f], COUNT_MAX, true);
            for (size_t i = 0; i < COUNT_MAX; i++) {
                assert_true(isfinite(lost[i]));
                not_finite += !isfinite(arrived[i]);
                if (shares) assert_true(isnan(arrived[i]) == (i / PACKING_BLOCK == at / PACKING_BLOCK));
            }
            if (!shares) assert_int_equal(not_finite, 1);
            if (!shares && form != PACKING_RANDOMK) assert_true(same(arrived[at], bad[b]));
        }
}
/* All numbers are NaN, as after a step that went wrong. Some of them arrive, and the residual is cleared. */
static void test_residual_keeps_no_nan(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        size_t not_finite = 0;
        for (size_t i = 0; i < COUNT_MAX; i++) from[i] = before[i] = NAN;
        pack_and_unpack(&forms[f], COUNT_MAX, true);
        for (size_t i = 0; i < COUNT_MAX; i++) {
            assert_true(lost[i] == 0);
            not_finite += isnan(arrived[i]);
        }
        assert_true(not_finite > 0);
    }
}
static void test_sources_are_added_in_order(void **state)
{
    (void)state;
    static char three[SOURCES][sizeof packed];
    static float sum[COUNT_MAX];
    const void *sources[SOURCES] = { three[0], three[1], three[2] };
    for (int f = 0; f < FORMS; f++) {
        memset(sum, 0, sizeof sum);
        for (int s = 0; s < SOURCES; s++) {
            fill_ordinary();
            pack_and_unpack(&forms[f], COUNT_MAX, false);
            memcpy(three[s], packed, sizeof packed);
            for (size_t i = 0; i < COUNT_MAX; i++) sum[i] += arrived[i];
        }
        unpack_find(TUTTI_FLOAT32)(arrived, sources, SOURCES, COUNT_MAX, &forms[f], 1000, 1.0f / SOURCES);
        for (size_t i = 0; i < COUNT_MAX; i++) assert_true(arrived[i] == sum[i] * (1.0f / SOURCES));
    }
}
static void test_bfloat16_is_packed_and_unpacked(void **state)
{
    (void)state;
    static uint16_t narrow[COUNT_MAX], out[COUNT_MAX];
    static float wide[COUNT_MAX];
    static char other[sizeof packed];
    const void *sources[1] = { packed };
    struct format format = format_of(TUTTI_BFLOAT16);
    for (int f = 0; f < FORMS; f++) {
        for (size_t i = 0; i < COUNT_MAX; i++) {
            narrow[i] = (uint16_t)ordinary_code(TUTTI_BFLOAT16);
            wide[i] = (float)decode(format, narrow[i]);
        }
        pack_find(TUTTI_BFLOAT16)(packed, narrow, NULL, COUNT_MAX, &forms[f], 0);
        pack_find(TUTTI_FLOAT32)(other, wide, NULL, COUNT_MAX, &forms[f], 0);
        assert_memory_equal(packed, other, packing_length(&forms[f], packed, COUNT_MAX));
        unpack_find(TUTTI_BFLOAT16)(out, sources, 1, COUNT_MAX, &forms[f], 0, 1.0f);
        unpack_find(TUTTI_FLOAT32)(arrived, sources, 1, COUNT_MAX, &forms[f], 0, 1.0f);
        for (size_t i = 0; i < COUNT_MAX; i++) assert_int_equal(out[i], encode(format, (double)arrived[i]));
    }
    assert_null(pack_find(TUTTI_FLOAT64));
    assert_null(unpack_find(TUTTI_DTYPE_COUNT));
}

/* ---- received packings ---- */
static size_t kept_of(const struct packing *how, size_t count)
{
    return (packing_length(how, packed, count) - (how->form == PACKING_THRESHOLD ? 4 : 0)) / 8;
}
static char *place_at(const struct packing *how, size_t kept, size_t i)
{
    return packed + (how->form == PACKING_THRESHOLD ? 4 : 0) + (kept + i) * 4;
}
static void test_complete_packing_is_valid(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++)
        for (int c = 0; c < COUNTS; c++) {
            fill_ordinary();
            pack_and_unpack(&forms[f], counts[c], false);
            size_t bytes = packing_length(&forms[f], packed, counts[c]);
            assert_true(packing_is_valid(&forms[f], packed, bytes, counts[c]));
            assert_false(packing_is_valid(&forms[f], packed, bytes - 1, counts[c]));
            assert_false(packing_is_valid(&forms[f], packed, 0, counts[c]));
            assert_true(packing_is_valid(&forms[f], packed, 0, 0));
        }
}
/* A bit of a place, or of the number of places, is changed: unpacking writes nothing outside the array. */
static void test_changed_place_writes_nothing_outside(void **state)
{
    const void *sources[1] = { packed };
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        if (forms[f].form != PACKING_TOPK && forms[f].form != PACKING_THRESHOLD) continue;
        for (int turn = 0; turn < 500; turn++) {
            fill_ordinary();
            pack_and_unpack(&forms[f], COUNT_MAX, false);
            size_t kept = kept_of(&forms[f], COUNT_MAX), bytes = packing_length(&forms[f], packed, COUNT_MAX);
            if (kept == 0) continue;
            bool counts_wrong = forms[f].form == PACKING_THRESHOLD && turn % 4 == 0;
            char *at = counts_wrong ? packed : place_at(&forms[f], kept, random_bits() % kept);
            uint32_t was, is;
            memcpy(&was, at, sizeof was);
            is = was ^ 1u << random_bits() % 32;
            memcpy(at, &is, sizeof is);
            bool sound = packing_is_valid(&forms[f], packed, bytes, COUNT_MAX);
            if (counts_wrong || is >= COUNT_MAX) assert_false(sound);
            if (!counts_wrong && is < COUNT_MAX && is / PACKING_STRIP == was / PACKING_STRIP) assert_true(sound);
            unpack_find(TUTTI_FLOAT32)(arrived, sources, 1, COUNT_MAX, &forms[f], 1000, 1.0f);
            for (size_t i = 0; i < GUARD * sizeof(float); i++) assert_int_equal(((char *)&arrived[COUNT_MAX])[i], 0x5a);
        }
    }
}
static void test_places_out_of_order_are_invalid(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        if (forms[f].form != PACKING_TOPK || forms[f].kept < 10) continue;
        fill_ordinary();
        pack_and_unpack(&forms[f], COUNT_MAX, false);
        size_t kept = kept_of(&forms[f], COUNT_MAX);
        uint32_t first, last;
        memcpy(&first, place_at(&forms[f], kept, 0), sizeof first);
        memcpy(&last, place_at(&forms[f], kept, kept - 1), sizeof last);
        memcpy(place_at(&forms[f], kept, 0), &last, sizeof last);
        memcpy(place_at(&forms[f], kept, kept - 1), &first, sizeof first);
        assert_false(packing_is_valid(&forms[f], packed, packing_length(&forms[f], packed, COUNT_MAX), COUNT_MAX));
    }
}
unit_function test_packing;
int test_packing(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residual_has_all_that_does_not_arrive),
        cmocka_unit_test(test_all_instruction_sets_give_the_same_bits),
        cmocka_unit_test(test_numbers_of_16_bits_are_the_nearest),
        cmocka_unit_test(test_integers_of_a_block_share_a_scale),
        cmocka_unit_test(test_stochastic_rounding_has_the_right_mean),
        cmocka_unit_test(test_topk_keeps_the_largest_numbers),
        cmocka_unit_test(test_threshold_keeps_the_numbers_that_reach_it),
        cmocka_unit_test(test_randomk_draws_one_number_of_each_part),
        cmocka_unit_test(test_infinity_and_nan_arrive),
        cmocka_unit_test(test_residual_keeps_no_nan),
        cmocka_unit_test(test_sources_are_added_in_order),
        cmocka_unit_test(test_bfloat16_is_packed_and_unpacked),
        cmocka_unit_test(test_complete_packing_is_valid),
        cmocka_unit_test(test_changed_place_writes_nothing_outside),
        cmocka_unit_test(test_places_out_of_order_are_invalid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
