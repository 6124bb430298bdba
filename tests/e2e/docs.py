#!/usr/bin/python3
"""What README, ARCHITECTURE and docs/ say is there: commands, their options, config keys, files, tests."""

import glob
import os
import re
import subprocess

from world import BIN, ROOT, main

PAGES = ["README.md", "ARCHITECTURE.md"] + sorted(os.path.relpath(p, ROOT) for p in glob.glob(f"{ROOT}/docs/*.md"))
PROGRAMS = {name: [os.path.join(BIN, name)] for name in ("ballastd", "ballastctl", "ballast-rank", "ballast-profile")}
PROGRAMS |= {name: [os.path.join(ROOT, name)] for name in
             ("deploy/quickstart", "deploy/install-packages", "tests/run", "tests/bench/run")}
# Their words are looked up instead: for --help they would bring torch first.
SLOW = ("examples/trainer.py", "tests/quality/run")
PROGRAMS["-m ballast.doctor"] = ["/usr/bin/python3", "-m", "ballast.doctor"]
CALL = re.compile(r"(?:^|(?<=[\s`(]))(?:\S*/bin/)?(%s)(?= |`|$)" % "|".join(
    sorted(map(re.escape, [*PROGRAMS, *SLOW]), key=len)[::-1]))


def text(page):
    with open(os.path.join(ROOT, page)) as f:
        return f.read()


def calls(page):
    """(program, words behind it) of each command in indented blocks and in backticks."""
    lines = re.sub(r"\\\n\s*", "", text(page)).splitlines()
    code = [line.split(" # ")[0] for line in lines if line.startswith("    ")]
    code += re.findall(r"`([^`]+)`", " ".join(line for line in lines if not line.startswith("    ")))
    for piece in re.split(r"&&|\||\$\(|;", "\n".join(code).replace("\n", ";")):
        match = CALL.search(piece)
        if match:
            yield match[1], piece[match.end():].split()


helps = {(program, ()): " ".join("--" + word.replace("_", "-") for word in re.findall(r"[a-z_-]+", text(program)))
         for program in SLOW}


def help_of(program, *command):
    if (program, command) not in helps:
        environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client/python")}
        done = subprocess.run([*PROGRAMS[program], *command, "--help"], capture_output=True, text=True, timeout=60,
                              env=environment)
        assert done.returncode == 0 and done.stdout, f"{program} {command}: {done.stderr}"
        helps[program, command] = done.stdout
    return helps[program, command]


def check_call(program, words):
    command = ()
    if program == "ballastctl":
        subcommands = re.findall(r"^  (\w+)  ", help_of(program).split("Commands:\n")[1], re.M)
        first = next((w for w in words if re.fullmatch(r"[a-z]+", w)), None)
        plain = words and not words[0].startswith("-")
        assert not plain or words[0].strip("`,.)") in subcommands, f"no command {words[0]}"
        command = (first,) if first in subcommands else ()
    told = help_of(program, *command)
    options = re.findall(r"--[a-z][a-z0-9-]*", told)
    options += ["--" + name for names in re.findall(r"likewise ((?:[a-z]+, )*[a-z]+)", told) for name in names.split(", ")]
    for word in words:
        option = re.match(r"[\[(]?(--[a-z][a-z0-9-]*)", word)
        assert not option or option[1] in options, f"no option {option[1]}"


def test_commands_have_the_subcommands_and_options_that_pages_give_them():
    seen, wrong = 0, []
    for page in PAGES:
        for program, words in calls(page):
            seen += 1
            try:
                check_call(program, words)
            except AssertionError as e:
                wrong.append(f"{page}: {program} {' '.join(words)}: {e}")
    assert seen > 60 and not wrong, "\n".join(wrong)


def test_keys_of_the_config_are_keys():
    sections, section = {}, None
    for line in subprocess.run([*PROGRAMS["ballastd"], "--print-config"], capture_output=True, text=True,
                               check=True).stdout.splitlines():
        if match := re.match(r"#? ?\[(\w+)", line):
            section = sections.setdefault(match[1], set())
        elif match := re.match(r"#? ?(\w+) =", line):
            section.add(match[1])
    wrong = [f"{page}: {name}.{key}" for page in PAGES
             for name, key in re.findall(r"`(\w+)\.(\w+)(?: = [^`]*)?`", text(page))
             if name in sections and key not in sections[name] | {"c", "h", "py", "md", "proto"}]
    assert not wrong, "\n".join(wrong)


def anchors(page):
    return {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
            for line in text(page).splitlines() if line.startswith("#")}


def test_links_lead_to_files_and_headings():
    wrong = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s:]*(?:#[^)\s]*)?)\)", text(page)):
            path, _, anchor = target.partition("#")
            at = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(os.path.join(ROOT, at)) or (anchor and anchor not in anchors(at)):
                wrong.append(f"{page}: {target}")
    assert not wrong, "\n".join(wrong)


def test_tests_and_files_that_pages_name_are_there():
    listed = subprocess.run(["ctest", "--test-dir", os.path.dirname(BIN), "-N"], capture_output=True, text=True,
                            check=True).stdout
    tests = set(re.findall(r"Test +#\d+: (\S+)", listed))
    tests |= {f"fuzz/{name}" for name in re.findall(r"ballast_fuzz\((\w+)", text("tests/fuzz/CMakeLists.txt"))}
    short = {name.split("/")[1] for name in tests}
    folders = {name.split("/")[0] for name in tests}
    wrong = []
    for page in PAGES:
        for name in re.findall(r"`([\w./-]+)`", text(page)):
            folder = name.split("/")[0]
            if folder in folders and "/" in name:
                there = name in tests
            elif folder and "/" in name and os.path.isdir(os.path.join(ROOT, folder)):
                there = glob.glob(os.path.join(ROOT, name) + "*")
            elif re.match(r"(daemon|corpus|planner|fuzz|ctl|profile|client|packer)_\w+$", name):
                there = name in short or not name.startswith("fuzz_") and any(name in line for line in symbols())
            else:
                there = True
            if not there:
                wrong.append(f"{page}: {name}")
    assert not wrong, "\n".join(wrong)


def symbols(found=[]):
    if not found:
        files = subprocess.run(["git", "-C", ROOT, "ls-files", "*.[ch]"], capture_output=True, text=True).stdout.split()
        found += [text(f) for f in files]
    return found


if __name__ == "__main__":
    main(globals())
