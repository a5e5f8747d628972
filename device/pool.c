/* The threads that run kernels.
 *
 * There are `threads` tokens. A kernel takes one before it starts, in order of arrival, and runs on
 * the thread that launched it (a stream's worker); `threads - 1` helper threads join the teams of
 * running kernels whenever a token is free and no kernel waits for it. So at most `threads` threads
 * execute kernels at any time, a lone kernel gets its whole team, and with many ranks each runs
 * alone.
 *
 * Where there is a token for each of the cores and the cores are this process's, a token is a core,
 * and whoever holds it runs there: two kernels never share a core while another is idle. Otherwise
 * threads run where the system puts them. What takes no token, a copy or an exchange, always does.
 *
 * Parts are handed out one by one from a counter: a helper may come late or not at all, and results
 * cannot depend on it, because kernels cut their work the same way whoever runs it.
 *
 * A helper that has just worked looks for more for a moment before it sleeps, so that a kernel of a
 * few hundred microseconds is worth sharing; it does so only while fewer threads work than there
 * are cores. */
#include "device/pool.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "device/cores.h"
#include "device/launch.h"
#include "probe/timing.h"

#define SPIN_S 60e-6
#define TURNS_PER_YIELD 8

/* A kernel that waits for a token. */
struct token_waiter {
    struct token_waiter *next;
    pthread_cond_t wake;
    pthread_t thread;
    int token; /* -1 until it is handed over */
};

/* One team_run whose parts are not all handed out. It lives on the stack of the thread that called.
 */
struct team_job {
    struct team_job *next;
    void (*part)(void *context, int index, int parts);
    void *context;
    int parts;
    int helper_limit;
    atomic_int next_part;
    atomic_int helpers; /* at work; changed under the pool's lock */
    bool owner_sleeps;
    pthread_cond_t done;
};

struct helper {
    struct dev_pool *pool;
    pthread_t thread;
    pthread_cond_t wake;
    bool sleeps;
    struct helper *next_sleeper;
};

struct dev_pool {
    int threads, cores;
    pthread_mutex_t lock;
    struct cores *own_cores; /* token i is core i; NULL: tokens have no place */
    int *free_tokens;        /* a stack of free_count */
    int free_count;
    struct token_waiter *first_waiter, *last_waiter;
    struct team_job *jobs; /* the oldest first */
    struct helper *sleepers;
    bool stopping;
    atomic_int working;  /* threads that keep a core busy, the spinning ones included */
    atomic_uint changes; /* counts what may give a helper work */
    int helper_count;
    struct helper helpers[];
};

void pool_begin_work(struct dev_pool *pool)
{
    atomic_fetch_add_explicit(&pool->working, 1, memory_order_relaxed);
}

void pool_end_work(struct dev_pool *pool)
{
    atomic_fetch_sub_explicit(&pool->working, 1, memory_order_relaxed);
}

/* ---- short waits ----------------------------------------------------------------------------- */

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void pool_spin_begin(struct pool_spin *spin, struct dev_pool *pool, double seconds)
{
    spin->pool = pool;
    spin->turn = 0;
    spin->end_s = timing_now_s() + seconds;
    pool_begin_work(pool);
}

bool pool_spin_goes_on(struct pool_spin *spin)
{
    if (atomic_load_explicit(&spin->pool->working, memory_order_relaxed) > spin->pool->cores)
        return false;
    relax();
    if (++spin->turn % TURNS_PER_YIELD)
        return true;
    sched_yield();
    return timing_now_s() < spin->end_s;
}

void pool_spin_end(struct pool_spin *spin)
{
    pool_end_work(spin->pool);
}

/* ---- tokens; all under the lock -------------------------------------------------------------- */

static bool wants_helper(const struct team_job *job)
{
    return atomic_load_explicit(&job->helpers, memory_order_relaxed) < job->helper_limit &&
           atomic_load_explicit(&job->next_part, memory_order_relaxed) < job->parts;
}

static struct team_job *job_wanting_help(struct dev_pool *pool)
{
    if (!pool->free_count || pool->first_waiter)
        return NULL;
    for (struct team_job *job = pool->jobs; job; job = job->next) {
        if (wants_helper(job))
            return job;
    }
    return NULL;
}

/* A sleeping helper wakes on the core of a free token, not behind a thread that works. */
static void wake_helper(struct dev_pool *pool, int token)
{
    struct helper *helper = pool->sleepers;
    pool->sleepers = helper->next_sleeper;
    helper->sleeps = false;
    if (pool->own_cores)
        cores_hold(pool->own_cores, helper->thread, token);
    pthread_cond_signal(&helper->wake);
}

static void tell_helpers(struct dev_pool *pool, int wanted)
{
    atomic_fetch_add_explicit(&pool->changes, 1, memory_order_release);
    int most = wanted < pool->free_count ? wanted : pool->free_count;
    for (int i = 0; i < most && pool->sleepers; i++)
        wake_helper(pool, pool->free_tokens[i]);
}

/* A free token, by preference that of the core which the calling thread is on. */
static int take_token(struct dev_pool *pool)
{
    int last = --pool->free_count, token = pool->free_tokens[last];
    int here = pool->own_cores ? cores_here(pool->own_cores) : -1;
    for (int i = 0; i < last && here >= 0 && token != here; i++) {
        if (pool->free_tokens[i] == here) {
            pool->free_tokens[i] = token;
            token = here;
        }
    }
    return token;
}

/* A thread that sleeps is held before it is woken: then it wakes in its place. */
static void hand_over(struct dev_pool *pool, struct token_waiter *waiter, int token)
{
    if (pool->own_cores)
        cores_hold(pool->own_cores, waiter->thread, token);
    waiter->token = token;
    pthread_cond_signal(&waiter->wake);
}

static void return_token(struct dev_pool *pool, int token)
{
    struct token_waiter *waiter = pool->first_waiter;
    if (waiter) {
        pool->first_waiter = waiter->next;
        hand_over(pool, waiter, token);
        return;
    }
    pool->free_tokens[pool->free_count++] = token;
    if (job_wanting_help(pool))
        tell_helpers(pool, 1);
}

static int wait_for_token(struct dev_pool *pool)
{
    struct token_waiter self = {
        .wake = PTHREAD_COND_INITIALIZER, .thread = pthread_self(), .token = -1};
    if (pool->first_waiter)
        pool->last_waiter->next = &self;
    else
        pool->first_waiter = &self;
    pool->last_waiter = &self;
    while (self.token < 0)
        pthread_cond_wait(&self.wake, &pool->lock);
    pthread_cond_destroy(&self.wake);
    return self.token;
}

static void hold_self(struct dev_pool *pool, int token)
{
    if (pool->own_cores)
        cores_hold(pool->own_cores, pthread_self(), token);
}

static void let_self_go(struct dev_pool *pool)
{
    if (pool->own_cores)
        cores_let_go(pool->own_cores, pthread_self());
}

int pool_enter(struct dev_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    bool free_now = pool->free_count && !pool->first_waiter;
    int token = free_now ? take_token(pool) : wait_for_token(pool);
    pthread_mutex_unlock(&pool->lock);
    if (free_now)
        hold_self(pool, token);
    return token;
}

int pool_enter_again(struct dev_pool *pool, int token)
{
    pthread_mutex_lock(&pool->lock);
    if (pool->first_waiter) {
        return_token(pool, token);
        token = wait_for_token(pool);
    }
    pthread_mutex_unlock(&pool->lock);
    return token;
}

/* Let go first: whoever is woken takes this core, and then the thread may need another to go on. */
void pool_leave(struct dev_pool *pool, int token)
{
    let_self_go(pool);
    pthread_mutex_lock(&pool->lock);
    return_token(pool, token);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- teams ----------------------------------------------------------------------------------- */

int team_size(const struct dev_team *team)
{
    return team ? team->size : 1;
}

static void run_parts(struct team_job *job)
{
    for (;;) {
        int index = atomic_fetch_add_explicit(&job->next_part, 1, memory_order_relaxed);
        if (index >= job->parts)
            return;
        job->part(job->context, index, job->parts);
    }
}

static void open_job(struct dev_pool *pool, struct team_job *job)
{
    pthread_mutex_lock(&pool->lock);
    struct team_job **end = &pool->jobs;
    while (*end)
        end = &(*end)->next;
    *end = job;
    if (job_wanting_help(pool))
        tell_helpers(pool, job->helper_limit);
    pthread_mutex_unlock(&pool->lock);
}

/* Takes the job off the list, so that nobody joins any more, and waits for those who did. */
static void close_job(struct dev_pool *pool, struct team_job *job)
{
    pthread_mutex_lock(&pool->lock);
    struct team_job **link = &pool->jobs;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    bool helped = atomic_load_explicit(&job->helpers, memory_order_relaxed) > 0;
    pthread_mutex_unlock(&pool->lock);
    if (!helped)
        return;
    struct pool_spin spin;
    pool_end_work(pool); /* it counts again as it spins */
    pool_spin_begin(&spin, pool, SPIN_S);
    while (atomic_load_explicit(&job->helpers, memory_order_acquire) && pool_spin_goes_on(&spin))
        continue;
    pool_spin_end(&spin);
    pool_begin_work(pool);
    pthread_mutex_lock(&pool->lock);
    job->owner_sleeps = true;
    while (atomic_load_explicit(&job->helpers, memory_order_relaxed))
        pthread_cond_wait(&job->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void team_run(const struct dev_team *team, int parts,
    void (*part)(void *context, int index, int parts), void *context)
{
    int helpers = (team_size(team) < parts ? team_size(team) : parts) - 1;
    if (helpers < 1) {
        for (int i = 0; i < parts; i++)
            part(context, i, parts);
        return;
    }
    struct team_job job = {.part = part,
        .context = context,
        .parts = parts,
        .helper_limit = helpers,
        .done = PTHREAD_COND_INITIALIZER};
    open_job(team->pool, &job);
    run_parts(&job);
    close_job(team->pool, &job);
    pthread_cond_destroy(&job.done);
}

/* ---- helpers --------------------------------------------------------------------------------- */

static void help(struct dev_pool *pool, struct team_job *job)
{
    int token = take_token(pool);
    atomic_fetch_add_explicit(&job->helpers, 1, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
    hold_self(pool, token);
    pool_begin_work(pool);
    run_parts(job);
    pool_end_work(pool);
    let_self_go(pool);
    pthread_mutex_lock(&pool->lock);
    if (atomic_fetch_sub_explicit(&job->helpers, 1, memory_order_release) == 1 && job->owner_sleeps)
        pthread_cond_signal(&job->done);
    return_token(pool, token);
}

/* Looks for a change without the lock for a short time. */
static void spin_for_change(struct dev_pool *pool, unsigned seen)
{
    struct pool_spin spin;
    pool_spin_begin(&spin, pool, SPIN_S);
    while (atomic_load_explicit(&pool->changes, memory_order_acquire) == seen &&
           pool_spin_goes_on(&spin))
        continue;
    pool_spin_end(&spin);
}

static void sleep_till_told(struct helper *helper)
{
    struct dev_pool *pool = helper->pool;
    helper->sleeps = true;
    helper->next_sleeper = pool->sleepers;
    pool->sleepers = helper;
    while (helper->sleeps)
        pthread_cond_wait(&helper->wake, &pool->lock);
}

static void *helper_main(void *argument)
{
    struct helper *helper = argument;
    struct dev_pool *pool = helper->pool;
    bool worked = false;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stopping) {
        struct team_job *job = job_wanting_help(pool);
        if (job) {
            help(pool, job);
            worked = true;
            continue;
        }
        unsigned seen = atomic_load_explicit(&pool->changes, memory_order_relaxed);
        if (worked) {
            worked = false;
            pthread_mutex_unlock(&pool->lock);
            spin_for_change(pool, seen);
            pthread_mutex_lock(&pool->lock);
            continue;
        }
        sleep_till_told(helper);
        worked = true;
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* ---- the pool -------------------------------------------------------------------------------- */

/* The cores where each is a token and none is shared with another process of the job. */
static struct cores *open_own_cores(int threads)
{
    struct cores *cores = threads > 1 && threads == launch_cpus() ? cores_open() : NULL;
    if (cores && cores_count(cores) == threads)
        return cores;
    cores_close(cores);
    return NULL;
}

static bool start_helper(struct dev_pool *pool, struct helper *helper)
{
    helper->pool = pool;
    pthread_cond_init(&helper->wake, NULL);
    /* Its thread is read by whoever wakes it, under the lock. */
    pthread_mutex_lock(&pool->lock);
    bool started = !pthread_create(&helper->thread, NULL, helper_main, helper);
    pthread_mutex_unlock(&pool->lock);
    if (!started)
        pthread_cond_destroy(&helper->wake);
    return started;
}

struct dev_pool *dev_pool_create(int threads)
{
    if (threads < 1)
        return NULL;
    size_t helpers = (size_t)threads - 1;
    struct dev_pool *pool = calloc(1, sizeof *pool + helpers * sizeof *pool->helpers);
    int *tokens = calloc((size_t)threads, sizeof *tokens);
    if (!pool || !tokens) {
        free(pool);
        free(tokens);
        return NULL;
    }
    pool->threads = threads;
    pool->cores = launch_cpus();
    pool->own_cores = open_own_cores(threads);
    pool->free_tokens = tokens;
    while (pool->free_count < threads) {
        tokens[pool->free_count] = pool->free_count;
        pool->free_count++;
    }
    pthread_mutex_init(&pool->lock, NULL);
    while (pool->helper_count < threads - 1) {
        if (!start_helper(pool, &pool->helpers[pool->helper_count])) {
            dev_pool_free(pool);
            return NULL;
        }
        pool->helper_count++;
    }
    return pool;
}

void dev_pool_free(struct dev_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    tell_helpers(pool, pool->helper_count); /* no kernel runs: all tokens are free */
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->helper_count; i++) {
        pthread_join(pool->helpers[i].thread, NULL);
        pthread_cond_destroy(&pool->helpers[i].wake);
    }
    pthread_mutex_destroy(&pool->lock);
    cores_close(pool->own_cores);
    free(pool->free_tokens);
    free(pool);
}

int dev_pool_threads(const struct dev_pool *pool)
{
    return pool->threads;
}

void dev_pool_run(struct dev_pool *pool, int width,
    void (*body)(void *context, const struct dev_team *team), void *context)
{
    int size = width < 1 ? 1 : width;
    struct dev_team team = {pool, size < pool->threads ? size : pool->threads};
    int token = pool_enter(pool);
    pool_begin_work(pool);
    body(context, &team);
    pool_end_work(pool);
    pool_leave(pool, token);
}
