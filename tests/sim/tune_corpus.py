#!/usr/bin/python3
"""`ballastctl tune` on a corpus's index: its lines load in the daemon, and simulate gives what it promised."""

import configparser
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from world import FULL, Skip, World, main, shared_corpus, synthetic_documents, write_corpus  # noqa: E402

STEPS = 200 if FULL else 32
JOB = {"plan": {"window": 32768, "micro_batches": 8, "tokens_max": "1.25w"}, "parallel": {"dp": 2},
       "model": {"cost": "L2/24576"}}


def shown(ppm):
    return f"{ppm // 1000000}.{ppm % 1000000 // 1000:03}"


def config_lines(text):
    """{section: {key: value}} of the lines to paste."""
    lines = configparser.ConfigParser(interpolation=None)
    lines.read_string("\n".join(line for line in text.splitlines() if re.match(r"\[|\w+ = ", line)))
    return {name: dict(section) for name, section in lines.items() if section}


def check_tuned(world, datasets, source, *limits):
    """Tunes over a source, serves the lines to paste, simulates them."""
    span = ["--steps", STEPS, "--warm-up", 20, *limits]
    text = world.ctl("tune", *source, *span).stdout
    found = world.ctl_json("tune", *source, *span)
    assert all(len(line) <= 80 for line in text.splitlines()), text
    lines = config_lines(text)
    settings = {f"{section}.{key}": value for section in lines for key, value in lines[section].items()}
    assert set(settings.items()) <= set(found["best"]["settings"].items()), (settings, found["best"])
    world.config(datasets, {s: {**JOB.get(s, {}), **lines.get(s, {})} for s in {**JOB, **lines}})
    checked = found["best"]["checked"]["outcome"]
    rows = world.ctl_json("--config", world.config_path, "simulate", "--policies", lines["plan"]["policy"],
                          "--seed", found["config"]["check_seed"], "--steps", STEPS, "--warm-up", 20 + STEPS)["rows"]
    for name, value in checked.items():
        assert rows[0][name] == value, (name, rows[0][name], value)
    expected = f"expect imbalance {shown(checked['total_ppm'])}, p99 {shown(checked['p99_ppm'])}, " \
               f"worst {shown(checked['worst_ppm'])}; delay {checked['delay_mean_milli'] / 1000:.3f}"
    assert expected in text, (expected, text)
    world.start()
    live = {s["name"]: s["value"] for s in world.live("config")["settings"]}
    for name, value in settings.items():
        assert live[name].rstrip("%") == value.rstrip("%"), (name, live[name], value)
    ranks = [world.rank(d, steps=3) for d in range(2)]
    for rank in ranks:
        rank.finish(60)
    world.stop()
    print(f"      {found['best']['name']}: imbalance {shown(checked['total_ppm'])}, delay "
          f"{checked['delay_mean_milli'] / 1000:.3f}, CV {checked['tokens_cv_ppm'] / 1e4:.1f} %", flush=True)
    return found


def test_settings_tuned_on_a_config_do_what_was_promised():
    with World() as world:
        datasets = []
        for name, seed in (("a", 3), ("b", 4)):
            prefix = os.path.join(world.dir, name)
            write_corpus(prefix, synthetic_documents(seed, 3000, 32768))
            datasets.append((name, prefix, seed))
        world.config(datasets, JOB)
        check_tuned(world, datasets, ["--config", world.config_path])


def test_settings_tuned_on_an_index_alone_do_what_was_promised():
    flags = ["--window", 32768, "--micro-batches", 8, "--tokens-max", "1.25w", "--dp", 2, "--cost", "L2/24576"]
    with World() as world:
        datasets = shared_corpus()
        for _, prefix, weight in datasets:
            flags += ["--corpus", f"{prefix}={weight}"]
        found = check_tuned(world, datasets, flags, "--delay-max", 0.4, "--tokens-tolerance", "1%")
        assert found["best"]["tuned"]["tokens_off_ppm"] <= 10000
        assert found["best"]["tuned"]["outcome"]["delay_mean_milli"] <= 400


def test_data_that_end_are_tuned_on_their_first_half():
    with World() as world:
        prefix = os.path.join(world.dir, "d")
        write_corpus(prefix, synthetic_documents(5, 6000, 32768))
        world.config([("d", prefix, 1)], {**JOB, "corpus": {"epochs": 1}})
        found = world.ctl_json("--config", world.config_path, "tune")
        steps = len(world.plans())
        assert 2 * found["config"]["steps"] <= steps - 4 and found["config"]["warm_up"] == 0, (found["config"], steps)


if __name__ == "__main__":
    main(globals())
