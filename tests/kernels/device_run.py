#!/usr/bin/env python3
"""tests/gpu/run without a device, so that none of its minutes is lost to the script: what is carried, run from start
to end with the real programs against the fakes, and with programs that fail, hang or are not there.

    device_run.py SOURCE LIBCUDA LIBCUDA_CLOCK LIBBALLAST_ATTN      the last three are the tests' own"""
import os
import re
import stat
import subprocess
import sys
import tempfile

source, libcuda, clock, library = map(os.path.abspath, sys.argv[1:])
FULL = "BALLAST_TEST_FULL" in os.environ
STEPS = ["probes", "correctness, head dimension 128", "correctness, head dimension 64", "timing", "torch", "profile",
         "version forward-9", "memcheck", "racecheck"]
checks = 0


def check(condition, *what):
    global checks
    checks += 1
    if not condition:
        print("FAILED:", *what)
        sys.exit(1)


def program(folder, name, body):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/bash\n" + body)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def run(folder, *words, **settings):
    """The run with its folder of tools first, and what it left in $OUT."""
    out = os.path.join(folder, "out")
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("BALLAST_GPU_REPORTS", "BALLAST_PROBES", "LD_LIBRARY_PATH")}
    environment.update(OUT=out, PATH=os.path.join(folder, "tools") + ":" + environment["PATH"], **settings)
    done = subprocess.run([os.path.join(folder, "carry", "run"), *words], env=environment, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    return done.returncode, done.stdout, sorted(os.listdir(out)) if os.path.isdir(out) else []


def folder_of(name, parent):
    folder = os.path.join(parent, name)
    for part in ("carry", "tools"):
        os.makedirs(os.path.join(folder, part))
    return folder


def steps_of(text):
    return re.findall(r"^== ([^:\n]+)$", text, re.M)


def tools(folder, sanitizer='shift 4\nexec "$@"\n'):
    path = os.path.join(folder, "tools")
    program(path, "nvidia-smi", 'echo "GPU 0: a fake"\n')
    program(path, "compute-sanitizer", sanitizer)
    program(path, "python3", f"""case $1 in
-c) exit 0 ;;
*) [ -f "$BALLAST_ATTN_LIBRARY" ] || exit 1
   exec env LD_LIBRARY_PATH= /usr/bin/python3 {source}/tests/kernels/torch_device.py {libcuda} {library} "${{1%/*}}" ;;
esac
""")


def stubs(folder, **bodies):
    """A carried folder of programs that only say what they are asked; {what they are asked: what they do}."""
    cases = "".join(f"{what}) {body} ;;\n" for what, body in bodies.items())
    carry = os.path.join(folder, "carry")
    subprocess.run(["cp", os.path.join(source, "tests/gpu/run"), carry], check=True)
    program(carry, "attn_device", f'echo "asked to $*"\ncase $1$2 in\n{cases}esac\nexit 0\n')
    program(carry, "ballast-profile", 'echo {} >"$3/profile.json"\necho "$3/profile.json"\n')
    program(os.path.join(folder, "tools"), "nvidia-smi", 'echo "GPU 0: a fake"\n')
    program(os.path.join(folder, "tools"), "python3", "exit 1\n")


def what_is_carried_runs_from_start_to_end(parent):
    folder = folder_of("whole", parent)
    carry = os.path.join(folder, "carry")
    done = subprocess.run([os.path.join(source, "tests/gpu/run"), "--carry", carry], capture_output=True, text=True,
                          check=False)
    check(done.returncode == 0, done.stdout + done.stderr)
    tools(folder)
    # The programs themselves, each with the driver that knows enough for what it is asked; one problem is enough to
    # see that a check runs, as attn_emulated has them all.
    few = "" if FULL else '[ "$1" != check ] || set -- check "$2" 1\n'
    os.mkdir(os.path.join(carry, "real"))
    for name in ("attn_device", "ballast-profile"):
        os.rename(os.path.join(carry, name), os.path.join(carry, "real", name))
        program(carry, name, f"""{few}case $1 in
probes|check) fake={os.path.dirname(libcuda)} ;;
*) fake={os.path.dirname(clock)} ;;
esac
LD_LIBRARY_PATH=$fake:$LD_LIBRARY_PATH exec "${{0%/*}}/real/${{0##*/}}" "$@"
""")
    program(carry, "attn_device.forward-9", 'echo "asked to $*"\n')
    result, text, left = run(folder)
    check(result == 0 and steps_of(text) == STEPS, result, text)
    check(text.rstrip().endswith(f"{len(STEPS)} passed, 0 failed, 0 skipped"), text)
    check("asked to time" in text and "TFLOP/s" in text and '"attn"' in text and "wgmma, both shared" in text, text)
    profiles = [name for name in left if re.fullmatch(r"[0-9a-f]{16}\.json", name)]
    check(len(profiles) == 1 and {"run.log", "probes.bin", "memcheck.log"} <= set(left), left)
    with open(os.path.join(folder, "out", "run.log"), encoding="utf-8") as log:
        check(log.read() == text, "run.log is not what was printed")


def a_failed_step_does_not_end_the_run(parent):
    """Nor one that hangs; what then has no time left is skipped, and the sum says so."""
    folder = folder_of("failing", parent)
    stubs(folder, check128="exit 1", time="sleep 100")
    result, text, left = run(folder, BALLAST_GPU_SECONDS="10")
    check(result == 1 and steps_of(text) == STEPS[:4], result, text)
    check("correctness, head dimension 128: FAILED" in text and "timing: FAILED after" in text, text)
    check("failed: correctness, head dimension 128, timing\n2 passed, 2 failed, 3 skipped\n" in text, text)
    check(left == ["run.log"], left)


def a_failed_probe_ends_the_run(parent):
    folder = folder_of("probe", parent)
    stubs(folder, **{"probes*": "exit 1"})
    result, text, _ = run(folder)
    check(result == 1 and text.endswith("failed: probes\n0 passed, 1 failed, 0 skipped\n"), text)


def what_is_not_there_is_skipped(parent):
    folder = folder_of("without", parent)
    stubs(folder)
    program(os.path.join(folder, "tools"), "compute-sanitizer", 'echo "Error: Device not supported."\nexit 1\n')
    result, text, _ = run(folder)
    check(result == 0 and text.endswith("5 passed, 0 failed, 3 skipped\n"), text)
    check("no torch" in text and "Device not supported" in text, text)


def without_a_device_nothing_is_checked(parent):
    folder = folder_of("none", parent)
    stubs(folder)
    program(os.path.join(folder, "tools"), "nvidia-smi", 'echo "no devices were found" >&2\nexit 9\n')
    result, text, left = run(folder)
    check(result == 77 and "no device here" in text and left == ["run.log"], result, text, left)
    result, text, _ = run(folder, "--help")
    check(result == 2 and "--carry DIR" in text, text)


with tempfile.TemporaryDirectory() as parent:
    for test in (what_is_carried_runs_from_start_to_end, a_failed_step_does_not_end_the_run,
                 a_failed_probe_ends_the_run, what_is_not_there_is_skipped, without_a_device_nothing_is_checked):
        test(parent)
        print(test.__name__)
print(f"{checks} checks")
