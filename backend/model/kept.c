/* The parameters of this machine on disk, from job to job: a small text in the user's cache folder. Its name contains
   the identity of the machine, so several machines may share a home. A file counts only if it is whole, of this machine
   and version, and with every parameter within its bounds; otherwise it counts as missing. A new file is written beside
   the old one and renamed, so a reader sees one of the two. */
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "backend/model/machine.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_BYTES = 2048, PATH_BYTES = 1280 };

/* ---- the folder ---- */
bool machine_file_folder(char *out, size_t bytes)
{
    const char *setting = settings_get()->cache, *cache = settings_read_variable("XDG_CACHE_HOME");
    const char *home = settings_read_variable("HOME");
    int length = -1;
    if (strcmp(setting, "none") == 0) return false;
    if (setting[0]) length = snprintf(out, bytes, "%s", setting);
    /* The XDG standard ignores relative paths. */
    else if (cache && cache[0] == '/') length = snprintf(out, bytes, "%s/tutti", cache);
    else if (home && home[0] == '/') length = snprintf(out, bytes, "%s/.cache/tutti", home);
    return length > 0 && (size_t)length < bytes;
}
/* Hashes a text by FNV-1a. */
static uint64_t text_hash_fnv1a(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}
/* Writes the path of the file for an identity. False: it is too long. */
static bool machine_file_path(const char *folder, const char *identity, char out[PATH_BYTES])
{
    return snprintf(out, PATH_BYTES, "%s/machine-%016" PRIx64, folder, text_hash_fnv1a(identity)) < PATH_BYTES;
}

/* ---- the text: the identity, a line for each parameter, and a hash of all lines ---- */
/* Formats the identity and the parameters, one line each, ended by a hash. Returns the length in bytes; 0: too long. */
static size_t machine_text_format(const char *identity, const struct machine *machine, char out[TEXT_BYTES])
{
    const struct machine_row *rows;
    int count = machine_get_rows(&rows);
    int length = snprintf(out, TEXT_BYTES, "%s\n", identity);
    for (int i = 0; i < count && length < TEXT_BYTES; i++)
        length += snprintf(out + length, (size_t)(TEXT_BYTES - length), "%s %.17g %s\n", rows[i].name,
            machine_get_parameter(machine, i), rows[i].unit);
    if (length < TEXT_BYTES)
        length += snprintf(out + length, (size_t)(TEXT_BYTES - length), "hash %016" PRIx64 "\n", text_hash_fnv1a(out));
    return length < TEXT_BYTES ? (size_t)length : 0;
}
/* Advances *at past `text` if *at begins with it. */
static bool text_skip_prefix(const char **at, const char *text)
{
    size_t length = strlen(text);
    if (strncmp(*at, text, length) != 0) return false;
    *at += length;
    return true;
}
/* Parses the text of machine_text_format. False: it is for another identity, damaged, or has a value out of bounds. */
static bool machine_text_parse(const char *text, const char *identity, struct machine *out)
{
    const struct machine_row *rows;
    int count = machine_get_rows(&rows);
    const char *at = text;
    char again[TEXT_BYTES];
    if (!text_skip_prefix(&at, identity) || !text_skip_prefix(&at, "\n")) return false;
    for (int i = 0; i < count; i++) {
        char *end;
        if (!text_skip_prefix(&at, rows[i].name) || !text_skip_prefix(&at, " ")) return false;
        machine_set_parameter(out, i, strtod(at, &end));
        at = end;
        if (!text_skip_prefix(&at, " ") || !text_skip_prefix(&at, rows[i].unit) || !text_skip_prefix(&at, "\n"))
            return false;
    }
    return machine_is_within_bounds(out) && machine_text_format(identity, out, again) && strcmp(text, again) == 0;
}
bool machine_file_read(const char *folder, const char *identity, struct machine *out)
{
    char path[PATH_BYTES], text[TEXT_BYTES];
    struct machine found;
    if (!machine_file_path(folder, identity, path)) return false;
    /* O_NONBLOCK, because the path may be a pipe. */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (length < 0) return false;
    text[length] = 0;
    if (!machine_text_parse(text, identity, &found)) return false;
    *out = found;
    return true;
}
/* Creates the folder, and its parent if that is missing, because ~/.cache may not exist. */
static bool folder_create_with_parent(const char *folder)
{
    char above[PATH_BYTES];
    if (mkdir(folder, 0700) == 0 || errno == EEXIST) return true;
    snprintf(above, sizeof above, "%s", folder);
    char *slash = strrchr(above, '/');
    if (errno != ENOENT || !slash || slash == above) return false;
    *slash = 0;
    return (mkdir(above, 0700) == 0 || errno == EEXIST) && mkdir(folder, 0700) == 0;
}
/* Replaces a file so that readers see the old or the new text. False: errno has the reason. */
static bool file_replace_atomically(const char *path, const char *text, size_t length)
{
    char beside[PATH_BYTES + 16];
    snprintf(beside, sizeof beside, "%s.XXXXXX", path);
    int file = mkostemp(beside, O_CLOEXEC);
    if (file < 0) return false;
    ssize_t written = write(file, text, length);
    bool whole = written == (ssize_t)length;
    /* A short write sets no errno; its usual cause is a full disk. */
    if (written >= 0 && !whole) errno = ENOSPC;
    whole &= close(file) == 0;
    if (whole && rename(beside, path) == 0) return true;
    int problem = errno;
    unlink(beside);
    errno = problem;
    return false;
}
bool machine_file_write(const char *folder, const char *identity, const struct machine *machine)
{
    char path[PATH_BYTES], text[TEXT_BYTES];
    size_t length = machine_text_format(identity, machine, text);
    if (!length || !machine_file_path(folder, identity, path)) return false;
    if (folder_create_with_parent(folder) && file_replace_atomically(path, text, length)) return true;
    const char *reason = strerror(errno), *asked = settings_get()->cache;
    if (asked[0])
        LOG(WARN,
            "TUTTI_CACHE=%s: the measured parameters of this machine cannot be kept there (%s), so every job "
            "measures again; give a writable folder, or none",
            asked, reason);
    else LOG(INFO, "the measured parameters of this machine cannot be kept in %s: %s", folder, reason);
    return false;
}
