#!/usr/bin/python3
"""Eight ranks for a long time, one of them killed every minute and the daemon every five: nothing grows.

    BALLAST_TEST_FULL=1 BALLAST_SOAK_HOURS=24 tests/e2e/soak.py      an hour without BALLAST_SOAK_HOURS

BALLAST_SOAK_LIFE_S says how long the daemon lives. The ranks are of one replica, so that they stay together as those of
a training job do, and what is not yet committed by all stays as much as it is. Short, the daemon lives 3 seconds and 6
are enough. A life is judged from its first third on, when caches and buffers have their size: the store's 2 MB are full
after some 5,000 steps."""

import os
import time

from determinism import MICRO_BATCHES, world_with_corpus
from world import FULL, in_order, main

LIFE_S = float(os.environ.get("BALLAST_SOAK_LIFE_S", "300")) if FULL else 3
RANK_LIFE_S = 60 if FULL else LIFE_S / 5
SOAK_S = float(os.environ.get("BALLAST_SOAK_HOURS", "1")) * 3600 if FULL else 6
PLACES = [(0, 0, c, t) for c in range(4) for t in range(2)]
THINK_MS = 1  # as fast as it goes
WAL_BYTES_MAX = 16 << 20
RSS_KB_PER_HOUR_MAX = 1024


def figures(world):
    """(anonymous memory in KB, descriptors, threads, WAL bytes) of the daemon."""
    proc = f"/proc/{world.daemon.pid}"
    with open(proc + "/status") as f:
        rss = next(int(line.split()[1]) for line in f if line.startswith("RssAnon"))
    wal = os.path.join(world.state, "ballast.db-wal")
    return (rss, len(os.listdir(proc + "/fd")), len(os.listdir(proc + "/task")),
            os.path.getsize(wal) if os.path.exists(wal) else 0)


def slope_per_hour(samples):
    """Least squares over [(seconds, value)]."""
    n = len(samples)
    mean_t = sum(t for t, _ in samples) / n
    mean_v = sum(v for _, v in samples) / n
    square = sum((t - mean_t) ** 2 for t, _ in samples)
    return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in samples) / square


class Crew:
    """The ranks; one after the other is killed and comes back."""

    def __init__(self, world):
        self.world, self.turn, self.killed = world, 0, 0
        self.ranks = [world.rank(*place, think_ms=THINK_MS) for place in PLACES]
        self.due = time.monotonic() + RANK_LIFE_S

    def kill_one_when_due(self):
        if time.monotonic() < self.due:
            return
        rank = self.ranks[self.turn]
        rank.process.kill()
        rank.process.wait()
        in_order(rank.lines(), MICRO_BATCHES)
        os.remove(rank.log)
        self.ranks[self.turn] = self.world.rank(*rank.place, think_ms=THINK_MS)
        self.turn = (self.turn + 1) % len(self.ranks)
        self.killed += 1
        self.due += RANK_LIFE_S


def all_go_on(world, crew):
    counts = [len(r.lines()) for r in crew.ranks]
    world.wait_for(lambda: all(len(r.lines()) > n + 8 for r, n in zip(crew.ranks, counts)), "all go on")


def live(world, crew):
    """One life under load: figures once a life's 60th, or every 10 s."""
    all_go_on(world, crew)
    samples, started = [], time.monotonic()
    while (age := time.monotonic() - started) < LIFE_S:
        time.sleep(min(LIFE_S / 60, 10))
        crew.kill_one_when_due()
        if age > LIFE_S / 3:
            samples.append((age, *figures(world)))
    if FULL:
        print(f"      after s: KB  {'  '.join(f'{s[0]:.0f}: {s[1]}' for s in samples[::10])}", flush=True)
    return samples


def test_nothing_grows_while_the_daemon_is_killed_again_and_again():
    with world_with_corpus(limits={"steps_retained": 200}, parallel={"dp": 1, "cp": 4, "tp": 2}) as world:
        world.start()
        crew = Crew(world)
        all_go_on(world, crew)
        served = figures(world)
        lives, ended = [], time.monotonic() + SOAK_S
        while time.monotonic() < ended:
            lives.append(live(world, crew))
            world.kill()
            world.start()
        all_go_on(world, crew)
        for rank in crew.ranks:
            rank.process.terminate()
        for rank in crew.ranks:
            in_order(rank.finish(), MICRO_BATCHES)
        world.stop()
        db = os.path.getsize(os.path.join(world.state, "ballast.db"))
    rss = [[(s[0], s[1]) for s in life] for life in lives]
    slopes = sorted(slope_per_hour(life) for life in rss)
    descriptors = {(s[2]) for life in lives for s in life}
    threads = {(s[3]) for life in lives for s in life}
    wal = max(s[4] for life in lives for s in life)
    print(f"      {len(lives)} lives of {LIFE_S} s, {crew.killed} ranks killed: RSS {max(v for life in rss for _, v in life)} KB at most, slope "
          f"{slopes[len(slopes) // 2]:.0f} KB/h, descriptors {sorted(descriptors)}, threads {sorted(threads)}, "
          f"WAL {wal >> 10} KB, ballast.db {db >> 10} KB", flush=True)
    assert wal <= WAL_BYTES_MAX
    assert max(descriptors) <= served[1] + 2, "more than all ranks and two that question it take"
    assert threads == {served[2]}
    assert not FULL or slopes[len(slopes) // 2] < RSS_KB_PER_HOUR_MAX


if __name__ == "__main__":
    main(globals())
