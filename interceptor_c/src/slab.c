/* Objects behind opaque handles (streams, events, functions, graphs). */
#include <string.h>
#include <sys/mman.h>

#include "core.h"

#define SLAB_BYTES (256ull << 20) /* of address space; pages are taken when touched */

void *us_slab_take(struct us_slab *slab) {
    us_lock_take(&slab->lock);
    void *object = NULL;
    if (!slab->base) {
        void *base = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base != MAP_FAILED) {
            slab->base = base;
            slab->limit = SLAB_BYTES / slab->object_bytes;
        }
    }
    if (slab->free_list) {
        object = slab->free_list;
        memcpy(&slab->free_list, object, sizeof(void *));
    } else if (slab->base && slab->used < slab->limit) {
        object = slab->base + slab->used++ * slab->object_bytes;
    }
    us_lock_give(&slab->lock);
    if (object)
        memset(object, 0, slab->object_bytes);
    return object;
}

void us_slab_give(struct us_slab *slab, void *object) {
    memset(object, 0, slab->object_bytes);
    us_lock_take(&slab->lock);
    memcpy(object, &slab->free_list, sizeof(void *));
    slab->free_list = object;
    us_lock_give(&slab->lock);
}

bool us_slab_holds(const struct us_slab *slab, const void *object) {
    uintptr_t offset = (uintptr_t)object - (uintptr_t)slab->base;
    return slab->base && offset < slab->used * slab->object_bytes &&
           offset % slab->object_bytes == 0;
}
