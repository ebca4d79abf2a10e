/* Each of the two trees has all ranks and a logarithmic depth, and no rank but the root has children in both. */
#include "backend/collectives/common.h"
#include "tests/support/unit.h"

enum { MOST = 130 };

static struct node node_of(int size, int root, int tree, int rank) { return double_tree_node(size, rank, root, tree); }
static int log_above(int n)
{
    int log = 0;
    while (1 << log < n) log++;
    return log;
}
static void test_children_and_parents_agree(void **state)
{
    (void)state;
    for (int size = 1; size <= MOST; size++)
        for (int tree = 0; tree < 2; tree++)
            for (int rank = 0, root = size / 3; rank < size; rank++) {
                struct node p = node_of(size, root, tree, rank);
                assert_int_equal(p.parent < 0, rank == root);
                for (int i = 0; i < 2; i++)
                    if (p.child[i] >= 0) assert_int_equal(node_of(size, root, tree, p.child[i]).parent, rank);
                if (p.parent < 0) continue;
                struct node above = node_of(size, root, tree, p.parent);
                assert_true((above.child[0] == rank) + (above.child[1] == rank) == 1);
            }
}
static void test_depth_of_the_trees_is_logarithmic(void **state)
{
    (void)state;
    for (int size = 1; size <= MOST; size++)
        for (int tree = 0; tree < 2; tree++)
            for (int rank = 0, root = size - 1; rank < size; rank++) {
                int depth = 0;
                for (int at = rank; at != root; at = node_of(size, root, tree, at).parent) assert_true(++depth <= size);
                assert_true(depth <= log_above(size));
            }
}
static void test_inner_nodes_of_one_tree_are_leaves_of_the_other(void **state)
{
    (void)state;
    for (int size = 2; size <= MOST; size++)
        for (int rank = 1; rank < size; rank++) {
            int inner = 0;
            for (int tree = 0; tree < 2; tree++) {
                struct node p = node_of(size, 0, tree, rank);
                inner += p.child[0] >= 0 || p.child[1] >= 0;
            }
            assert_true(inner <= 1);
        }
}
static void test_root_has_one_child_in_each_tree(void **state)
{
    (void)state;
    for (int size = 2; size <= MOST; size++)
        for (int tree = 0; tree < 2; tree++) {
            struct node p = node_of(size, 0, tree, 0);
            assert_true((p.child[0] >= 0) + (p.child[1] >= 0) == 1);
        }
}

unit_function test_double_tree;
int test_double_tree(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_children_and_parents_agree),
        cmocka_unit_test(test_depth_of_the_trees_is_logarithmic),
        cmocka_unit_test(test_inner_nodes_of_one_tree_are_leaves_of_the_other),
        cmocka_unit_test(test_root_has_one_child_in_each_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
