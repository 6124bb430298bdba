#!/usr/bin/env python3
"""ballast-profile against a driver with a clock of its own (fake_clock.c): the law comes back.

    profile_measured.py BALLAST_PROFILE BALLASTCTL FOLDER_OF_FAKES

BALLAST_PROFILE is the product's program but for its kernels, which no fake driver looks at."""

import json
import os
import subprocess
import sys
import tempfile

program, ctl, fakes = sys.argv[1:4]
MODEL = ["--q-heads", "32", "--kv-heads", "8", "--sm-margin", "4"]
checks = 0


def run(*words, fake=True, **settings):
    environment = dict(os.environ, **{name: str(value) for name, value in settings.items()})
    if fake:
        environment["LD_LIBRARY_PATH"] = fakes
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def check(condition, *what):
    global checks
    checks += 1
    if not condition:
        print("FAILED:", *what)
        sys.exit(1)


def near(got, want, share):
    return abs(got - want) <= share * want


def the_law_comes_back(folder, *options):
    done = run(program, "--output", folder, "--json", *MODEL, *options, FAKE_CLOCK_DEVICES=4)
    check(done.returncode == 0, done.stderr)
    path = json.loads(done.stdout)["file"]
    fit = run(ctl, "profile", "fit", path, "--json", fake=False)
    check(fit.returncode == 0, fit.stderr)
    text = json.loads(fit.stdout)
    laws = {"fwd": (8e6, 2.7e6, 1.7e6), "bwd": (15e6, 15e6, 4.8e6)}
    for direction, (launch, tile, block) in laws.items():
        got = text[direction] if direction in text else text["attn"][direction]
        check(near(got["launch_ps"], launch, 0.001), direction, got)
        check(near(got["tile_ps"], tile, 0.005), direction, got)
        check(near(got["block_ps"], block, 0.001), direction, got)
        check(got["causal_mean_ppm"] < 5000 and got["causal_worst_ppm"] < 60000, direction, got)
    check("attention backward" in done.stderr, "progress", done.stderr)
    return path, done


def causal_cells_follow_the_law(path):
    """Launches of whole waves: the mean over a fragment's tiles of their own lengths."""
    profile = json.load(open(path))
    for direction, tile, block in (("fwd", 2.7e6, 1.7e6), ("bwd", 15e6, 4.8e6)):
        grid = profile["attn"][direction]
        for q, cells, full in zip(grid["q"], grid["causal_ps_per_tile"], grid["ps_per_tile"]):
            for kv, ps, full_ps in zip(grid["kv"], cells, full):
                check((ps == 0) == (kv < q), direction, q, kv, ps)
                check(ps <= full_ps * 1.001, direction, q, kv, ps, full_ps)
                if kv < q:
                    continue
                if direction == "fwd":
                    blocks = [-(-(kv - q + min(q, row + 32)) // 128) for row in range(0, q, 32)]
                else:
                    blocks = [-(-q // 32) - max(0, key - (kv - q)) // 32 for key in range(0, kv, 128)]
                mean = tile + block * sum(blocks) / len(blocks)
                check(near(ps, mean, 0.04), direction, q, kv, ps, mean)


def the_rest_is_there(path):
    profile = json.load(open(path))
    check(profile["key"]["gpu"] == "Fake H100 of the tests" and profile["key"]["sms"] == 132, path)
    check(profile["key"]["nccl"] == "2.28.9" and profile["key"]["cuda"] == "13.0", path)
    check(profile["key"]["kernel_build"] != "", path)
    check(profile["key"]["power_cap_w"] == 700 and profile["key"]["driver"] == "580.95", path)
    check(profile["measured"] == {"clock_max_mhz": 1980, "clock_min_mhz": 1830, "runs": 9}, path)
    laws = {"all_gather": (25e6, 9e4), "all_to_all": (20e6, 1e5), "reduce_scatter": (30e6, 8e4)}
    check(sorted(profile["coll"]) == sorted(laws), path)
    for name, (alpha, rate) in laws.items():
        link = profile["coll"][name]
        check(sorted(link) == ["2x1", "4x1"], link)
        for group in link.values():
            check(near(group["alpha_ps"], alpha, 0.01), name, group)
            check(near(group["bytes_per_us"], rate, 0.01), name, group)
            check(len(group["bytes"]) == 8 and group["bytes"][0] >= 65520, name, group)
            check(group["bytes"][-1] >= 2**30 - 48, name, group)
    hidden, ffn, tokens = 4096, 14336, 8192
    flops = 2 * (2 * hidden * 32 * 128 + 2 * hidden * 8 * 128 + 3 * hidden * ffn)
    for tp in (1, 8):
        degree = profile["linear"]["tp"][str(tp)]
        at = degree["tokens"].index(tokens)
        ps = (flops / 5e2 + 22 * hidden * 2 / 2) / tp  # 500 FLOPs and 2 bytes a ps
        check(near(degree["fwd_ps_per_token"][at], ps, 0.01), degree, ps)
        check(near(degree["bwd_ps_per_token"][at], 2 * ps, 0.01), degree, ps)


def disturbances_stand_in_the_percentiles(path):
    """A third of the launches takes half as long again: those are above the median of nine, and
    nothing is below it."""
    profile = json.load(open(path))
    for grid in profile["attn"].values():
        cells = [zip(*rows) for rows in zip(grid["p10_ps_per_tile"], grid["ps_per_tile"],
                                            grid["p90_ps_per_tile"])]
        for low, median, high in (cell for row in cells for cell in row):
            check(near(low, median, 0.001) and 1.49 < high / median < 2, low, median, high)
    for group in (group for link in profile["coll"].values() for group in link.values()):
        check(all(near(high, 1.5 * ps, 0.001) for high, ps in zip(group["p90_ps"], group["ps"])),
              group)
    for degree in profile["linear"]["tp"].values():
        check(degree["bwd_p10_ps_per_token"] == degree["bwd_ps_per_token"], degree)
        check(degree["fwd_p90_ps_per_token"] == degree["fwd_ps_per_token"], degree)
    shown = run(ctl, "profile", "show", path, fake=False).stdout
    check("9 of each launch, SM clock 1830 to 1980 MHz" in shown, shown)


def a_planner_takes_it(path):
    done = run(ctl, "simulate", "--distribution", "wlb128k", "--steps", "2", "--profile", path,
               "--json", fake=False)
    check(done.returncode == 0, done.stderr)


def a_margin_has_a_file_each(folder):
    done = run(program, "--quick", "--output", folder, "--json", "--sm-margin", "0,8,16",
               "--hidden", "512", "--ffn", "1024", FAKE_CLOCK_DEVICES=2)
    check(done.returncode == 0, done.stderr)
    files = [json.loads(line)["file"] for line in done.stdout.splitlines()]
    check(len(set(files)) == 3, files)
    profiles = [json.load(open(path)) for path in files]
    check([profile["key"]["sm_margin"] for profile in profiles] == [0, 8, 16], done.stdout)
    for path, profile in zip(files, profiles):
        for part in ("linear", "coll"):
            check(profile[part] == profiles[0][part] != {}, part, path)
        fit = json.loads(run(ctl, "profile", "fit", path, "--json", fake=False).stdout)
        check(near(fit["fwd"]["block_ps"], 1.7e6, 0.001), path, fit)
        check(near(fit["bwd"]["launch_ps"], 15e6, 0.001), path, fit)
    check(done.stderr.count("links") + done.stderr.count("all-to-all") == 1, done.stderr)
    for path in files:
        os.unlink(path)


def refusals_say_what_to_do(folder):
    none = run(program, fake=False, LD_LIBRARY_PATH="/nonexistent")
    if none.returncode == 4:  # on a machine with a GPU there is one
        check("no NVIDIA driver" in none.stderr and "Hopper GPU and its driver" in none.stderr,
              none.stderr)
    none = run(program, FAKE_CLOCK_DEVICES=0)
    check(none.returncode == 4 and "CUDA_VISIBLE_DEVICES" in none.stderr, none.stderr)
    other = run(program, "--device", "3")
    check(other.returncode == 4 and "no device 3, only 1" in other.stderr, other.stderr)
    old = run(program, FAKE_CLOCK_MAJOR=8)
    check(old.returncode == 4 and "8.0 and the kernels need 9.0" in old.stderr, old.stderr)
    for words in (["--head-dim", "96"], ["--q-heads", "7", "--kv-heads", "2"], ["--hidden", "64"],
                  ["--tp", "8,1"], ["--sm-margin", "8,0"], ["--sm-margin", ","], ["--runs", "1"], ["surplus"]):
        check(run(program, *words).returncode == 2, words)
    all_taken = run(program, "--quick", "--sm-margin", "8,132", "--output", folder)
    check(all_taken.returncode == 1 and "leaves no processor" in all_taken.stderr, all_taken.stderr)
    full = run(program, "--quick", "--output", folder, *MODEL, FAKE_CLOCK_DEVICES=4,
               FAKE_CLOCK_FULL=1)
    check(full.returncode == 1 and "2048 MiB for transfers do not fit" in full.stderr, full.stderr)
    where = run(program, "--quick", "--quiet", "--output", folder + "/nowhere", *MODEL)
    check(where.returncode == 1 and "by --output" in where.stderr, where.stderr)
    falls = run(program, "--quick", "--quiet", "--output", folder, *MODEL, FAKE_CLOCK_FALLS=1)
    check(falls.returncode == 1 and "what was measured: attn.fwd" in falls.stderr, falls.stderr)
    check(len(os.listdir(folder)) == 2, os.listdir(folder))


with tempfile.TemporaryDirectory() as folder:
    written, said = the_law_comes_back(folder, "--hidden", "4096", "--ffn", "14336", "--tp", "1,8")
    the_rest_is_there(written)
    causal_cells_follow_the_law(written)
    disturbances_stand_in_the_percentiles(written)
    a_planner_takes_it(written)
    the_law_comes_back(folder, "--quick", "--deterministic", "--head-dim", "64", "--no-links")
    a_margin_has_a_file_each(folder)
    refusals_say_what_to_do(folder)
print(f"{checks} checks passed")
