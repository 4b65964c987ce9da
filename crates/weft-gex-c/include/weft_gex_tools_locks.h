/* Tools: locks, conditions, and values of threads. Included by gasnet_tools.h. */
#ifndef WEFT_GEX_TOOLS_LOCKS_H
#define WEFT_GEX_TOOLS_LOCKS_H

#ifdef GASNET_SEQ

typedef char gasnett_mutex_t;
typedef char gasnett_cond_t;
typedef char gasnett_rwlock_t;
#define GASNETT_MUTEX_INITIALIZER 0
#define GASNETT_COND_INITIALIZER 0
#define GASNETT_RWLOCK_INITIALIZER 0
#define GEX_WEFT_NO_LOCK(lock, value) ((void)(lock), (value))
#define gasnett_mutex_init(mutex) GEX_WEFT_NO_LOCK(mutex, (void)0)
#define gasnett_mutex_destroy(mutex) GEX_WEFT_NO_LOCK(mutex, 0)
#define gasnett_mutex_lock(mutex) GEX_WEFT_NO_LOCK(mutex, (void)0)
#define gasnett_mutex_trylock(mutex) GEX_WEFT_NO_LOCK(mutex, 0)
#define gasnett_mutex_unlock(mutex) GEX_WEFT_NO_LOCK(mutex, (void)0)
#define gasnett_cond_init(cond) GEX_WEFT_NO_LOCK(cond, (void)0)
#define gasnett_cond_destroy(cond) GEX_WEFT_NO_LOCK(cond, (void)0)
#define gasnett_cond_signal(cond) GEX_WEFT_NO_LOCK(cond, (void)0)
#define gasnett_cond_broadcast(cond) GEX_WEFT_NO_LOCK(cond, (void)0)
#define gasnett_cond_wait(cond, mutex) GEX_WEFT_NO_LOCK(cond, (void)(mutex))
#define gasnett_rwlock_init(rwlock) GEX_WEFT_NO_LOCK(rwlock, (void)0)
#define gasnett_rwlock_destroy(rwlock) GEX_WEFT_NO_LOCK(rwlock, (void)0)
#define gasnett_rwlock_rdlock(rwlock) GEX_WEFT_NO_LOCK(rwlock, (void)0)
#define gasnett_rwlock_wrlock(rwlock) GEX_WEFT_NO_LOCK(rwlock, (void)0)
#define gasnett_rwlock_tryrdlock(rwlock) GEX_WEFT_NO_LOCK(rwlock, 0)
#define gasnett_rwlock_trywrlock(rwlock) GEX_WEFT_NO_LOCK(rwlock, 0)
#define gasnett_rwlock_unlock(rwlock) GEX_WEFT_NO_LOCK(rwlock, (void)0)

#else

typedef pthread_mutex_t gasnett_mutex_t;
typedef pthread_cond_t gasnett_cond_t;
#define GASNETT_MUTEX_INITIALIZER PTHREAD_MUTEX_INITIALIZER
#define GASNETT_COND_INITIALIZER PTHREAD_COND_INITIALIZER
#define gasnett_mutex_init(mutex) ((void)pthread_mutex_init((mutex), NULL))
#define gasnett_mutex_destroy(mutex) pthread_mutex_destroy(mutex)
#define gasnett_mutex_lock(mutex) ((void)pthread_mutex_lock(mutex))
#define gasnett_mutex_trylock(mutex) pthread_mutex_trylock(mutex)
#define gasnett_mutex_unlock(mutex) ((void)pthread_mutex_unlock(mutex))
#define gasnett_cond_init(cond) ((void)pthread_cond_init((cond), NULL))
#define gasnett_cond_destroy(cond) ((void)pthread_cond_destroy(cond))
#define gasnett_cond_signal(cond) ((void)pthread_cond_signal(cond))
#define gasnett_cond_broadcast(cond) ((void)pthread_cond_broadcast(cond))
#define gasnett_cond_wait(cond, mutex) ((void)pthread_cond_wait((cond), (mutex)))
/* Strict C99 without _GNU_SOURCE has no such lock. */
#ifdef PTHREAD_RWLOCK_INITIALIZER
typedef pthread_rwlock_t gasnett_rwlock_t;
#define GASNETT_RWLOCK_INITIALIZER PTHREAD_RWLOCK_INITIALIZER
#define gasnett_rwlock_init(rwlock) ((void)pthread_rwlock_init((rwlock), NULL))
#define gasnett_rwlock_destroy(rwlock) ((void)pthread_rwlock_destroy(rwlock))
#define gasnett_rwlock_rdlock(rwlock) ((void)pthread_rwlock_rdlock(rwlock))
#define gasnett_rwlock_wrlock(rwlock) ((void)pthread_rwlock_wrlock(rwlock))
#define gasnett_rwlock_tryrdlock(rwlock) pthread_rwlock_tryrdlock(rwlock)
#define gasnett_rwlock_trywrlock(rwlock) pthread_rwlock_trywrlock(rwlock)
#define gasnett_rwlock_unlock(rwlock) ((void)pthread_rwlock_unlock(rwlock))
#endif

#endif

#define gasnett_mutex_destroy_ignoreerr(mutex) ((void)gasnett_mutex_destroy(mutex))
/* Owners are not recorded. */
#define gasnett_mutex_assertlocked(mutex) ((void)(mutex))
#define gasnett_mutex_assertunlocked(mutex) ((void)(mutex))
#define gasnett_rwlock_assertlocked(rwlock) ((void)(rwlock))
#define gasnett_rwlock_assertrdlocked(rwlock) ((void)(rwlock))
#define gasnett_rwlock_assertwrlocked(rwlock) ((void)(rwlock))
#define gasnett_rwlock_assertunlocked(rwlock) ((void)(rwlock))

/* One pointer for each thread. Nothing needs to be created first. */
#define GASNETT_THREADKEY_DECLARE(key) extern __thread void *gex_weft_key_##key
#define GASNETT_THREADKEY_DEFINE(key) __thread void *gex_weft_key_##key = NULL
#define gasnett_threadkey_get(key) (gex_weft_key_##key)
#define gasnett_threadkey_set(key, value) ((void)(gex_weft_key_##key = (value)))
#define gasnett_threadkey_init(key) ((void)gex_weft_key_##key)
#define gasnett_threadkey_get_noinit(key) gasnett_threadkey_get(key)
#define gasnett_threadkey_set_noinit(key, value) gasnett_threadkey_set(key, value)
/* A client takes its address. */
GEX_WEFT_INLINE void _gasneti_threadkey_init(void) {}

#endif
