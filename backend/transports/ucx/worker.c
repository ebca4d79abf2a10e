/* Starts, progresses and ends the worker, and holds the table of fabric operations. */
#include "backend/transports/ucx/worker.h"
#include "backend/base/settings.h"
#include <string.h>

struct worker worker;

/* ---- shutdown ---- */
/* Shuts down all endpoints, if the worker was created. */
static void ucx_worker_shutdown(struct fabric *fabric)
{
    if (!worker.ucp) return;
    ucx_endpoints_shutdown(fabric);
    ucx.ucp_worker_progress(worker.ucp);
}
/* Destroys the worker, the endpoints and the context, also after a start that failed. */
static void ucx_worker_finish(struct fabric *fabric)
{
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&worker.handshakes)) != NULL;) saved_msg_free(fabric, msg);
    if (worker.ucp) ucx.ucp_worker_destroy(worker.ucp);
    ucx_endpoints_free(fabric);
    if (worker.context) ucx.ucp_cleanup(worker.context);
    worker = (struct worker){ .ucp = NULL };
}

/* ---- start ---- */
/* Returns SYSTEM, with the text that UCX does not start; `what` names the part that has failed with `status`. */
static tutti_status ucx_start_fail(const char *what, ucs_status_t status)
{
    return status_fail(TUTTI_SYSTEM, "UCX %s does not start (%s): %s; TUTTI_LOG=info shows more", ucx_library_name(),
        what, ucx_status_text(status));
}
/* Sets options of UCX for which the user has set no environment variable. Excludes shared memory, which UCX would also
   try between containers of one machine. Restricts TCP to the interface `device` (NULL: any), because UCX would take
   any, loopback included. `simulated` means that hosts are simulated: then only TCP is used. */
static void ucx_config_set_defaults(ucp_config_t *config, const char *device, bool simulated)
{
    bool tcp_only = simulated || !ucx_has_rdma();
    if (!settings_read_variable("UCX_TLS")) ucx.ucp_config_modify(config, "TLS", tcp_only ? "tcp" : "^sm");
    if (device && tcp_only && !settings_read_variable("UCX_NET_DEVICES"))
        ucx.ucp_config_modify(config, "NET_DEVICES", device);
}
/* Creates the UCX context with active messages and wake-ups. */
static tutti_status ucx_context_create(const char *device, bool simulated)
{
    ucp_config_t *config;
    const ucp_params_t parameters = { .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP };
    ucs_status_t status = ucx.ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) return ucx_start_fail("configuration", status);
    ucx_config_set_defaults(config, device, simulated);
    status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &worker.context);
    ucx.ucp_config_release(config);
    return status == UCS_OK ? TUTTI_OK : ucx_start_fail("context", status);
}
/* Stores this process's address for others: the worker's address and fabric->life, which differs after each start of
   the fabric. */
static tutti_status ucx_worker_store_address(struct fabric *fabric)
{
    ucp_address_t *address;
    ucs_status_t status = ucx.ucp_worker_get_address(worker.ucp, &address, &fabric->address_bytes);
    if (status != UCS_OK) return ucx_start_fail("address", status);
    bool fits = fabric->address_bytes + sizeof fabric->life <= sizeof fabric->address;
    if (fits) {
        memcpy(fabric->address, address, fabric->address_bytes);
        memcpy(fabric->address + fabric->address_bytes, &fabric->life, sizeof fabric->life);
        fabric->address_bytes += sizeof fabric->life;
    }
    ucx.ucp_worker_release_address(worker.ucp, address);
    return fits ? TUTTI_OK
                : status_fail(TUTTI_UNSUPPORTED,
                      "UCX has an address of %zu bytes, which is too long: name fewer devices in UCX_NET_DEVICES",
                      fabric->address_bytes);
}
/* Creates the UCX worker, its event descriptor and its message handler. */
static tutti_status ucx_worker_create(struct fabric *fabric)
{
    const ucp_worker_params_t parameters = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED };
    const ucp_am_handler_param_t handler = { .field_mask =
                                                 UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = UCX_MESSAGE_ID,
        .cb = ucx_on_message };
    ucs_status_t status = ucx.ucp_worker_create(worker.context, &parameters, &worker.ucp);
    if (status != UCS_OK) return ucx_start_fail("worker", status);
    status = ucx.ucp_worker_get_efd(worker.ucp, &fabric->event_descriptor);
    if (status != UCS_OK) return ucx_start_fail("event", status);
    status = ucx.ucp_worker_set_am_recv_handler(worker.ucp, &handler);
    return status == UCS_OK ? ucx_worker_store_address(fabric) : ucx_start_fail("handler", status);
}
/* Loads UCX and creates its worker. The worker is cleared first, because a forked child inherits handles of its parent
   that it must not use. */
static tutti_status ucx_worker_start(struct fabric *fabric, const struct fabric_environment *environment)
{
    worker = (struct worker){ .ucp = NULL };
    TRY(ucx_library_load());
    TRY(ucx_context_create(environment->device, environment->simulated));
    int lock;
    TRY(ucx_reserve_port(&lock));
    tutti_status status = ucx_worker_create(fabric);
    ucx_unlock_ports(lock);
    return status;
}

/* ---- progress ---- */
/* Makes progress (fabric_operations). true: something happened. */
static bool ucx_worker_progress(struct fabric *fabric)
{
    bool moved = ucx.ucp_worker_progress(worker.ucp) != 0;
    if (fabric->needs_poll) ucx_advance_handshakes(fabric);
    return moved;
}
/* Progresses until no work is left, and arms the event descriptor. false: an event has come meanwhile. */
static bool ucx_worker_arm(struct fabric *fabric)
{
    while (ucx.ucp_worker_progress(worker.ucp)) {}
    if (fabric->needs_poll) ucx_advance_handshakes(fabric);
    return ucx.ucp_worker_arm(worker.ucp) != UCS_ERR_BUSY;
}
static const struct fabric_operations operations = { .name = "ucx",
    .start = ucx_worker_start,
    .shutdown = ucx_worker_shutdown,
    .finish = ucx_worker_finish,
    .connect = ucx_endpoint_create,
    .send = ucx_send,
    .fetch = ucx_fetch,
    .release = ucx_release,
    .progress = ucx_worker_progress,
    .arm = ucx_worker_arm,
    .disconnect = ucx_endpoint_disconnect };
struct fabric ucx_fabric = FABRIC(&operations);
