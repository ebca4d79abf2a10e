/* Two binary trees over the same ranks, each for one half of the message. Who passes data on in one tree is a leaf
 * of the other, so every rank's link is busy in both directions, and the tiles of the message make it a pipeline.
 * (Sanders, Speck, Träff 2009: Two-tree algorithms for full bandwidth broadcast, reduction and scan)
 *
 * The root stands at position 0, above both trees. The others stand at positions 1 … p - 1, numbered from left to
 * right: the lowest set bit of a position is its height, odd positions are leaves. In the second tree everyone
 * stands one position further, which turns all inner nodes of the first into leaves. */
#include "backend/collectives/common.h"

static int rank_standing_at(const struct schedule *s, int root, int tree, int position)
{
    int others = s->size - 1;
    if (position && tree) position = position == 1 ? others : position - 1;
    return mod(root + position, s->size);
}
struct node double_tree_node(const struct schedule *s, int root, int tree)
{
    int others = s->size - 1, nth = mod(s->rank - root, s->size), at = nth && tree ? nth % others + 1 : nth;
    int height = at ? at & -at : 2 * power_below(others), up = (at - height) | 2 * height, right = height / 2;
    struct node node = { -1, { -1, -1 } };
    while (right && at + right > others) right /= 2;
    if (at) node.parent = rank_standing_at(s, root, tree, up <= others ? up : at - height);
    if (at && height > 1) node.child[0] = rank_standing_at(s, root, tree, at - height / 2);
    if (right) node.child[1] = rank_standing_at(s, root, tree, at + right);
    return node;
}
/* The tree to serve first: where I am a leaf, so that what is needed of me there does not wait for my children here. */
static int leaf_tree(const struct schedule *s, int root)
{
    struct node node = double_tree_node(s, root, 0);
    return s->rank != root && (node.child[0] >= 0 || node.child[1] >= 0);
}
static void reduce_half(struct schedule *s, struct node node, struct span have, struct span sum)
{
    struct span landing = fresh(s, 2);
    for (int i = 0; i < 2; i++)
        if (node.child[i] >= 0) step_recv(s, span_part(landing, i, 1), node.child[i]);
    for (int i = 0; i < 2; i++)
        if (node.child[i] >= 0) have = accumulate(s, sum, have, span_part(landing, i, 1));
    if (node.parent >= 0) step_send(s, have, node.parent);
}
void double_tree_reduce(struct schedule *s, int root, struct span sum)
{
    struct span have = whole(s, s->rank, INPUT);
    if (s->size == 1) step_copy(s, sum, have);
    for (int i = 0, tree = leaf_tree(s, root); i < 2; i++, tree = !tree)
        reduce_half(s, double_tree_node(s, root, tree), span_part(have, tree, 1), span_part(sum, tree, 1));
}
void double_tree_broadcast(struct schedule *s, int root)
{
    for (int i = 0, tree = leaf_tree(s, root); i < 2; i++, tree = !tree) {
        struct node node = double_tree_node(s, root, tree);
        struct span half = chunk(s->rank, OUTPUT, tree);
        if (node.parent >= 0) step_recv(s, half, node.parent);
        for (int k = 0; k < 2; k++)
            if (node.child[k] >= 0) step_send(s, half, node.child[k]);
    }
}
