/* Everything that can be set from outside: one table, the only getenv of the project. It prints itself, makes the
   table of docs/settings.md, and warns of a TUTTI_* name that it does not know. Read once per process. */
#pragma once
#include "include/tutti.h"

/*  field, environment variable, kind, default, range of a number ("0 to 8", "1 or more"), help */
#define SETTINGS_MAP(X) \
    X(log, "TUTTI_LOG", TEXT, "warn", "", "what is logged on stderr: error, warn, info, debug") \
    X(timeout_ms, "TUTTI_TIMEOUT_MS", NUMBER, "1800000", "1 or more", \
      "how long an operation or a join may take, in milliseconds") \
    X(algorithm, "TUTTI_ALGORITHM", TEXT, "", "", "algorithms by collective, as in allreduce=ring,broadcast=chain") \
    X(take_over, "TUTTI_TAKE_OVER", TEXT, "", "", \
      "backends of torch whose groups tutti makes instead, as in nccl,gloo (read when torch is imported)") \
    X(isa, "TUTTI_ISA", TEXT, "", "", \
      "the best instruction set the kernels may use: scalar, avx2, avx512, neon (empty: all)") \
    X(tile_bytes, "TUTTI_TILE_BYTES", NUMBER, "0", "0 to 1073741824", \
      "bytes of a message that are worked on at a time (0: what has the least price on this machine;" \
      " less than 4096 counts as 4096; between hosts at most 8 MiB are in flight)") \
    X(slots, "TUTTI_SLOTS", NUMBER, "0", "0 to 8", \
      "tiles in flight (0: 2 or 3 on one host, as they fit in the cache; 4 with messages)") \
    X(pauses, "TUTTI_PAUSES", NUMBER, "-1", "-1 or more", \
      "polls with a pause before a waiting thread yields (-1: by what a sleep costs)") \
    X(yields, "TUTTI_YIELDS", NUMBER, "-1", "-1 or more", \
      "yields before a waiting thread sleeps (-1: by what a sleep costs)") \
    X(hosts, "TUTTI_HOSTS", TEXT, "", "", "pretends that the ranks of a job are on several hosts: a number of blocks," \
      " or the host of each rank as in 0,1,0,1 (empty: no)") \
    X(transport, "TUTTI_TRANSPORT", TEXT, "", "", "how ranks on different hosts exchange messages: ucx, verbs, tcp," \
      " or several, as in verbs,ucx: each message by the one that was measured to be faster for it (empty: ucx on" \
      " hosts with an active RDMA port, tcp on others; between hosts that are pretended, shared memory)") \
    X(socket_ifname, "TUTTI_SOCKET_IFNAME", TEXT, "", "", "network interfaces between hosts: names or how they begin," \
      " as in eth,ib0; =eth0 that one only; ^docker,lo all but these (empty: the one that leads to the store's host)") \
    X(ucx, "TUTTI_UCX", TEXT, "libucp.so.0", "", "the UCX library; of several with a colon between them, the first" \
      " that can be loaded") \
    X(verbs, "TUTTI_VERBS", TEXT, "libibverbs.so.1", "", "the libibverbs library; of several with a colon between" \
      " them, the first that can be loaded") \
    X(verbs_device, "TUTTI_VERBS_DEVICE", TEXT, "", "", "RDMA devices and ports that lead to the other hosts, as in" \
      " mlx5_0:1,mlx5_1 (empty: all that are active, with RoCE those on the interface between hosts)") \
    X(verbs_gid_index, "TUTTI_VERBS_GID_INDEX", NUMBER, "-1", "-1 to 65535", \
      "the entry of a port's table of GIDs that is its address (-1: the one of RoCE v2 on the interface between" \
      " hosts)") \
    X(verbs_mtu, "TUTTI_VERBS_MTU", NUMBER, "0", "0 to 4096", \
      "the most bytes of a packet between RDMA ports: 256, 512, 1024, 2048, 4096 (0: as the port is set)") \
    X(verbs_service_level, "TUTTI_VERBS_SERVICE_LEVEL", NUMBER, "0", "0 to 15", \
      "the service level of packets between RDMA ports (of InfiniBand it gives the lane, of RoCE the priority)") \
    X(verbs_traffic_class, "TUTTI_VERBS_TRAFFIC_CLASS", NUMBER, "0", "0 to 255", \
      "the traffic class of packets between RDMA ports; of RoCE v2 its upper six bits are the DSCP") \
    X(verbs_timeout, "TUTTI_VERBS_TIMEOUT", NUMBER, "17", "1 to 31", \
      "how long an RDMA device waits for an acknowledgement before it sends again: n is 4.096 microseconds times 2^n") \
    X(verbs_retries, "TUTTI_VERBS_RETRIES", NUMBER, "6", "0 to 7", \
      "how often it sends again before the connection counts as broken (7: for ever, where RoCE is emulated)") \
    X(verbs_rails, "TUTTI_VERBS_RAILS", NUMBER, "1", "1 to 4", \
      "queue pairs between two processes that what is large is read by, on the nearest ports in turn; what both have" \
      " is used") \
    X(silence_ms, "TUTTI_SILENCE_MS", NUMBER, "5000", "1000 to 60000", \
      "how long another host may be silent before its ranks count as lost, in milliseconds") \
    X(secret_file, "TUTTI_SECRET_FILE", TEXT, "", "", "file, readable by its owner only, with a secret that processes" \
      " must know beside the key from the store, on all hosts (empty: none)") \
    X(encryption, "TUTTI_ENCRYPTION", TEXT, "", "empty, required", "what goes to other hosts is encrypted: TLS 1.3 by" \
      " OpenSSL 3, with a key that follows from the group's (required; alike on all ranks; TCP only)") \
    X(openssl, "TUTTI_OPENSSL", TEXT, "libssl.so.3", "", "the OpenSSL library that encryption uses") \
    X(cache, "TUTTI_CACHE", TEXT, "", "", "folder in which what was measured of this machine is kept" \
      " (none: nowhere; empty: tutti in $XDG_CACHE_HOME or ~/.cache)") \
    X(streaming, "TUTTI_STREAMING", NUMBER, "-1", "-1 to 1", \
      "slots are written around the cache: 0 no, 1 yes, -1 as it proves better") \
    X(single_copy, "TUTTI_SINGLE_COPY", NUMBER, "-1", "-1 to 1", \
      "tensors of other processes are read where they lie, by the kernel, instead of by way of shared memory: 0 no," \
      " 1 in all operations that look where tensors lie, -1 where that is quicker") \
    X(trials, "TUTTI_TRIALS", NUMBER, "1", "0 to 2", \
      "operations on one host now and then run what is not priced lowest, to see whether it takes less: 0 no, 1 yes," \
      " 2 all the time, whatever it costs (for tests)") \
    X(figures, "TUTTI_FIGURES", TEXT, "", "", "figures of the machine to go by in place of those measured, as in" \
      " line=300,fetch=0.05 (tutti model has their names)")

#define SETTINGS_FIELD_TEXT(field) const char *field;
#define SETTINGS_FIELD_NUMBER(field) int64_t field;
struct settings {
#define X(field, variable, kind, value, range, help) SETTINGS_FIELD_##kind(field)
    SETTINGS_MAP(X)
#undef X
};
/* The settings of this process; read on the first call. A value that is no number, or out of its range, is warned about
   and the default used. */
const struct settings *settings_get(void);
void settings_reload(void);                                            /* for tests */
struct settings_row { const char *variable, *value, *range, *help; };
int settings_table(const struct settings_row **out);    /* returns the number of rows */
const char *settings_given(const char *variable);       /* what the environment says, or NULL */
/* The candidate nearest to `name` by edit distance, or NULL if none is near. `next` returns NULL after the last. */
const char *settings_nearest(const char *name, const char *(*next)(void *context, int index), void *context);
