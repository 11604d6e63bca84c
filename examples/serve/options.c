/* SPDX-License-Identifier: MIT */
/*
 * Options of the command line (see serve/options.h).
 */
#include "serve/options.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define OPTIONS_MAX 32u /* rows of both tables together */

int serve_parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *number)
{
    uint64_t value = 0;
    const char *at = text;

    for (; *at >= '0' && *at <= '9'; at++) {
        unsigned digit = (unsigned)(*at - '0');

        if (value > (UINT64_MAX - digit) / 10)
            return -1;
        value = value * 10 + digit;
    }
    if (at == text || *at || value < least || value > most)
        return -1;
    *number = value;
    return 0;
}

int serve_parse_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "kmgt";
    char digits[24];
    size_t count = strspn(text, "0123456789");
    const char *unit = text + count;
    unsigned shift = 0;
    uint64_t value;

    if (count == 0 || count >= sizeof(digits))
        return -1;
    memcpy(digits, text, count);
    digits[count] = '\0';
    if (serve_parse_number(digits, 0, UINT64_MAX, &value))
        return -1;
    for (unsigned i = 0; units[i]; i++) {
        if (*unit && (*unit | 0x20) == units[i])
            shift = 10 * (i + 1);
    }
    if (shift)
        unit++;
    if (*unit && strcasecmp(unit, "b") && (!shift || strcasecmp(unit, "ib")))
        return -1;
    if (value > UINT64_MAX >> shift)
        return -1;
    *bytes = value << shift;
    return 0;
}

static int parse_unsigned(const char *text, unsigned least, unsigned most, unsigned *into, char *why, size_t size)
{
    uint64_t value;

    if (serve_parse_number(text, least, most, &value)) {
        snprintf(why, size, "a number from %u to %u", least, most);
        return -1;
    }
    *into = (unsigned)value;
    return 0;
}

static int set_data(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    if (!*text) {
        snprintf(why, size, "the path of a file");
        return -1;
    }
    if (o->files == o->files_max) {
        snprintf(why, size, o->files_max == 1 ? "to be given once" : "to be given %u times at the most", o->files_max);
        return -1;
    }
    o->data[o->files++] = text;
    return 0;
}

static int set_memory(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    if (!serve_parse_size(text, &o->memory) && o->memory >= BP_MEMORY_MIN)
        return 0;
    snprintf(why, size, "a size of at least %u bytes, such as 256M or 4G", BP_MEMORY_MIN);
    return -1;
}

static int set_client_memory(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    if (!serve_parse_size(text, &o->client_memory) && o->client_memory >= 1u << 20 && o->client_memory <= SIZE_MAX / 4)
        return 0;
    snprintf(why, size, "a size of at least 1M, such as 256M");
    return -1;
}

/* HOST:PORT, [IPv6]:PORT, :PORT or PORT */
static int set_listen(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    const char *colon = strrchr(text, ':'), *host = text, *port = colon ? colon + 1 : text;
    size_t bytes = colon ? (size_t)(colon - text) : 0;
    uint64_t number;

    (void)own;
    if (bytes >= 2 && host[0] == '[' && host[bytes - 1] == ']') {
        host++;
        bytes -= 2;
    } else if (memchr(host, ':', bytes)) {
        goto wrong;
    }
    if (serve_parse_number(port, 0, 65535, &number) || bytes >= sizeof(o->host))
        goto wrong;
    if (colon) {
        memcpy(o->host, host, bytes);
        o->host[bytes] = '\0';
    }
    snprintf(o->port, sizeof(o->port), "%" PRIu64, number);
    return 0;
wrong:
    snprintf(why, size, "HOST:PORT, [IPV6]:PORT or PORT, with a port from 0 to 65535");
    return -1;
}

static int set_threads(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    return parse_unsigned(text, 1, SERVE_THREADS_MAX, &o->threads, why, size);
}

static int set_clients(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    return parse_unsigned(text, 1, 1000000, &o->clients_max, why, size);
}

static int set_timeout(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    return parse_unsigned(text, 1, 86400, &o->timeout_s, why, size);
}

static int parse_choice(const char *text, enum bp_choice *into, char *why, size_t size)
{
    if (!strcmp(text, "try"))
        *into = BP_TRY;
    else if (!strcmp(text, "on"))
        *into = BP_ON;
    else if (!strcmp(text, "off"))
        *into = BP_OFF;
    else {
        snprintf(why, size, "try, on or off");
        return -1;
    }
    return 0;
}

static int set_huge(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    return parse_choice(text, &o->huge, why, size);
}

static int set_direct(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    return parse_choice(text, &o->direct, why, size);
}

static int set_io(struct serve_options *o, void *own, const char *text, char *why, size_t size)
{
    (void)own;
    if (!strcmp(text, "try"))
        o->io = BP_IO_TRY;
    else if (!strcmp(text, "uring"))
        o->io = BP_IO_URING;
    else if (!strcmp(text, "psync"))
        o->io = BP_IO_PSYNC;
    else {
        snprintf(why, size, "try, uring or psync");
        return -1;
    }
    return 0;
}

static const struct serve_option common[] = {
    {"data", "FILE", "a file to serve: a regular file or a block device (required)", set_data},
    {"memory", "SIZE", "memory of the pool, such as 256M or 4G (required)", set_memory},
    {"listen", "HOST:PORT", "where to listen; port 0 takes a free one", set_listen},
    {"threads", "N", "event loops (default: one per CPU)", set_threads},
    {"huge", "try|on|off", "huge pages for the pool (default: try)", set_huge},
    {"direct", "try|on|off", "direct I/O on the file (default: try)", set_direct},
    {"io", "try|uring|psync", "how to read (default: try io_uring, else pread)", set_io},
    {"max-clients", "N", "connections at once (default: 10000)", set_clients},
    {"client-timeout", "SECONDS", "end clients that neither read nor finish a request (default: 60)", set_timeout},
    {"client-memory", "SIZE", "memory for all clients' buffers together (default: 256M)", set_client_memory},
};
#define COMMON_COUNT (sizeof(common) / sizeof(common[0]))

static const struct serve_option *option_row(const struct serve_option_set *added, unsigned i)
{
    return i < COMMON_COUNT ? &common[i] : &added->option[i - COMMON_COUNT];
}

static void print_help(const char *name, const char *summary, const struct serve_option_set *added,
                       const struct serve_options *defaults)
{
    printf("usage: %s --data FILE --memory SIZE [options]\n\n%s\n\n", name, summary);
    for (unsigned i = 0; i < COMMON_COUNT + added->count; i++) {
        const struct serve_option *row = option_row(added, i);
        char left[48];

        snprintf(left, sizeof(left), "--%s %s", row->name, row->value ? row->value : "");
        printf("  %-28s %s\n", left, row->help);
    }
    printf("  %-28s %s\n\n", "--help", "print this");
    printf("Without --listen: %s:%s. Exit status: 0 after SIGTERM or SIGINT, 1 if the server cannot start or\n"
           "goes wrong, 2 if the command line is wrong.\n",
           defaults->host, defaults->port);
}

/* One value, by its row. */
static enum serve_parsed set_option(const char *name, const struct serve_option *row,
                                    const struct serve_option_set *added, const char *value, struct serve_options *into)
{
    char why[160];

    if (!row->set(into, added->own, value ? value : "", why, sizeof(why)))
        return SERVE_RUN;
    fprintf(stderr, "%s: --%s '%s': expected %s\n", name, row->name, value ? value : "", why);
    return SERVE_USAGE;
}

static enum serve_parsed check_required(const char *name, const struct serve_options *into)
{
    const char *missing = !into->files && !into->no_files ? "--data FILE" : !into->memory ? "--memory SIZE" : NULL;

    if (!missing)
        return SERVE_RUN;
    fprintf(stderr, "%s: %s is required; --help lists the options\n", name, missing);
    return SERVE_USAGE;
}

enum serve_parsed serve_options_parse(const char *name, const char *summary, const struct serve_option_set *added,
                                      int argc, char **argv, struct serve_options *into)
{
    struct option long_options[OPTIONS_MAX + 2];
    const struct serve_options defaults = *into;
    unsigned count = (unsigned)COMMON_COUNT + added->count;
    enum serve_parsed parsed = SERVE_RUN;
    int row;

    if (count > OPTIONS_MAX)
        return SERVE_USAGE;
    memset(long_options, 0, sizeof(long_options));
    for (unsigned i = 0; i < count; i++) {
        long_options[i].name = option_row(added, i)->name;
        long_options[i].has_arg = option_row(added, i)->value ? required_argument : no_argument;
        long_options[i].val = (int)i + 1000;
    }
    long_options[count].name = "help";
    long_options[count].val = 'h';

    opterr = 0;
    while (parsed == SERVE_RUN && (row = getopt_long(argc, argv, ":h", long_options, NULL)) != -1) {
        if (row == 'h') {
            print_help(name, summary, added, &defaults);
            return SERVE_HELPED;
        }
        if (row == ':' || row == '?') {
            fprintf(stderr, "%s: %s '%s'; --help lists the options\n", name,
                    row == ':' ? "a value is missing after" : "unknown or ambiguous option", argv[optind - 1]);
            return SERVE_USAGE;
        }
        parsed = set_option(name, option_row(added, (unsigned)row - 1000), added, optarg, into);
    }
    if (parsed == SERVE_RUN && optind < argc) {
        fprintf(stderr, "%s: '%s' is not an option; --help lists the options\n", name, argv[optind]);
        return SERVE_USAGE;
    }
    return parsed == SERVE_RUN ? check_required(name, into) : parsed;
}
