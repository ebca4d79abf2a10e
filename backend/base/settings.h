/* One table has all settings of the environment, and this module alone calls getenv. The table also makes
   docs/settings.md and the output of `tutti info`, and unknown TUTTI_* names cause a warning. A process reads the
   settings once. */
#pragma once
#include "include/tutti.h"

/* Each row has field, environment variable, kind, default, range of a number ("0 to 8", "1 or more") and help. */
#define SETTINGS_MAP(X) \
    X(log, "TUTTI_LOG", TEXT, "warn", "", "level of the log on stderr: error, warn, info or debug") \
    X(timeout_ms, "TUTTI_TIMEOUT_MS", NUMBER, "1800000", "1 or more", \
      "timeout of an operation and of joining, in milliseconds, for programs in C that give none; torch always gives " \
      "one, 30 minutes by default") \
    X(slow_ms, "TUTTI_SLOW_MS", NUMBER, "5000", "0 or more", \
      "time in milliseconds that a collective waits before a warning names the late ranks, once in a group on each " \
      "host, if the wait is also ten times the predicted and the average one (0: no warning)") \
    X(algorithm, "TUTTI_ALGORITHM", TEXT, "", "", "algorithms of collectives, as in allreduce=ring,broadcast=chain") \
    X(take_over, "TUTTI_TAKE_OVER", TEXT, "", "", \
      "torch backends that tutti replaces, as in nccl,gloo (read when torch is imported)") \
    X(bind, "TUTTI_BIND", TEXT, "", "", \
      "cores: binds each rank of a host to cores of its own (read when torch is imported; empty: off)") \
    X(debug, "TUTTI_DEBUG", TEXT, "", "0, 1, warn", \
      "1: in programs of torch, switches on the flight recorder, the log at level info, a timeout of 60 s and checks " \
      "of results; warn: the checks only warn (read when the first group is made; the same on all ranks)") \
    X(isa, "TUTTI_ISA", TEXT, "", "", \
      "best instruction set that the kernels may use: scalar, avx2, avx512 or neon (empty: the best of this CPU)") \
    X(tile_bytes, "TUTTI_TILE_BYTES", NUMBER, "0", "0 to 1073741824", \
      "tile size: bytes of a message that one step handles at a time (0: the cheapest on this machine; values " \
      "below 4096 count as 4096; between hosts at most 8 MiB are in flight)") \
    X(slots, "TUTTI_SLOTS", NUMBER, "0", "0 to 8", \
      "tiles in flight (0: 2 or 3 on one host, as many as the cache holds; 4 with messages)") \
    X(spins, "TUTTI_SPINS", NUMBER, "-1", "-1 or more", \
      "polls before a waiting thread yields (-1: derived from the cost of a sleep)") \
    X(yields, "TUTTI_YIELDS", NUMBER, "-1", "-1 or more", \
      "yields before a waiting thread sleeps, unless a yield shows that other programs want its core (-1: derived " \
      "from the cost of a sleep)") \
    X(hosts, "TUTTI_HOSTS", TEXT, "", "", \
      "simulates several hosts on this one: the number of hosts, or the host of each rank as in 0,1,0,1 (empty: " \
      "off)") \
    X(transport, "TUTTI_TRANSPORT", TEXT, "", "", \
      "transport between hosts: ucx, verbs, tcp, or several, as in verbs,ucx, of which each message takes the " \
      "one measured to be faster for it (empty: ucx on hosts with an active RDMA port, otherwise tcp; between " \
      "simulated hosts, shared memory)") \
    X(socket_ifname, "TUTTI_SOCKET_IFNAME", TEXT, "", "", \
      "network interfaces between hosts: names or prefixes, as in eth,ib0; =eth0 for exactly that one; " \
      "^docker,lo for all but these (empty: the one that leads to the store's host)") \
    X(ports, "TUTTI_PORTS", TEXT, "", "", \
      "TCP ports at which processes listen for other hosts, as in 30000-30100; each process takes the first free " \
      "ones (empty: any free port)") \
    X(ucx, "TUTTI_UCX", TEXT, "libucp.so.0", "", "UCX libraries to try in this order, separated by colons") \
    X(verbs, "TUTTI_VERBS", TEXT, "libibverbs.so.1", "", \
      "libibverbs libraries to try in this order, separated by colons") \
    X(verbs_device, "TUTTI_VERBS_DEVICE", TEXT, "", "", \
      "RDMA devices and ports to use, as in mlx5_0:1,mlx5_1 (empty: all active ones; with RoCE, those on the " \
      "interface between hosts)") \
    X(verbs_gid_index, "TUTTI_VERBS_GID_INDEX", NUMBER, "-1", "-1 to 65535", \
      "index of the address in the port's GID table (-1: the RoCE v2 address on the interface between hosts)") \
    X(verbs_sl, "TUTTI_VERBS_SL", NUMBER, "0", "0 to 15", \
      "service level of RDMA packets (InfiniBand: selects the virtual lane; RoCE: the priority)") \
    X(verbs_tc, "TUTTI_VERBS_TC", NUMBER, "0", "0 to 255", \
      "traffic class of RDMA packets (RoCE v2: its upper six bits are the DSCP)") \
    X(verbs_timeout, "TUTTI_VERBS_TIMEOUT", NUMBER, "17", "1 to 31", \
      "time an RDMA device waits for an acknowledgement before it sends again: n is 4.096 microseconds times 2^n") \
    X(verbs_retry_cnt, "TUTTI_VERBS_RETRY_CNT", NUMBER, "6", "0 to 7", \
      "retransmissions of an RDMA device before a connection counts as broken (7: without limit where RoCE is " \
      "emulated)") \
    X(verbs_rails, "TUTTI_VERBS_RAILS", NUMBER, "1", "1 to 4", \
      "queue pairs between two processes that share large messages, on the nearest ports in turn; the smaller " \
      "number of the two processes is used") \
    X(peer_timeout_ms, "TUTTI_PEER_TIMEOUT_MS", NUMBER, "5000", "1000 to 60000", \
      "time without a message from another host after which its ranks count as lost, in milliseconds") \
    X(secret_file, "TUTTI_SECRET_FILE", TEXT, "", "", \
      "file with a secret that processes must know in addition to the key from the store: the same on all hosts, " \
      "readable by its owner only (empty: none)") \
    X(encryption, "TUTTI_ENCRYPTION", TEXT, "", "empty, required", \
      "encrypts the traffic between hosts (required): TLS 1.3 by OpenSSL 3 with a key derived from the group's; " \
      "the same on all ranks; TCP only") \
    X(openssl, "TUTTI_OPENSSL", TEXT, "libssl.so.3", "", "OpenSSL library that encryption loads") \
    X(cuda, "TUTTI_CUDA", TEXT, "libcuda.so.1", "", \
      "CUDA drivers to try in this order, separated by colons (0: use none, so CUDA tensors of torch go through the " \
      "host)") \
    X(cuda_kernels, "TUTTI_CUDA_KERNELS", TEXT, "", "", \
      "libraries of GPU kernels to try in this order, separated by colons (empty: libtutti_cuda.so beside the " \
      "library)") \
    X(cuda_slot_bytes, "TUTTI_CUDA_SLOT_BYTES", NUMBER, "16777216", "8192 to 1073741824", \
      "device memory that each rank of a group that is opened for CUDA streams has for its slots; the same on all " \
      "ranks") \
    X(cache, "TUTTI_CACHE", TEXT, "", "", \
      "folder for the measured parameters of this machine (none: do not keep them; empty: tutti in " \
      "$XDG_CACHE_HOME or ~/.cache)") \
    X(streaming, "TUTTI_STREAMING", NUMBER, "-1", "-1 to 1", \
      "writes slots with stores that bypass the cache: 0 no, 1 yes, -1 whichever proves faster") \
    X(single_copy, "TUTTI_SINGLE_COPY", NUMBER, "-1", "-1 to 1", \
      "reads tensors of other processes directly through the kernel (single copy) instead of through shared " \
      "memory: 0 no, 1 wherever possible, -1 where it is faster") \
    X(tuner, "TUTTI_TUNER", NUMBER, "1", "0 to 2", \
      "now and then runs an operation on one host in another way than the one predicted to be fastest, and " \
      "measures it: 0 no, 1 yes, 2 all the time, whatever it costs (for tests)") \
    X(parameters, "TUTTI_MACHINE", TEXT, "", "", \
      "machine parameters that replace the measured ones, as in line=300,fetch=0.05 (tutti model lists their " \
      "names)")

#define SETTINGS_FIELD_TEXT(field) const char *field;
#define SETTINGS_FIELD_NUMBER(field) int64_t field;
struct settings {
#define X(field, variable, kind, value, range, help) SETTINGS_FIELD_##kind(field)
    SETTINGS_MAP(X)
#undef X
};
/* Returns the settings of this process, which the first call reads. An invalid number, or one out of its range,
   causes a warning, and the default is used. */
const struct settings *settings_get(void);
/* Reads the settings again, for tests. */
void settings_reload(void);
/* A row of the table as texts: the environment variable, its default, its range and its help. */
struct settings_row { const char *variable, *value, *range, *help; };
/* Sets *out to the rows of the table of settings, and returns their number. */
int settings_table(const struct settings_row **out);
/* Returns the value of an environment variable, or that of its former name, or NULL if neither is set. */
const char *settings_read_variable(const char *variable);
/* Returns the candidate nearest to `name` by edit distance, or NULL if each needs more edits than half of the
   characters of `name`. candidate_at(context, index) returns a candidate, or NULL after the last. */
const char *settings_find_nearest(const char *name, const char *(*candidate_at)(void *context, int index),
    void *context);
