/* Two binary trees over the same ranks of a team, each for one of two pieces. A rank that forwards data in one tree is
 * a leaf of the other, so every rank's link is busy in both directions, and the tiles of the message form a pipeline.
 * (Sanders, Speck, Träff 2009: Two-tree algorithms for full bandwidth broadcast, reduction and scan)
 *
 * The root is at position 0, above both trees. The others are at positions 1 … p - 1, numbered from left to right: the
 * lowest set bit of a position is its height, and odd positions are leaves. In the second tree every rank is one
 * position further, which turns all inner nodes of the first tree into leaves. */
#include "backend/collectives/common.h"

static int double_tree_index_at(int size, int root, int tree, int position)
{
    int others = size - 1;
    if (position && tree) position = position == 1 ? others : position - 1;
    return int_modulo(root + position, size);
}
struct node double_tree_node(int size, int me, int root, int tree)
{
    int others = size - 1, nth = int_modulo(me - root, size), at = nth && tree ? nth % others + 1 : nth;
    int height = at ? at & -at : 2 * power_of_two_below(others), up = (at - height) | 2 * height, right = height / 2;
    struct node node = { -1, { -1, -1 } };
    while (right && at + right > others) right /= 2;
    if (at) node.parent = double_tree_index_at(size, root, tree, up <= others ? up : at - height);
    if (at && height > 1) node.child[0] = double_tree_index_at(size, root, tree, at - height / 2);
    if (right) node.child[1] = double_tree_index_at(size, root, tree, at + right);
    return node;
}
/* Returns the tree that this rank serves first. In it the rank is a leaf, so its parent there need not wait for its
   children in the other tree. */
static int double_tree_first_served(const struct team *team, int root)
{
    struct node node = double_tree_node(team->size, team->me, root, 0);
    return team->me != root && (node.child[0] >= 0 || node.child[1] >= 0);
}
/* Records the reduction of one half of the message along one tree: receives from the children, sums, sends to the
   parent. */
static void double_tree_reduce_half(struct schedule *schedule, const struct team *team, struct node node,
    struct span have, struct span sum)
{
    struct span landing = span_new_scratch(schedule, 2);
    for (int i = 0; i < 2; i++)
        if (node.child[i] >= 0) step_recv(schedule, span_part(landing, i, 1), team_rank(team, node.child[i]));
    for (int i = 0; i < 2; i++)
        if (node.child[i] >= 0) have = step_accumulate(schedule, sum, have, span_part(landing, i, 1));
    if (node.parent >= 0) step_send(schedule, have, team_rank(team, node.parent));
}
void team_reduce_double_tree(struct schedule *schedule, const struct team *team, int root, struct span sum)
{
    struct span have = team_all_pieces(schedule, team, team->source);
    if (team_is_alone_with_sum(schedule, team, sum)) return;
    for (int i = 0, tree = double_tree_first_served(team, root); i < 2; i++, tree = !tree)
        double_tree_reduce_half(schedule, team, double_tree_node(team->size, team->me, root, tree),
            span_part(have, tree, 1), span_part(sum, tree, 1));
}
void team_broadcast_double_tree(struct schedule *schedule, const struct team *team, int root)
{
    for (int i = 0, tree = double_tree_first_served(team, root); i < 2; i++, tree = !tree) {
        struct node node = double_tree_node(team->size, team->me, root, tree);
        struct span half = team_piece(schedule, team, OUTPUT, tree);
        if (node.parent >= 0) step_recv(schedule, half, team_rank(team, node.parent));
        for (int k = 0; k < 2; k++)
            if (node.child[k] >= 0) step_send(schedule, half, team_rank(team, node.child[k]));
    }
}
