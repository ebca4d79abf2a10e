/* The UCX library is opened when it is first needed. It stays open, because UCX does not support being unloaded. Its
 * defaults are changed so that it leaves the program's signal handlers, mmap and standard output alone. */
#pragma once
#include "backend/base/status.h"
#include <stdio.h>
#include <ucp/api/ucp.h>

/* Lists every UCX function that tutti calls, as result, name and parameters. UCX has all of them since 1.13. */
#define UCX_CALLS(X) \
    X(void, ucp_get_version, (unsigned *major, unsigned *minor, unsigned *release)) \
    X(ucs_status_t, ucp_config_read, (const char *prefix, const char *file, ucp_config_t **out)) \
    X(ucs_status_t, ucp_config_modify, (ucp_config_t * config, const char *name, const char *value)) \
    X(void, ucp_config_release, (ucp_config_t * config)) \
    X(ucs_status_t, ucp_init_version, (unsigned major, unsigned minor, const ucp_params_t *parameters, \
        const ucp_config_t *config, ucp_context_h *out)) \
    X(void, ucp_context_print_info, (const ucp_context_h context, FILE *stream)) \
    X(void, ucp_cleanup, (ucp_context_h context)) \
    X(ucs_status_t, ucp_worker_create, (ucp_context_h context, const ucp_worker_params_t *parameters, \
        ucp_worker_h *out)) \
    X(void, ucp_worker_destroy, (ucp_worker_h worker)) \
    X(ucs_status_t, ucp_worker_get_address, (ucp_worker_h worker, ucp_address_t **out, size_t *bytes)) \
    X(void, ucp_worker_release_address, (ucp_worker_h worker, ucp_address_t *address)) \
    X(unsigned, ucp_worker_progress, (ucp_worker_h worker)) \
    X(ucs_status_t, ucp_worker_get_efd, (ucp_worker_h worker, int *out)) \
    X(ucs_status_t, ucp_worker_arm, (ucp_worker_h worker)) \
    X(ucs_status_t, ucp_worker_set_am_recv_handler, (ucp_worker_h worker, const ucp_am_handler_param_t *parameters)) \
    X(ucs_status_t, ucp_ep_create, (ucp_worker_h worker, const ucp_ep_params_t *parameters, ucp_ep_h *out)) \
    X(ucs_status_ptr_t, ucp_ep_close_nbx, (ucp_ep_h ep, const ucp_request_param_t *parameters)) \
    X(ucs_status_ptr_t, ucp_am_send_nbx, (ucp_ep_h ep, unsigned id, const void *header, size_t header_bytes, \
        const void *data, size_t count, const ucp_request_param_t *parameters)) \
    X(ucs_status_ptr_t, ucp_am_recv_data_nbx, (ucp_worker_h worker, void *data, void *buffer, size_t count, \
        const ucp_request_param_t *parameters)) \
    X(void, ucp_am_data_release, (ucp_worker_h worker, void *data)) \
    X(ucs_status_t, ucp_request_check_status, (void *request)) \
    X(void, ucp_request_free, (void *request))

struct ucx_calls {
#define X(type, name, parameters) type (*name) parameters;
    UCX_CALLS(X)
#undef X
};
/* The pointers are valid once ucx_library_load has returned OK. */
extern struct ucx_calls ucx;

/* Opens the library, once per process. UNSUPPORTED: no library is usable, and the error text lists the paths that were
   tried, why each was rejected, and what to do. */
tutti_status ucx_library_load(void);
/* Returns the version and path of the opened library, such as "1.13.1 (libucp.so.0)". */
const char *ucx_library_name(void);
/* Returns whether this host has RDMA devices. */
bool ucx_has_rdma(void);
/* Returns UCX's text for a status. */
const char *ucx_status_text(ucs_status_t status);
