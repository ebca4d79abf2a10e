/* The library libibverbs is opened when it is first needed. It stays open, because its providers leave threads and
 * fork handlers behind. The header's inline functions (posting, polling) use the tables of the context and are not
 * listed. */
#pragma once
#include "backend/base/status.h"
#include <infiniband/verbs.h>
/* These macros of the header would call symbols of the library. */
#undef ibv_query_port
#undef ibv_reg_mr

/* Lists every function that tutti calls, as result, name, parameters and symbol version. ibv_query_port of this version
   fills the fields that are older than port_cap_flags2. */
#define VERBS_CALLS(X) \
    X(struct ibv_device **, ibv_get_device_list, (int *count), "IBVERBS_1.1") \
    X(void, ibv_free_device_list, (struct ibv_device * *list), "IBVERBS_1.1") \
    X(const char *, ibv_get_device_name, (struct ibv_device * device), "IBVERBS_1.1") \
    X(struct ibv_context *, ibv_open_device, (struct ibv_device * device), "IBVERBS_1.1") \
    X(int, ibv_close_device, (struct ibv_context * context), "IBVERBS_1.1") \
    X(int, ibv_query_device, (struct ibv_context * context, struct ibv_device_attr * out), "IBVERBS_1.1") \
    X(int, ibv_query_port, (struct ibv_context * context, uint8_t port, struct _compat_ibv_port_attr * out), \
        "IBVERBS_1.1") \
    X(int, ibv_query_gid, (struct ibv_context * context, uint8_t port, int index, union ibv_gid * out), "IBVERBS_1.1") \
    X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * context), "IBVERBS_1.1") \
    X(int, ibv_dealloc_pd, (struct ibv_pd * domain), "IBVERBS_1.1") \
    X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd * domain, void *at, size_t bytes, int access), "IBVERBS_1.1") \
    X(int, ibv_dereg_mr, (struct ibv_mr * region), "IBVERBS_1.1") \
    X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context * context), "IBVERBS_1.0") \
    X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel * channel), "IBVERBS_1.0") \
    X(struct ibv_cq *, ibv_create_cq, (struct ibv_context * context, int entries, void *cookie, \
        struct ibv_comp_channel *channel, int vector), "IBVERBS_1.1") \
    X(int, ibv_resize_cq, (struct ibv_cq * queue, int entries), "IBVERBS_1.1") \
    X(int, ibv_destroy_cq, (struct ibv_cq * queue), "IBVERBS_1.1") \
    X(int, ibv_get_cq_event, (struct ibv_comp_channel * channel, struct ibv_cq **out, void **cookie), "IBVERBS_1.1") \
    X(void, ibv_ack_cq_events, (struct ibv_cq * queue, unsigned count), "IBVERBS_1.1") \
    X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd * domain, struct ibv_qp_init_attr * how), "IBVERBS_1.1") \
    X(int, ibv_modify_qp, (struct ibv_qp * pair, struct ibv_qp_attr * how, int mask), "IBVERBS_1.1") \
    X(int, ibv_destroy_qp, (struct ibv_qp * pair), "IBVERBS_1.1") \
    X(struct ibv_srq *, ibv_create_srq, (struct ibv_pd * domain, struct ibv_srq_init_attr * how), "IBVERBS_1.1") \
    X(int, ibv_destroy_srq, (struct ibv_srq * queue), "IBVERBS_1.1") \
    X(struct ibv_ah *, ibv_create_ah, (struct ibv_pd * domain, struct ibv_ah_attr * how), "IBVERBS_1.1") \
    X(int, ibv_destroy_ah, (struct ibv_ah * address), "IBVERBS_1.1") \
    X(int, ibv_get_async_event, (struct ibv_context * context, struct ibv_async_event * out), "IBVERBS_1.1") \
    X(void, ibv_ack_async_event, (struct ibv_async_event * event), "IBVERBS_1.1") \
    X(const char *, ibv_wc_status_str, (enum ibv_wc_status status), "IBVERBS_1.1")
/* These pointers are NULL if the library is older than rdma-core 32 and 34, respectively. */
#define VERBS_OPTIONAL_CALLS(X) \
    X(ssize_t, _ibv_query_gid_table, (struct ibv_context * context, struct ibv_gid_entry * out, size_t most, \
        uint32_t flags, size_t entry_bytes), "IBVERBS_1.11") \
    X(struct ibv_mr *, ibv_reg_dmabuf_mr, (struct ibv_pd * domain, uint64_t offset, size_t bytes, uint64_t iova, \
        int descriptor, int access), "IBVERBS_1.12")

struct verbs_calls {
#define X(type, name, parameters, version) type (*name) parameters;
    VERBS_CALLS(X)
    VERBS_OPTIONAL_CALLS(X)
#undef X
};
/* The pointers are valid once verbs_library_load has returned OK; tests fill them in themselves. */
extern struct verbs_calls verbs;

/* Opens the library, once per process. UNSUPPORTED: no library is usable, and the error text lists the paths that were
   tried, why each was rejected, and what to do. */
tutti_status verbs_library_load(void);
/* Returns the path of the opened library, such as "libibverbs.so.1", or an empty text if no library is open. */
const char *verbs_library_name(void);
