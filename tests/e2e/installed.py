#!/usr/bin/python3
"""What a user has after `cmake --install`: the README's trainer compiles there and gets all the data."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys

from world import BIN, ROOT, Skip, World, main, synthetic_documents, write_corpus


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def installed():
    """A world whose corpus ends, and an installation in a folder with a space in its name."""
    with World() as world:
        prefix = os.path.join(world.dir, "d")
        write_corpus(prefix, synthetic_documents(8, 200, 3000))
        world.config([("d", prefix, 1)], {
            "corpus": {"epochs": 1},
            "plan": {"window": 2048, "micro_batches": 4, "policy": "wlb:bands"},
        })
        world.prefix = os.path.join(world.dir, "pre fix")
        run("cmake", "--install", os.path.dirname(BIN), "--prefix", world.prefix)
        yield world


def readme_program():
    with open(os.path.join(ROOT, "README.md")) as f:
        return re.search(r"^```c\n(.*?)^```$", f.read(), re.M | re.S)[1]


def folder_of(world, name):
    for folder, _, files in os.walk(world.prefix):
        if name in files:
            return folder
    raise AssertionError(f"{name} is not installed")


def compile_trainer(world):
    source = os.path.join(world.dir, "trainer.c")
    with open(source, "w") as f:
        f.write(readme_program())
    environment = {**os.environ, "PKG_CONFIG_PATH": folder_of(world, "ballast.pc")}
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "ballast", env=environment))
    program = os.path.join(world.dir, "trainer")
    run("cc", "-Wall", "-Wextra", "-Werror", "-o", program, source, *flags)
    return program


def test_the_program_of_the_readme_has_25_lines():
    assert len(readme_program().splitlines()) <= 25


def test_the_program_of_the_readme_takes_all_the_data_from_the_installed_daemon():
    with installed() as world:
        program = compile_trainer(world)
        world.start(bin_dir=os.path.join(world.prefix, "bin"))
        environment = {**os.environ, "BALLAST_SOCKET": world.socket,
                       "LD_LIBRARY_PATH": folder_of(world, "libballast.so")}
        done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "end of data\n"), done
        status = world.live("status")
        assert status["state"] == "finished" and status["committed_step"] == len(list(world.plans()))
        dataset = status["datasets"][0]
        assert dataset["delivered_tokens"] == dataset["tokens"] > 0
        world.stop()


def test_the_python_package_is_installed_and_takes_all_the_data():
    with installed() as world:
        world.start(bin_dir=os.path.join(world.prefix, "bin"))
        environment = {**os.environ, "BALLAST_SOCKET": world.socket,
                       "PYTHONPATH": os.path.dirname(folder_of(world, "py.typed"))}
        with open(os.path.join(ROOT, "README.md")) as f:
            program = re.search(r"^```python\n(.*?)^```$", f.read(), re.M | re.S)[1]
        assert run("/usr/bin/python3", "-c", program, env=environment) == "end of data\n"
        assert world.live("status")["state"] == "finished"
        world.stop()


def test_the_program_of_the_readme_says_why_it_cannot_go_on():
    with installed() as world:
        program = compile_trainer(world)
        world.config([("d", os.path.join(world.dir, "d"), 1)], {"parallel": {"dp": 2}, "node": {"replicas": "1"}})
        world.start()
        environment = {**os.environ, "BALLAST_SOCKET": world.socket,
                       "LD_LIBRARY_PATH": folder_of(world, "libballast.so")}
        done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "replica 0 is not served here" in done.stderr, done
        world.stop()


def test_a_build_that_is_not_whole_installs_nothing_and_says_how_to_make_it_so():
    """As deploy/quickstart leaves it."""
    with World() as world:
        build, prefix = (os.path.join(world.dir, name) for name in ("bui ld", "prefix"))
        run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DBALLAST_TESTS=OFF")
        os.makedirs(os.path.join(build, "bin"), exist_ok=True)
        for program in ("ballastd", "ballastctl", "ballast-rank"):
            shutil.copy(os.path.join(BIN, program), os.path.join(build, "bin"))
        done = subprocess.run(["cmake", "--install", build, "--prefix", prefix], capture_output=True, text=True, timeout=120)
        said = " ".join(done.stderr.split())  # which cmake wraps
        assert done.returncode != 0 and "bin/ballast-profile is not built, so nothing is installed" in said, done
        assert f"cmake --build '{build}'" in said and not os.path.exists(prefix), said


def test_pip_installs_the_python_package_without_a_network_or_a_build_tool():
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, timeout=60).returncode != 0:
        raise Skip("there is no pip: apt-get install python3-pip")
    with World() as world:
        world.config([("d", os.path.join(world.dir, "d"), 1)], {"plan": {"window": 2048}})
        write_corpus(os.path.join(world.dir, "d"), synthetic_documents(8, 50, 3000))
        world.start()
        environment = os.path.join(world.dir, "environment")
        python = os.path.join(environment, "bin", "python")
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--quiet", "--disable-pip-version-check",
            "--root-user-action=ignore", os.path.join(ROOT, "client", "python"))
        code = "import ballast, os; print(ballast.__file__); print(os.path.exists(ballast.__path__[0] + '/py.typed'))"
        where, typed = run(python, "-c", code, cwd=world.dir).split()
        assert where.startswith(environment) and typed == "True", (where, typed)
        found = run(python, "-m", "ballast.doctor", "--socket", world.socket, cwd=world.dir)
        assert "batch    ok" in found and "numpy" in found, found
        world.stop()


ATTENTION = """
#include <ballast_attn.h>
#include <ballast_exchange.h>
#include <stdio.h>
int main(void) {
    struct ballast_attn_shape shape = {128, 8, 2, 100, 100};
    struct ballast_attn_fragment whole = {.q_length = 100, .kv_length = 100, .head_count = 8};
    printf("%d %d\\n", ballast_attn_plan_bytes(&shape, &whole, 1) > 0, ballast_attn_build() != NULL);
    return 0;
}
"""


def test_the_attention_library_is_installed_and_links():
    with installed() as world:
        source = os.path.join(world.dir, "attention.c")
        with open(source, "w") as f:
            f.write(ATTENTION)
        environment = {**os.environ, "PKG_CONFIG_PATH": folder_of(world, "ballast_attn.pc")}
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "ballast_attn", env=environment))
        program = os.path.join(world.dir, "attention")
        run("cc", "-Wall", "-Wextra", "-Werror", "-o", program, source, *flags)
        environment = {**os.environ, "LD_LIBRARY_PATH": folder_of(world, "libballast_attn.so")}
        assert run(program, env=environment) == "1 1\n"
        assert folder_of(world, "ballast-profile.1").endswith("man1")
        profile = os.path.join(world.prefix, "bin", "ballast-profile")
        assert run(profile, "--help").startswith("Usage: ballast-profile")


def test_unit_user_manual_and_example_are_installed_and_agree():
    with installed() as world:
        program = os.path.join(world.prefix, "bin", "ballastd")
        with open(os.path.join(folder_of(world, "ballastd.service"), "ballastd.service")) as f:
            assert f"\nExecStart={program} --config /etc/ballast/ballast.conf\n" in f.read()
        with open(os.path.join(world.prefix, "lib/sysusers.d/ballast.conf")) as f:
            assert re.search("^u ballast ", f.read(), re.M)
        example = os.path.join(folder_of(world, "ballast.conf.example"), "ballast.conf.example")
        with open(example) as f:
            assert f.read() == run(program, "--print-config")
        assert folder_of(world, "ballast.json") == folder_of(world, "ballast.rules.yml")
        version = run("pkg-config", "--modversion", "ballast",
                      env={**os.environ, "PKG_CONFIG_PATH": folder_of(world, "ballast.pc")}).strip()
        assert version in run(program, "--version")
        assert version in run(os.path.join(world.prefix, "bin", "ballastctl"), "--version")
        assert version in run(os.path.join(world.prefix, "bin", "ballast-rank"), "--version")


EXPOSURE_MAX = 1.0  # of 10, as systemd-analyze counts; 0.6 on Debian 12


def test_systemd_finds_nothing_wrong_with_the_units_and_little_that_they_expose():
    if shutil.which("systemd-analyze") is None:
        raise Skip("no systemd-analyze; install the package systemd")
    with World() as world:
        units = []
        for name in ("ballastd.service", "ballastd.socket"):
            units.append(os.path.join(world.dir, name))
            with open(os.path.join(ROOT, "deploy", name)) as f, open(units[-1], "w") as to:
                to.write(f.read().replace("/usr/bin/", BIN + "/"))
        done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
        wrong = [line for line in done.stderr.splitlines() if "ballastd" in line]
        assert done.returncode == 0 and not wrong, done.stderr
        run("systemd-analyze", "security", "--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", units[0])


def options_of_help(program, *command):
    return set(re.findall(r"^ {2,}(?:-\S, )?--([a-z][a-z0-9-]*)", run(program, *command, "--help"), re.M))


def test_each_program_has_a_manual_with_the_options_that_it_has():
    with installed() as world:
        programs = os.path.join(world.prefix, "bin")
        for name in sorted(os.listdir(programs)):
            section = "8" if name == "ballastd" else "1"
            with open(os.path.join(folder_of(world, f"{name}.{section}"), f"{name}.{section}")) as f:
                named = set(re.findall(r"(?:Fl|,) -([a-z][a-z0-9-]*)", f.read()))
            program = os.path.join(programs, name)
            there = options_of_help(program)
            if name == "ballastctl":
                commands = re.findall(r"^  (\w+)  ", run(program, "--help").split("Commands:\n")[1], re.M)
                assert len(commands) > 10
                there |= {"cp", "pp", "tp"}.union(*(options_of_help(program, command) for command in commands))
            else:  # its manual leaves the rest of its commands' options to --help, and says so
                assert there - {"usage", "help", "version"} <= named, f"{name}: {there - named} are not in its manual"
            assert named <= there, f"{name} has no {named - there}"


if __name__ == "__main__":
    main(globals())
