/* Kernels neither read nor write outside of their arrays. Every array ends directly before, and then begins directly
   behind, a page without access, so a violation is a segmentation fault. */
#include "kernels/blend.h"
#include "kernels/compress.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"
#include <sys/mman.h>

enum { FROM = 3, TO = 2, ARRAYS = FROM + TO };
/* One page for each array, between two pages without access. */
static char *pages[ARRAYS];
static size_t page_bytes;

static int map_pages(void **state)
{
    (void)state;
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < ARRAYS; i++) {
        char *three = mmap(NULL, 3 * page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (three == MAP_FAILED || mprotect(three + page_bytes, page_bytes, PROT_READ | PROT_WRITE) != 0) return -1;
        pages[i] = three + page_bytes;
    }
    return 0;
}

static int unmap_pages(void **state)
{
    (void)state;
    for (int i = 0; i < ARRAYS; i++) munmap(pages[i] - page_bytes, 3 * page_bytes);
    return 0;
}

static void call(tutti_dtype dtype, tutti_op op, size_t count, bool at_end)
{
    size_t bytes = count * bytes_of(dtype);
    void *to[TO];
    const void *from[FROM];
    for (int i = 0; i < FROM; i++) from[i] = pages[i] + (at_end ? page_bytes - bytes : 0);
    for (int i = 0; i < TO; i++) to[i] = pages[FROM + i] + (at_end ? page_bytes - bytes : 0);
    for (int from_count = 1; from_count <= FROM; from_count++) {
        for (int to_count = 1; to_count <= TO; to_count++) {
            reduce_streamed_function *streamed = reduce_streamed_find(dtype, op);
            reduce_find(dtype, op)(to, to_count, from, from_count, count, 1);
            if (streamed) streamed(to, to_count, from, from_count, count, 1);
        }
    }
    if (scale_find(dtype)) scale_find(dtype)(to[0], from[0], count, 0.5);
}

static void test_reductions_stay_inside_their_arrays(void **state)
{
    (void)state;
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
            for (tutti_op op = 0; op < TUTTI_OP_COUNT; op++) {
                for (size_t bytes = 0; reduce_find(dtype, op) && bytes <= 600; bytes += bytes_of(dtype)) {
                    call(dtype, op, bytes / bytes_of(dtype), true);
                    call(dtype, op, bytes / bytes_of(dtype), false);
                }
            }
        }
    }
}

static void pack(const struct packing *how, size_t count, bool at_end)
{
    size_t bytes = packing_bytes(how, count);
    void *at[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        at[i] = pages[i] + (at_end ? page_bytes - (i < 2 ? bytes : count * sizeof(float)) : 0);
    memset(at[2], 0, count * sizeof(float));
    memset(at[3], 0, count * sizeof(float));
    for (int i = 0; i < 2; i++) pack_find(TUTTI_FLOAT32)(at[i], at[2], i ? at[3] : NULL, count, how, 0);
    unpack_find(TUTTI_FLOAT32)(at[4], (const void *const *)at, 2, count, how, 0, 1.0f);
}
static void test_packing_stays_inside_its_arrays(void **state)
{
    (void)state;
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (enum packing_form form = 0; form < PACKING_FORMS; form++) {
            struct packing how = { .form = form, .kept = 30, .stochastic = true };
            for (size_t count = 1; count <= page_bytes / sizeof(float); count += count < 300 ? 1 : 31) {
                pack(&how, count, true);
                pack(&how, count, false);
            }
        }
    }
}

enum { ROWS = 4 };
/* Puts rows of zeros into pages of their own. */
static void rows_place(char **at, size_t bytes, bool at_end)
{
    for (int i = 0; i < ROWS; i++) {
        at[i] = pages[i] + (at_end ? page_bytes - bytes : 0);
        memset(at[i], 0, bytes);
    }
}
static void normalise(tutti_dtype dtype, size_t columns, bool at_end)
{
    char *at[ROWS];
    rows_place(at, columns * bytes_of(dtype), at_end);
    struct norm how = { .centred = at_end, .columns = columns, .weight = at[2], .bias = at[3] };
    norm_find(dtype)(&how, at[0], at[1], 1);
}
static void test_norm_stays_inside_its_arrays(void **state)
{
    (void)state;
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
            for (size_t columns = 1; norm_find(dtype) && columns <= 600; columns++) {
                normalise(dtype, columns, true);
                normalise(dtype, columns, false);
            }
        }
    }
}
static void blend(tutti_dtype dtype, size_t columns, bool at_end)
{
    char *at[ROWS];
    rows_place(at, columns * bytes_of(dtype), at_end);
    const float weights[3] = { 1, 2, 3 };
    blend_find(dtype)(at[0], (const void *const[]){ at[1], NULL, at[2] }, at_end ? weights : NULL, 3, columns);
    assert_true(dot_find(dtype)(at[1], at[2], columns) == 0);
}
static void test_blend_stays_inside_its_arrays(void **state)
{
    (void)state;
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
            for (size_t columns = 1; blend_find(dtype) && columns <= 300; columns++) {
                blend(dtype, columns, true);
                blend(dtype, columns, false);
            }
        }
    }
}

unit_function test_bounds;
int test_bounds(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_reductions_stay_inside_their_arrays),
        cmocka_unit_test(test_packing_stays_inside_its_arrays), cmocka_unit_test(test_norm_stays_inside_its_arrays),
        cmocka_unit_test(test_blend_stays_inside_its_arrays) };
    return cmocka_run_group_tests(tests, map_pages, unmap_pages);
}
