/* The only list of algorithms. A row makes a function an algorithm: it declares the function and adds it to the table,
 * and so to the proofs, the tests of costs, the printer and the settings. Rows of one collective stand together.
 * Columns: collective, name, function, flags.
 *
 * MESSAGES: ranks only send and receive, on any host. HOST_MEMORY: ranks touch peers' memory; all are on one host.
 * HIERARCHICAL: ranks touch peers' memory on their host, and send between hosts. For STAGE_IN_PLACE, EQUAL_CHUNKS and
 * FEW_HOSTS see struct algorithm in backend/schedule/schedule.h. */
#pragma once
#include "backend/collectives/collectives.h"

enum { MESSAGES = 0, HOST_MEMORY = 1, STAGE_IN_PLACE = 2, EQUAL_CHUNKS = 4, HIERARCHICAL = 8, FEW_HOSTS = 16 };
#define COLLECTIVES_TABLE(X)                                                                      \
    X(ALLREDUCE, naive, allreduce_naive, MESSAGES)                                                \
    X(ALLREDUCE, tree, allreduce_tree, MESSAGES)                                                  \
    X(ALLREDUCE, double_tree, allreduce_double_tree, MESSAGES)                                    \
    X(ALLREDUCE, ring, allreduce_ring, MESSAGES)                                                  \
    X(ALLREDUCE, doubling, allreduce_doubling, MESSAGES)                                          \
    X(ALLREDUCE, rabenseifner, allreduce_rabenseifner, MESSAGES)                                  \
    X(ALLREDUCE, circulant, allreduce_circulant, MESSAGES)                                        \
    X(ALLREDUCE, one_shot, allreduce_one_shot, HOST_MEMORY)                                       \
    X(ALLREDUCE, two_shot, allreduce_two_shot, HOST_MEMORY)                                       \
    X(ALLREDUCE, two_shot_read, allreduce_two_shot_read, HOST_MEMORY)                             \
    X(ALLREDUCE, hierarchy_ring, allreduce_hierarchy_ring, HIERARCHICAL | FEW_HOSTS)              \
    X(ALLREDUCE, hierarchy_circulant, allreduce_hierarchy_circulant, HIERARCHICAL | FEW_HOSTS)    \
    X(ALLREDUCE, hierarchy_rabenseifner, allreduce_hierarchy_rabenseifner, HIERARCHICAL | FEW_HOSTS)\
    X(ALLREDUCE, hierarchy_doubling, allreduce_hierarchy_doubling, HIERARCHICAL)                  \
    X(ALLREDUCE, hierarchy_double_tree, allreduce_hierarchy_double_tree, HIERARCHICAL)            \
    X(ALLREDUCE, leaders, allreduce_leaders, HIERARCHICAL)                                        \
    X(REDUCE, naive, reduce_naive, MESSAGES)                                                      \
    X(REDUCE, binomial, reduce_binomial, MESSAGES)                                                \
    X(REDUCE, double_tree, reduce_double_tree, MESSAGES)                                          \
    X(REDUCE, read, reduce_read, HOST_MEMORY)                                                     \
    X(REDUCE, two_shot, reduce_two_shot, HOST_MEMORY)                                             \
    X(REDUCE, two_shot_read, reduce_two_shot_read, HOST_MEMORY)                                   \
    X(REDUCE, hierarchy_binomial, reduce_hierarchy_binomial, HIERARCHICAL)                        \
    X(REDUCE, hierarchy_double_tree, reduce_hierarchy_double_tree, HIERARCHICAL)                  \
    X(REDUCE, leaders, reduce_leaders, HIERARCHICAL)                                              \
    X(BROADCAST, naive, broadcast_naive, MESSAGES)                                                \
    X(BROADCAST, binomial, broadcast_binomial, MESSAGES)                                          \
    X(BROADCAST, chain, broadcast_chain, MESSAGES)                                                \
    X(BROADCAST, double_tree, broadcast_double_tree, MESSAGES)                                    \
    X(BROADCAST, read, broadcast_read, HOST_MEMORY)                                               \
    X(BROADCAST, read_write, broadcast_read_write, HOST_MEMORY)                                   \
    X(BROADCAST, two_shot_read, broadcast_two_shot_read, HOST_MEMORY)                             \
    X(BROADCAST, hierarchy_binomial, broadcast_hierarchy_binomial, HIERARCHICAL)                  \
    X(BROADCAST, hierarchy_chain, broadcast_hierarchy_chain, HIERARCHICAL | FEW_HOSTS)            \
    X(BROADCAST, hierarchy_double_tree, broadcast_hierarchy_double_tree, HIERARCHICAL)            \
    X(BROADCAST, leaders, broadcast_leaders, HIERARCHICAL)                                        \
    X(REDUCE_SCATTER, ring, reduce_scatter_ring, MESSAGES)                                        \
    X(REDUCE_SCATTER, halving, reduce_scatter_halving, MESSAGES)                                  \
    X(REDUCE_SCATTER, circulant, reduce_scatter_circulant, MESSAGES)                              \
    X(REDUCE_SCATTER, read, reduce_scatter_read, HOST_MEMORY)                                     \
    X(REDUCE_SCATTER, hierarchy, reduce_scatter_hierarchy, HIERARCHICAL)                          \
    X(ALLGATHER, ring, allgather_ring, MESSAGES)                                                  \
    X(ALLGATHER, bruck, allgather_bruck, MESSAGES)                                                \
    X(ALLGATHER, read, allgather_read, HOST_MEMORY)                                               \
    X(ALLGATHER, write, allgather_write, HOST_MEMORY)                                             \
    X(ALLGATHER, hierarchy, allgather_hierarchy, HIERARCHICAL)                                    \
    X(ALLGATHER, leaders, allgather_leaders, HIERARCHICAL)                                        \
    X(ALL_TO_ALL, pairwise, all_to_all_pairwise, STAGE_IN_PLACE)                                  \
    X(ALL_TO_ALL, direct, all_to_all_direct, MESSAGES)                                            \
    X(ALL_TO_ALL, bruck, all_to_all_bruck, STAGE_IN_PLACE | EQUAL_CHUNKS)                         \
    X(ALL_TO_ALL, read, all_to_all_read, HOST_MEMORY)                                             \
    X(ALL_TO_ALL, write, all_to_all_write, HOST_MEMORY)                                           \
    X(ALL_TO_ALL, hierarchy, all_to_all_hierarchy,                                                \
      HIERARCHICAL | STAGE_IN_PLACE | EQUAL_CHUNKS)                                               \
    X(ALL_TO_ALL, hierarchy_direct, all_to_all_hierarchy_direct, HIERARCHICAL)                    \
    X(GATHER, naive, gather_naive, MESSAGES)                                                      \
    X(GATHER, binomial, gather_binomial, MESSAGES)                                                \
    X(GATHER, read, gather_read, HOST_MEMORY)                                                     \
    X(GATHER, write, gather_write, HOST_MEMORY)                                                   \
    X(GATHER, read_write, gather_read_write, HOST_MEMORY | EQUAL_CHUNKS)                          \
    X(GATHER, hierarchy, gather_hierarchy, HIERARCHICAL | EQUAL_CHUNKS)                           \
    X(SCATTER, naive, scatter_naive, MESSAGES)                                                    \
    X(SCATTER, binomial, scatter_binomial, MESSAGES)                                              \
    X(SCATTER, read, scatter_read, HOST_MEMORY)                                                   \
    X(SCATTER, read_write, scatter_read_write, HOST_MEMORY | EQUAL_CHUNKS)                        \
    X(SCATTER, hierarchy, scatter_hierarchy, HIERARCHICAL | EQUAL_CHUNKS)                         \
    X(BARRIER, naive, allreduce_naive, MESSAGES)                                                  \
    X(BARRIER, tree, allreduce_tree, MESSAGES)                                                    \
    X(BARRIER, dissemination, barrier_dissemination, MESSAGES)                                    \
    X(BARRIER, read, barrier_read, HOST_MEMORY)                                                   \
    X(BARRIER, hierarchy, barrier_hierarchy, HIERARCHICAL)

#define X(collective, name, function, flags) record_function function;
COLLECTIVES_TABLE(X)
#undef X
