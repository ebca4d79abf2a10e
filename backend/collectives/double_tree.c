/* Two binary trees over the same ranks of a team, each for one of two pieces. A rank that forwards data in one tree is
 * a leaf of the other, so every rank's link is busy in both directions, and the tiles of the message form a pipeline.
 * (Sanders, Speck, Träff 2009: Two-tree algorithms for full bandwidth broadcast, reduction and scan)
 *
 * The root is at position 0, above both trees. The others are at positions 1 … p - 1, numbered from left to right: the
 * lowest set bit of a position is its height, and odd positions are leaves. In the second tree every rank is one
 * position further, which turns all inner nodes of the first tree into leaves. */
#include "backend/collectives/common.h"

/* Returns the index in the team of the rank at a position of a tree (0 or 1). */
static int double_tree_index_at(int size, int root, int tree, int position)
{
    int others = size - 1;
    if (position && tree) position = position == 1 ? others : position - 1;
    return int_modulo(root + position, size);
}
/* An inner position at height h, a power of two, has children h/2 to each side, or nearer where the tree ends. */
struct node double_tree_node(int size, int me, int root, int tree)
{
    int others = size - 1, relative = int_modulo(me - root, size),
        position = relative && tree ? relative % others + 1 : relative;
    int height = position ? position & -position : 2 * power_of_two_at_most(others),
        up = (position - height) | 2 * height, right = height / 2;
    struct node node = { -1, { -1, -1 } };
    while (right && position + right > others) right /= 2;
    if (position) node.parent = double_tree_index_at(size, root, tree, up <= others ? up : position - height);
    if (position && height > 1) node.child[0] = double_tree_index_at(size, root, tree, position - height / 2);
    if (right) node.child[1] = double_tree_index_at(size, root, tree, position + right);
    return node;
}
/* Returns the tree that this rank serves first, of which it is a leaf. Its parent there then does not wait until the
   rank has served its own children in the other tree. */
static int double_tree_first_to_serve(const struct team *team, int root)
{
    struct node node = double_tree_node(team->size, team->me, root, 0);
    return team->me != root && (node.child[0] >= 0 || node.child[1] >= 0);
}
/* Records the reduction of one half of the message along one tree: receives from the children, sums, sends to the
   parent. */
static void double_tree_reduce_half(struct schedule *schedule, const struct team *team, struct node node,
    struct span have, struct span sum)
{
    struct span recv_chunks = span_new_scratch(schedule, 2);
    for (int i = 0; i < 2; i++)
        if (node.child[i] >= 0) step_recv(schedule, span_part(recv_chunks, i, 1), team_rank(team, node.child[i]));
    for (int i = 0; i < 2; i++)
        if (node.child[i] >= 0) have = step_accumulate(schedule, sum, have, span_part(recv_chunks, i, 1));
    if (node.parent >= 0) step_send(schedule, have, team_rank(team, node.parent));
}
/* Each of the two pieces goes up one tree. */
void team_reduce_double_tree(struct schedule *schedule, const struct team *team, int root, struct span sum)
{
    struct span have = team_all_pieces(schedule, team, team->source);
    if (team_copy_sum_if_alone(schedule, team, sum)) return;
    for (int i = 0, tree = double_tree_first_to_serve(team, root); i < 2; i++, tree = !tree)
        double_tree_reduce_half(schedule, team, double_tree_node(team->size, team->me, root, tree),
            span_part(have, tree, 1), span_part(sum, tree, 1));
}
/* Each of the two pieces goes down one tree. */
void team_broadcast_double_tree(struct schedule *schedule, const struct team *team, int root)
{
    for (int i = 0, tree = double_tree_first_to_serve(team, root); i < 2; i++, tree = !tree) {
        struct node node = double_tree_node(team->size, team->me, root, tree);
        struct span half = team_piece(schedule, team, OUTPUT, tree);
        if (node.parent >= 0) step_recv(schedule, half, team_rank(team, node.parent));
        for (int k = 0; k < 2; k++)
            if (node.child[k] >= 0) step_send(schedule, half, team_rank(team, node.child[k]));
    }
}
