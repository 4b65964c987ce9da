/* The tools, with asserted results. Links the tools library alone, without a job. C99 and C++11. */
#include <gasnet_tools.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int backtraces;
GASNETT_BEGIN_EXTERNC
static int write_backtrace(int fd) {
  backtraces++;
  return fd < 0;
}
GASNETT_END_EXTERNC
gasnett_backtrace_type_t gasnett_backtrace_user = {"USER", write_backtrace, 1};

GASNETT_THREADKEY_DECLARE(key);
GASNETT_THREADKEY_DEFINE(key);
static gasnett_atomic_t shared = gasnett_atomic_init(0);
static gasnett_atomic64_t shared64 = gasnett_atomic64_init(0);
static gasnett_mutex_t mutex = GASNETT_MUTEX_INITIALIZER;
static int guarded;

static void *work(void *argument) {
  int i;
  CHECK(gasnett_threadkey_get(key) == NULL);
  gasnett_threadkey_set(key, argument);
  for (i = 0; i < 10000; i++) {
    gasnett_atomic_increment(&shared, GASNETT_ATOMIC_REL);
    (void)gasnett_atomic64_add(&shared64, ((uint64_t)1 << 32) + 1, 0);
    gasnett_mutex_lock(&mutex);
    guarded++;
    gasnett_mutex_unlock(&mutex);
  }
  CHECK(gasnett_threadkey_get(key) == argument);
  return NULL;
}

static void threads(void) {
  pthread_t ids[3];
  char marks[3];
  int i;
  for (i = 0; i < 3; i++) CHECK(!pthread_create(&ids[i], NULL, work, &marks[i]));
  for (i = 0; i < 3; i++) CHECK(!pthread_join(ids[i], NULL));
  CHECK(gasnett_atomic_read(&shared, GASNETT_ATOMIC_ACQ) == 30000);
  CHECK(gasnett_atomic64_read(&shared64, 0) == 30000 * (((uint64_t)1 << 32) + 1));
  CHECK(guarded == 30000);
  CHECK(gasnett_mutex_trylock(&mutex) == 0);
  CHECK(gasnett_mutex_trylock(&mutex) == EBUSY);
  gasnett_mutex_unlock(&mutex);
}

static void atomics(void) {
  gasnett_atomic_t a = gasnett_atomic_init(10);
  gasnett_strongatomic64_t b = gasnett_strongatomic64_init(5);
  CHECK(gasnett_atomic_add(&a, 5, GASNETT_ATOMIC_MB_PRE) == 15);
  CHECK(gasnett_atomic_subtract(&a, 14, GASNETT_ATOMIC_MB_POST) == 1);
  CHECK(gasnett_atomic_decrement_and_test(&a, GASNETT_ATOMIC_ACQ_IF_TRUE));
  gasnett_atomic_decrement(&a, 0);
  CHECK(gasnett_atomic_read(&a, 0) == GASNETT_ATOMIC_MAX);
  CHECK(gasnett_atomic_signed(gasnett_atomic_read(&a, 0)) == -1);
  CHECK(!gasnett_atomic_compare_and_swap(&a, 0, 1, 0));
  CHECK(gasnett_atomic_compare_and_swap(&a, GASNETT_ATOMIC_MAX, 1, 0));
  CHECK(gasnett_atomic_swap(&a, 7, 0) == 1);
  gasnett_atomic_set(&a, 8, GASNETT_ATOMIC_WMB_POST);
  CHECK(gasnett_atomic_read(&a, GASNETT_ATOMIC_RMB_PRE) == 8);
  CHECK(gasnett_strongatomic64_swap(&b, 6, 0) == 5);
}

static void numbers(void) {
  char text[50];
  CHECK(!strcmp(gasnett_format_number(3 << 20, text, sizeof(text), 1), "3 MB"));
  CHECK(gasnett_parse_int(text, 1) == 3 << 20);
  CHECK(!strcmp(gasnett_format_number(-5, text, sizeof(text), 0), "-5"));
  CHECK(!strcmp(gasnett_format_number(123456, text, 4, 0), "123"));
  CHECK(gasnett_parse_int("0x1F", 0) == 31);
  CHECK(gasnett_parse_int("128", 1 << 20) == 128 << 20);
  CHECK(gasnett_checksum("abc", 3) != gasnett_checksum("acb", 3));
  CHECK(gasnett_count0s("a\0b\0", 4) == 2);
  CHECK(gasnett_count0s_copy(text, "a\0\0", 3) == 2 && !text[1]);
  CHECK(gasnett_count0s_uint32_t(0x00010000) == 3 && gasnett_count0s_uint64_t(0) == 8);
  CHECK(gasnett_count0s_uintptr_t((uintptr_t)-1) == 0);
  CHECK(gasnett_release_version() == 2025080000 && !strcmp(gasnett_release_version_str(), "2025.8.0"));
}

static void masks(void) {
  char *text = (char *)malloc(gasnett_format_op(NULL, GEX_OP_ADD | GEX_OP_FCAS));
  gex_Memvec_t list[2] = {{NULL, 3}, {NULL, 4}};
  CHECK(gasnett_format_op(text, GEX_OP_ADD | GEX_OP_FCAS) == strlen(text) + 1);
  CHECK(!strcmp(text, "GEX_OP_ADD|GEX_OP_FCAS"));
  free(text);
  CHECK(gasnett_format_dt(NULL, GEX_DT_I32) == sizeof("GEX_DT_I32"));
  CHECK(gasnett_format_ti(NULL, GEX_TI_EP) == sizeof("GEX_TI_EP"));
  text = (char *)malloc(gasnett_format_memveclist_bufsz(2));
  gasnett_format_memveclist(text, 2, list);
  CHECK(strstr(text, "7 bytes") != NULL);
  free(text);
}

static void environment(void) {
  gasnett_setenv("WEFT_GEX_TEST", "2MB");
  CHECK(!strcmp(gasnett_getenv("WEFT_GEX_TEST"), "2MB"));
  CHECK(gasnett_getenv_int_withdefault("WEFT_GEX_TEST", 5, 1) == 2 << 20);
  gasnett_setenv("WEFT_GEX_TEST", "no");
  CHECK(gasnett_getenv_yesno_withdefault("WEFT_GEX_TEST", 1) == 0);
  gasnett_unsetenv("WEFT_GEX_TEST");
  CHECK(gasnett_getenv("WEFT_GEX_TEST") == NULL);
  CHECK(!strcmp(gasnett_getenv_withdefault("WEFT_GEX_TEST", "d"), "d"));
  CHECK(gasnett_getenv_int_withdefault("WEFT_GEX_TEST", 5, 0) == 5);
  CHECK(gasnett_getenv_yesno_withdefault("WEFT_GEX_TEST", 1) == 1);
  CHECK(gasnett_getenv_dbl_withdefault("WEFT_GEX_TEST", 0.5) == 0.5);
  CHECK(!gasnett_verboseenv());
  gasnett_envint_display("WEFT_GEX_TEST", 1, 0, 1);
}

static void machine(void) {
  const gasnett_tick_t start = gasnett_ticks_now();
  uint64_t spent_us;
  void *memory = gasnett_mmap(GASNETT_PAGESIZE);
  CHECK(start > GASNETT_TICK_MIN && start < GASNETT_TICK_MAX);
  CHECK(gasnett_nsleep(2000000) == 0);
  spent_us = gasnett_ticks_to_us(gasnett_ticks_now() - start);
  CHECK(spent_us >= 2000 && spent_us < 5000000);
  CHECK(gasnett_tick_granularityus() > 0 && gasnett_tick_overheadus() > 0);
  CHECK(gasnett_gettimeofday_us() > (uint64_t)1700000000 * 1000000);
  CHECK(gasnett_cpu_count() >= 1 && gasnett_getPhysMemSz(1) > 1 << 20);
  CHECK(strlen(gasnett_gethostname()) > 0 && gasnett_exe_name()[0] == '/');
  CHECK(memory != NULL && ((uintptr_t)memory & (GASNETT_PAGESIZE - 1)) == 0);
  gasnett_maximize_rlimits();
  gasnett_flush_streams();
  CHECK(gasnett_sched_yield() == 0);
  gasnett_spinloop_hint();
  CHECK(!*gasnett_performance_warning_str());
  CHECK(gasnett_reghandler(SIGUSR1, SIG_IGN) == SIG_DFL);
  CHECK(gasnett_reghandler(SIGUSR1, SIG_DFL) == SIG_IGN);
}

static void endings(void) {
  int status, fds[2];
  char text[512] = "";
  pid_t child;
  gasnett_backtrace_init("tools");
  CHECK(gasnett_print_backtrace(2) == 0 && backtraces == 1);
  CHECK(gasnett_print_backtrace_ifenabled(2) == 1 && backtraces == 1);
  CHECK(!pipe(fds));
  child = fork();
  if (child == 0) {
    dup2(fds[1], 2);
    gasnett_fatalerror("the number is %d", 42);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  CHECK(read(fds[0], text, sizeof(text) - 1) > 0);
  CHECK(strstr(text, "the number is 42") != NULL && strstr(text, __FILE__) != NULL);
  child = fork();
  if (child == 0) gasnett_killmyprocess(9);
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

int main(void) {
  atomics();
  threads();
  numbers();
  masks();
  environment();
  machine();
  endings();
  return check_result();
}
