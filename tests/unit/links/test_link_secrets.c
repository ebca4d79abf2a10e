/* If a process has a secret (TUTTI_SECRET_FILE), it opens links only to processes with the same secret. */
#include "backend/base/clock.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/links/links.h"
#include "backend/processes/secret.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <fcntl.h>
#include <sys/stat.h>

static char folder[] = "link-secrets-XXXXXX";
/* The secrets of both processes. NULL: the process has no secret. */
static const char *secrets[2];
/* Gives this process a secret, in a file with this mode. */
static void secret_set(const char *content, size_t bytes, mode_t mode)
{
    char path[80];
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    unlink(path);
    int file = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600);
    REQUIRE(file >= 0 && write(file, content, bytes) == (ssize_t)bytes && fchmod(file, mode) == 0);
    close(file);
    setenv("TUTTI_SECRET_FILE", path, 1);
    settings_reload();
}
/* ---- two processes ---- */
static void open_link(void)
{
    bool same = secrets[0] && secrets[1] && !strcmp(secrets[0], secrets[1]);
    if (secrets[rank]) secret_set(secrets[rank], strlen(secrets[rank]), 0600);
    REQUIRE(world_acquire(&world->identity[rank]) == TUTTI_OK);
    struct sock_address any = world_contact("127.0.0.1", 0);
    REQUIRE(links_listen(&any, &world->contact[rank]) == TUTTI_OK);
    world_barrier(2);
    if (same) {
        struct peer *peer = world_link(1 - rank);
        world_barrier(2);
        peer_release(peer);
    } else {
        struct peer *peer = world_hold(1 - rank);
        REQUIRE(link_await(peer, clock_ms() + JOIN_MS) == TUTTI_SYSTEM);
        REQUIRE(strstr(status_detail(), "the secret (TUTTI_SECRET_FILE) differs, or is missing on one"));
        world_barrier(2);
        peer_release(peer);
    }
    peers_release();
}
static void test_processes_with_one_secret_are_linked(void **state)
{
    (void)state;
    secrets[0] = secrets[1] = "we know this";
    for (int i = 0; i < 3; i++) world_run(2, open_link, 0);
}
static void test_processes_with_different_secrets_are_not_linked(void **state)
{
    (void)state;
    secrets[0] = "we know this", secrets[1] = "we know that";
    world_run(2, open_link, 0);
}
static void test_process_without_the_secret_is_not_linked(void **state)
{
    (void)state;
    secrets[0] = "we know this", secrets[1] = NULL;
    world_run(2, open_link, 0);
    secrets[0] = NULL, secrets[1] = "we know this";
    world_run(2, open_link, 0);
}

/* ---- the file ---- */
static void require_error(const char *text)
{
    struct key_id id;
    REQUIRE(group_key_add(world->key, &id) == TUTTI_SYSTEM);
    if (!strstr(status_detail(), text) || !strstr(status_detail(), "TUTTI_SECRET_FILE"))
        world_fail(text, __FILE__, __LINE__);
}
static void load_wrong_files(void)
{
    static char large[MOST_SECRET_BYTES + 1];
    struct identity mine;
    struct key_id id;
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    secret_set("x", 1, 0644);
    require_error("mode 0600 or 0400");
    secret_set("x", 1, 0601);
    require_error("mode 0600 or 0400");
    secret_set("", 0, 0600);
    require_error("is empty");
    secret_set(large, sizeof large, 0600);
    require_error("more than 4096");
    setenv("TUTTI_SECRET_FILE", folder, 1);
    settings_reload();
    require_error("regular file");
    setenv("TUTTI_SECRET_FILE", "/nowhere/at/all", 1);
    settings_reload();
    require_error("cannot open");
    if (geteuid() == 0) {
        secret_set("x", 1, 0600);
        REQUIRE(chown(settings_get()->secret_file, 65534, 65534) == 0);
        require_error("another user");
    }
    secret_set(large, sizeof large - 1, 0600);
    REQUIRE(group_key_add(world->key, &id) == TUTTI_OK && secret_is_set());
    peers_release();
    REQUIRE(!secret_is_set());
}
static void test_errors_name_the_mistake_of_the_file(void **state)
{
    (void)state;
    world_run(1, load_wrong_files, 0);
}
static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state)
{
    char path[80];
    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        unlink(path);
    }
    return rmdir(folder);
}
unit_function test_link_secrets;
int test_link_secrets(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes_with_one_secret_are_linked),
        cmocka_unit_test(test_processes_with_different_secrets_are_not_linked),
        cmocka_unit_test(test_process_without_the_secret_is_not_linked),
        cmocka_unit_test(test_errors_name_the_mistake_of_the_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
