/* sim: the whole daemon in one thread, from one seed.
 *
 * The product's code from daemon_run down, unchanged, over a fake world that is linked in its
 * place:
 *
 *   sim_threads.c   the loop's, planner's and store's threads as coroutines; the clock
 *   sim_uv.c        libuv's loop: handles, timers, pipes; the sockets behind it
 *   sim_store.c     store.h in memory; a crash loses the group that is open
 *   sim_service.c   reader, logs, service manager, random numbers
 *   sim_rank.c      trainer ranks, which keep an account of all they got
 *   sim_world.c     corpora and configs, and what must be delivered: plan_step alone says
 *   daemon_sim.c    the schedule, the faults, the checks, the tests
 *
 * One stream of random numbers decides what runs next, how far and what breaks, so a seed is the
 * whole report of a failure. Not simulated: SQLite and the disk under it (unit/daemon_store*), the
 * real readers (unit/corpus_reader*), the client's library (unit/client_*). */
#ifndef BALLAST_TESTS_SIM_H
#define BALLAST_TESTS_SIM_H

#include "daemon/daemon.h"

#include <stdbool.h>
#include <stdint.h>

#define SIM_MS        1000000ull
#define SIM_RANKS_MAX 8u
#define SIM_WIRES_MAX 64u
#define SIM_NEVER     UINT64_MAX

/* Chances are in 10,000 per step of the schedule; 0: never. */
struct sim_faults {
    uint32_t kill_daemon;
    uint32_t stop_daemon;
    uint32_t kill_rank;
    uint32_t kill_all; /* the job: every rank and the daemon */
    uint32_t lose_wire;
    uint32_t stick_rank;
    uint32_t stick_thread;
    uint32_t rewind;    /* the job seeks another step */
    uint32_t import;    /* ... with the state that one rank brings along */
    uint32_t lose_node; /* ... on a new node: nothing is stored there */
    uint32_t open_anew; /* a rank ends its stream and opens another on the same connection */
    uint32_t disk_full;
    uint32_t disk_broken;
    uint32_t read_error; /* per read */
    uint32_t short_wire; /* sockets of the ranks hold so few bytes; 0: 64 KiB */
};

struct sim {
    uint64_t seed;
    uint64_t random;
    uint64_t now_ns;
    uint64_t trace; /* hash of all that happened */
    uint64_t steps; /* of the schedule */
    bool verbose;
    bool peace;  /* no more faults: everybody must reach the end */
    bool dead;   /* the daemon was killed: it unwinds, and nothing it does has an effect */
    bool polite; /* in peace, a rank keeps a batch until all ranks of its replica have it */
    bool claims; /* greetings say what was acknowledged */
    struct sim_faults faults;
    uint32_t credits;      /* that a rank may have */
    uint64_t lead_steps;   /* no batch is handed out so far beyond the slowest rank */
    struct daemon *daemon; /* NULL while none runs */
    int exit_code;         /* of the last one */
    uint64_t started_ns;
    uint64_t lives;
};

extern struct sim sim;

/* Prints the seed, what is wrong and how to see it again; ends the process. */
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
#define sim_check(condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            sim_fail(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

void sim_note(const void *bytes, size_t count);                              /* into the trace */
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* when verbose */
uint32_t sim_between(uint32_t low, uint32_t high);
bool sim_chance(uint32_t in_10000);

/* Threads */

#define SIM_THREADS 4u /* 0 is the daemon's main thread */

void sim_thread_start(void (*run)(void)); /* the main one */
bool sim_thread_runnable(uint32_t i);
void sim_thread_resume(uint32_t i); /* until it waits or gives way */
bool sim_thread_alive(uint32_t i);
uint64_t sim_thread_due_ns(uint32_t i);               /* of a timed wait or a stall; SIM_NEVER */
void sim_thread_stall(uint32_t i, uint64_t until_ns); /* a scheduler that forgets it */
void sim_thread_give_way(void);                       /* by a thread: others may run here */
void sim_thread_wait(bool (*ready)(void));            /* likewise, until it is */

/* Loop */

bool sim_uv_ready(void);
bool sim_uv_at_poll(void); /* between two rounds: the daemon's parts agree with one another */
uint64_t sim_uv_due_ns(void);
void sim_uv_signal(int number);
void sim_uv_reset(void); /* no loop; wires are cut from the daemon's side */

/* Wires: one for each connection of a rank. */

struct sim_bytes {
    uint8_t *bytes;
    size_t used;
    size_t capacity;
};

struct sim_wire {
    bool used;
    bool accepted;
    bool rank_gone;   /* closed by the rank */
    bool daemon_gone; /* ... by the daemon */
    uint32_t rank;
    struct sim_bytes to_daemon;
    struct sim_bytes to_rank;
    size_t room; /* bytes that may wait for the rank */
};

/* NULL: nobody listens. */
struct sim_wire *sim_wire_connect(uint32_t rank);
void sim_wire_send(struct sim_wire *wire, const void *bytes, size_t count);
size_t sim_wire_receive(struct sim_wire *wire, void *bytes, size_t count);
void sim_wire_close(struct sim_wire *wire); /* by the rank; what it sent still arrives */
void sim_wire_cut(struct sim_wire *wire);   /* both ends see the end, what was under way is lost */

/* Store */

struct sim_disk {
    uint64_t rows_begin, rows_end; /* durable rows */
    uint64_t committed_step;
    uint64_t generation, generation_step;
    bool full, broken;
    bool finished; /* it said EIO: nothing may be acknowledged any more */
};

extern struct sim_disk sim_disk;
/* First step that a restart could not go on from: a committed step needs no row of its own, as
 * ranks may commit after a restart what was given to them before and lost its row. */
uint64_t sim_disk_durable_step(void);
void sim_disk_wipe(void);
void sim_disk_crash(void); /* an open group is lost, or just made it */

/* Reader */

bool sim_reads_due(void);
uint64_t sim_reads_due_ns(void);
void sim_reads_complete(void); /* one that is due */
bool sim_reader_ready(void);   /* its eventfd */
uint32_t sim_reads_in_flight(void);
void sim_reader_drain(void);

/* Ranks */

void sim_ranks_open(void);
void sim_ranks_close(void);
/* Where the mesh changes, all ranks end and those of the new one begin, at the daemon's next step;
 * it has waited for them since it serves this mesh. */
bool sim_ranks_are_of(const struct rank_place *mesh);
void sim_ranks_change(const struct rank_place *mesh, uint64_t committed_step, uint64_t since_ns);
bool sim_rank_ready(uint32_t i);
void sim_rank_act(uint32_t i);
uint64_t sim_rank_due_ns(uint32_t i);
void sim_rank_kill(uint32_t i);
void sim_rank_stick(uint32_t i, uint64_t until_ns);
void sim_rank_lose(uint32_t i); /* its connection */
void sim_rank_sent(const struct sim_wire *wire, const uint8_t *bytes, size_t count);
bool sim_rank_over(uint32_t i);
uint32_t sim_rank_count(void);
/* First step that the rank has not told the daemon it is done with. */
uint64_t sim_rank_told_step(uint32_t i);
void sim_rank_cut(uint32_t i);               /* the daemon is through with its connection */
uint64_t sim_rank_gone_since_ns(uint32_t i); /* SIM_NEVER: connected; 0: cut by the daemon */
/* All give up what they had and seek one step, one of them by Import if `import`; false: they still
 * do. */
bool sim_ranks_rewind(bool import);
/* First step whose commit was not acknowledged to the rank in this generation, since it sought
 * last; 0: none was. Acknowledged is what the daemon wrote, whether or not it was heard. */
uint64_t sim_rank_acknowledged(uint32_t i, uint64_t generation);
void sim_count_fetch(void);  /* one that came whole */
void sim_excuse(uint32_t i); /* others may commit what this rank did not */
void sim_ranks_daemon_died(void);

/* World */

struct sim_state {
    uint8_t *bytes;
    size_t count;
};

struct sim_case {
    char config_path[96];
    struct step_plan **plans; /* of the whole stream */
    struct sim_state *states; /* from which they are planned, encoded */
    struct catalog *catalog;
    struct blob identity;
    uint64_t count;
    struct plan_options options; /* resolved */
};

void sim_world_open(void);
void sim_world_close(void);
uint32_t sim_world_cases(void);
/* Planned when first asked for. */
const struct sim_case *sim_world_case(uint32_t i);
extern const struct sim_case *sim_case; /* of this seed */
/* A checkpoint of the case's step; the caller frees. */
uint8_t *sim_world_blob(uint64_t step, uint64_t generation, size_t *bytes);
/* Whether the payload holds the micro-batch's tokens. */
bool sim_world_payload(const struct step_plan *plan, const struct micro_batch *micro_batch,
                       const uint8_t *payload, uint64_t bytes);

#endif
