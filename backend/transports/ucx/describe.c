/* Describes UCX for `tutti info`. */
#include "backend/transports/ucx/library.h"
#include "backend/transports/ucx/ucx.h"
#include <stdlib.h>
#include <string.h>

/* Writes the transports that UCX's own description names, in lines such as "resource 3: md 1 dev 2 flags -- tcp/eth0".
   Changes `text`. */
static void ucx_print_resources(char *text, char *out, size_t bytes)
{
    char *rest = NULL;
    size_t used = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *name = strstr(line, "resource ") ? strrchr(line, ' ') : NULL;
        if (!name || !strchr(name, '/') || used + 1 >= bytes) continue;
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "", name + 1);
    }
}
/* Writes the names of UCX's transports on this host, or "none". */
static void ucx_list_transports(char *out, size_t bytes)
{
    ucp_config_t *config;
    ucp_context_h context;
    const ucp_params_t parameters = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM };
    char *text = NULL;
    size_t length = 0;
    snprintf(out, bytes, "none");
    if (ucx.ucp_config_read(NULL, NULL, &config) != UCS_OK) return;
    ucs_status_t status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context);
    ucx.ucp_config_release(config);
    if (status != UCS_OK) return;
    FILE *stream = open_memstream(&text, &length);
    if (stream) {
        ucx.ucp_context_print_info(context, stream);
        fclose(stream);
        ucx_print_resources(text, out, bytes);
    }
    free(text);
    ucx.ucp_cleanup(context);
}
void ucx_describe(char *out, size_t bytes)
{
    char transports[512];
    if (ucx_library_load() != TUTTI_OK) {
        snprintf(out, bytes, "no: %s", status_detail());
        return;
    }
    ucx_list_transports(transports, sizeof transports);
    snprintf(out, bytes, "yes: UCX %s, with %s", ucx_library_name(), transports);
}
