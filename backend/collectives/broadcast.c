/* Broadcast: each rank gets the root's message. Only the root has INPUT; the others receive into OUTPUT and forward
 * from there. */
#include "backend/collectives/common.h"

/* Naive: the root sends the message to all ranks. p - 1 rounds of n. */
void broadcast_naive(struct schedule *s)
{
    step_copy_root_input(s);
    if (s->rank != s->root) step_recv(s, span_of_buffer(s, s->rank, OUTPUT), s->root);
    for (int hop = 1; hop < s->size && s->rank == s->root; hop++)
        step_send(s, span_of_buffer(s, s->rank, OUTPUT), int_modulo(s->root + hop, s->size));
}

/* Binomial tree: in every round all ranks that have the message send it on, over half the last distance. ⌈log2 p⌉
   rounds; the root sends ⌈log2 p⌉ n. */
void team_broadcast_binomial(struct schedule *s, const struct team *t, int root)
{
    int v = int_modulo(t->me - root, t->size), bit = 1;
    struct span out = team_all_pieces(s, t, OUTPUT);
    while (bit < t->size && !(v & bit)) bit *= 2;
    if (v) step_recv(s, out, team_rank(t, v - bit + root));
    for (bit /= 2; bit; bit /= 2)
        if (v + bit < t->size) step_send(s, out, team_rank(t, v + bit + root));
}
void broadcast_binomial(struct schedule *s)
{
    struct team all = team_of_group(s);
    step_copy_root_input(s);
    team_broadcast_binomial(s, &all, s->root);
}

/* Chain: each rank sends to the next. p - 1 rounds of n; in S tiles p - 2 + S rounds of n/S, for long messages. */
void team_broadcast_chain(struct schedule *s, const struct team *t, int root)
{
    int v = int_modulo(t->me - root, t->size);
    if (v > 0) step_recv(s, team_all_pieces(s, t, OUTPUT), team_rank(t, t->me - 1));
    if (v < t->size - 1) step_send(s, team_all_pieces(s, t, OUTPUT), team_rank(t, t->me + 1));
}
void broadcast_chain(struct schedule *s)
{
    struct team all = team_of_group(s);
    step_copy_root_input(s);
    team_broadcast_chain(s, &all, s->root);
}

/* Double tree: each half of the message goes down a tree of its own. At most 2 ⌈log2 p⌉ + 1 rounds of n/2; a rank sends
   at most n, and tiles follow each other. (Sanders, Speck, Träff 2009) */
void broadcast_double_tree(struct schedule *s)
{
    schedule_cut(s, 2);
    struct team all = team_of_group(s);
    step_copy_root_input(s);
    team_broadcast_double_tree(s, &all, s->root);
}

/* ---- on one host ---- */
/* Read: each rank reads the root's message. 1 round; each rank reads n, all from one place. */
void broadcast_read(struct schedule *s)
{
    step_copy(s, span_of_buffer(s, s->rank, OUTPUT), span_of_buffer(s, s->root, INPUT));
}

/* Read and write: the root writes one chunk to all ranks, which read the other chunks from it. 1 round; each rank
   copies (p - 1)/p n. So in place, where the root has no other work, all are equally busy. */
void broadcast_read_write(struct schedule *s)
{
    schedule_cut(s, s->size);
    step_copy_root_input(s);
    for (int hop = 1; hop < s->size; hop++) {
        int other = int_modulo(s->root + hop, s->size);
        if (s->rank == s->root)
            step_copy(s, span_of_chunk(other, OUTPUT, s->root), span_of_chunk(s->root, INPUT, s->root));
        else step_copy(s, span_of_chunk(s->rank, OUTPUT, other), span_of_chunk(s->root, INPUT, other));
    }
}

/* Two shot: every rank reads one chunk from the root, and the other chunks from the ranks that have read them. 2
   rounds; each rank reads n, and about 2n is read from the root's memory instead of (p - 1)n. */
void broadcast_two_shot_read(struct schedule *s)
{
    schedule_cut(s, s->size);
    step_copy_root_input(s);
    if (s->rank == s->root) return;
    step_copy(s, span_of_chunk(s->rank, OUTPUT, s->rank), span_of_chunk(s->root, INPUT, s->rank));
    for (int hop = 1; hop < s->size; hop++) {
        int peer = int_modulo(s->rank + hop, s->size);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_chunk(peer, peer == s->root ? INPUT : OUTPUT, peer));
    }
}
