/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Memory that processes of the same user on this host map for remote access: extension "weft_memory" of weft's
 * domains (fi_weft(7), "EXTENSIONS").
 *
 *     struct weft_memory_ops *ops;
 *     if (!fi_open_ops(&domain->fid, WEFT_MEMORY, 0, (void **)&ops, NULL))
 *         ops->alloc(domain, len, 0, &buffer);
 *
 * Register the whole buffer by fi_mr_reg. Writes, reads and atomics of peers in the host then need no message.
 */
#ifndef WEFT_MEMORY_H
#define WEFT_MEMORY_H

#include <rdma/fi_domain.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_MEMORY "weft_memory"

/* Flag of alloc: the system should use large pages. */
#define WEFT_MEMORY_HUGE 1ull

struct weft_memory_ops {
    size_t size; /* of this table */
    /* Allocates at least len bytes, which are zero and begin at a page. */
    int (*alloc)(struct fid_domain *domain, size_t len, uint64_t flags, void **addr);
    /* Frees memory of alloc. -FI_EBUSY: a region is registered on it. -FI_EINVAL: not an address of alloc. */
    int (*free)(struct fid_domain *domain, void *addr);
    /* Finds the allocation that contains addr; base and len may be NULL. -FI_ENOENT: there is none. */
    int (*query)(struct fid_domain *domain, const void *addr, void **base, size_t *len);
};

#ifdef __cplusplus
}
#endif

#endif
