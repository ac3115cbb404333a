/*
 * Every node of an emulated cluster has a host name of its own, although all run on one machine:
 * UNDERSTUDY_NODE of UNDERSTUDY_NODES is called node0, node1, ... Programs tell nodes apart by it.
 * All of these names mean this machine. Without UNDERSTUDY_NODE nothing is changed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core.h"

static bool host_name(char name[16]) {
    const char *node = getenv("UNDERSTUDY_NODE");
    if (!node || !*node)
        return false;
    snprintf(name, 16, "node%.10s", node);
    return true;
}

US_EXPORT int uname(struct utsname *system) {
    /* Not through the C library, whose uname is this one. */
    if (syscall(SYS_uname, system))
        return -1;
    char name[16];
    if (host_name(name))
        strcpy(system->nodename, name);
    return 0;
}

US_EXPORT int gethostname(char *out, size_t bytes) {
    struct utsname system;
    if (syscall(SYS_uname, &system))
        return -1;
    char name[16];
    const char *found = host_name(name) ? name : system.nodename;
    size_t length = strlen(found) + 1;
    memcpy(out, found, length < bytes ? length : bytes);
    if (length <= bytes)
        return 0;
    errno = ENAMETOOLONG;
    return -1;
}

/* Whether it is the name of a node of the cluster. */
static bool is_node(const char *name) {
    const char *count = getenv("UNDERSTUDY_NODES");
    char *end;
    if (!name || !count || strncmp(name, "node", 4) || name[4] < '0' || name[4] > '9')
        return false;
    return strtol(name + 4, &end, 10) < strtol(count, NULL, 10) && !*end;
}

typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);

US_EXPORT int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                          struct addrinfo **found) {
    static resolver *real;
    resolver *next = __atomic_load_n(&real, __ATOMIC_RELAXED);
    if (!next) {
        next = (resolver *)(uintptr_t)dlsym(RTLD_NEXT, "getaddrinfo");
        if (!next)
            return EAI_SYSTEM;
        __atomic_store_n(&real, next, __ATOMIC_RELAXED);
    }
    return next(is_node(name) ? "127.0.0.1" : name, service, hints, found);
}
