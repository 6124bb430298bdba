#!/usr/bin/env python3
"""The numbered versions of gpu_attn/lab, each a patch that fits on today's kernels.

    versions.py check [BUILD]         each fits, its results are right under emulation, and the README's tables say what
                                      is counted; with BALLAST_TEST_FULL all problems, and what the compiler makes of it
    versions.py tables [BUILD]        the tables, as the README has them
    versions.py devices DIR [BUILD]   attn_device of each version into DIR, for tests/gpu/run

BUILD is build/release. The C compiler is $CC, or cc."""
import concurrent.futures
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import patched

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAB = os.path.join(SOURCE, "gpu_attn", "lab")
COMPILER = os.environ.get("CC", "cc")
FULL = "BALLAST_TEST_FULL" in os.environ
# What the tables have of each, by pass: version, head dimension.
COUNTED = {"forward": [("1", 128), ("2", 128), ("3", 128), ("4", 128)],
           "backward": [("1", 64), ("2", 64), ("2", 128), ("4", 128), ("5", 128), ("5", 64)]}
LATEST = {"forward": "4", "backward": "5"}
OPCODES = {"wgmma": (0x9f0, 0xdf0), "additions": (0x3b6,)}


def changes_of_patch(path):
    """The hunks of a unified diff, as changes."""
    changes = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("--- "):
                file = line.strip().split("/gpu_attn/")[1]
            elif line.startswith("@@"):
                changes.append([file, "", ""])
            elif not line.startswith("+++ "):
                changes[-1][1] += line[1:] if line[0] in " -" else ""
                changes[-1][2] += line[1:] if line[0] in " +" else ""
    return changes


def versions():
    """Names that have a patch; '' is the product."""
    return ["", *sorted(name[:-len(".patch")] for name in os.listdir(LAB) if name.endswith(".patch"))]


def sources_of(folder, version):
    patched.copy_sources(folder, SOURCE)
    changes = changes_of_patch(os.path.join(LAB, version + ".patch")) if version else []
    return patched.put_in(folder, version, changes)


def program_of(folder, build, changed, libcuda):
    """attn_versions with the version's own plans and launches."""
    def library(path):
        return os.path.join(build, path)
    objects = [patched.compile_c(COMPILER, folder, SOURCE, os.path.join(folder, "gpu_attn", file),
                                 os.path.join(folder, file + ".o"))
               for file in ("plan.c", "launch.c") if not changed.isdisjoint({file, "params.h", "shared_bytes.h"})]
    output = os.path.join(folder, "attn_versions")
    subprocess.run([COMPILER, "-o", output, library("tests/kernels/CMakeFiles/attn_versions.dir/attn_versions.c.o"),
                    *objects, library("tests/kernels/libattn_world.a"), "-Wl,--start-group",
                    library("gpu_attn/libballast_attn_launch.a"), library("gpu_attn/libballast_attn_plan.a"),
                    library("tests/kernels/libattn_image_fake.a"), library("gpu_attn/libballast_attn_reference.a"),
                    library("sharding/libballast_sharding.a"), "-Wl,--end-group", libcuda, "-lxxhash", "-lm", "-ldl"],
                   check=True)
    return output


def run(program, *arguments):
    """Lines it prints; raises with them when it complains."""
    result = subprocess.run([program, *arguments], env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(program)},
                            capture_output=True, text=True, timeout=900, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{arguments}: exit {result.returncode} {result.stdout}{result.stderr}")
    return result.stdout.splitlines()


def counts_of(lines):
    """{problem: {what: how many}}"""
    counts = {}
    for line in lines:
        problem, *rest = line.split()
        counts[problem] = dict(zip(rest[::2], map(int, rest[1::2])))
    return counts


def emulate(of, version, head_dim, build, thorough):
    """What the emulator counts of the pass, after its results have been checked."""
    with tempfile.TemporaryDirectory() as folder:
        changed = sources_of(folder, version)
        touched = {file for file in changed if file.endswith(".h")}
        kernels = patched.compile_kernels(COMPILER, folder, SOURCE, head_dim,
                                          changed if thorough else touched and {of + ".h"})
        built = os.path.join(build, "tests/kernels")
        libcuda = patched.link_libcuda(COMPILER, folder, os.path.join(built, "libfake_cuda_base.a"), kernels,
                                       [os.path.join(built, f"CMakeFiles/emulated_kernels_{dim}.dir/kernels.c.o")
                                        for dim in (64, 128)])
        program = program_of(folder, build, changed, libcuda)
        if version: # the product's are attn_emulated's
            run(program, "check", of, str(head_dim), *(["all"] if thorough else []))
        return counts_of(run(program, "count", of, str(head_dim)))


def opcodes_of(cubin, kernel):
    """Opcodes of a kernel in a cubin's ELF, in order: the low 12 bits of each 128-bit instruction."""
    offset, size, count, names = (struct.unpack_from("<Q", cubin, 0x28)[0], *struct.unpack_from("<HHH", cubin, 0x3a))
    def section(index):
        return struct.unpack_from("<IIQQQQ", cubin, offset + index * size)
    name_table = section(names)[4]
    for index in range(count):
        name, _, _, _, start, length = section(index)
        at = name_table + name
        if cubin[at:cubin.index(b"\0", at)] == b".text." + kernel.encode():
            return [struct.unpack_from("<Q", cubin, start + i)[0] % 4096 for i in range(0, length, 16)]
    raise RuntimeError(f"no {kernel} in the cubin")


def nvcc():
    """(path, release), or None where it is not."""
    path = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.access(path, os.X_OK):
        return None
    says = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return path, re.search(r"release (\S+),", says)[1]


def build_cubin(folder, head_dim, compiler):
    """As the product's build does, from the sources in the folder."""
    for name in ("sharding", "tests"):
        os.symlink(os.path.join(SOURCE, name), os.path.join(folder, name))
    output = os.path.join(folder, "kernels.cubin")
    return output, subprocess.run([os.path.join(folder, "gpu_attn", "compile"), compiler, str(head_dim), output,
                                   "--cubin"], capture_output=True, text=True, check=False)


def refused(compiler):
    """Does the build refuse kernels that spill?"""
    with tempfile.TemporaryDirectory() as folder:
        patched.copy_sources(folder, SOURCE)
        patched.put_in(folder, "40 / 232 registers", [("block.h", "REGISTERS_DECREASE(24)", "REGISTERS_DECREASE(40)"),
                                                      ("block.h", "REGISTERS_INCREASE(240)", "REGISTERS_INCREASE(232)")])
        output, done = build_cubin(folder, 128, compiler)
        return done.returncode == 1 and "a kernel spills" in done.stderr and not os.path.exists(output)


def compiled(of, version, head_dim, compiler):
    """What the compiler makes of the pass's kernel; fails where the build would."""
    with tempfile.TemporaryDirectory() as folder:
        sources_of(folder, version)
        output, done = build_cubin(folder, head_dim, compiler)
        if done.returncode != 0:
            raise RuntimeError(f"{version}, head dimension {head_dim}: {done.stderr}")
        with open(output, "rb") as file:
            cubin = file.read()
        with open(output + ".log", encoding="utf-8") as file:
            log = file.read()
    name = f"attn_{of}_d{head_dim}"
    opcodes = opcodes_of(cubin, name)
    says = log[log.index(f"'{name}'"):]
    return {"instructions": len(opcodes), "registers": int(re.search(r"Used (\d+) registers", says)[1]),
            **{what: sum(opcodes.count(code) for code in codes) for what, codes in OPCODES.items()}}


def kib(counts):
    return counts["loaded"] // 1024


def row_emulated(number, head_dim, counts):
    document, piece = counts["document"], counts["piece"]
    cells = [number, head_dim, document["wgmma"], kib(document), document["barriers"],
             f"{document['none']} / {document['some']}", document["additions"], piece["wgmma"], kib(piece),
             *([counts["ragged"]["busiest"]] if "ragged" in counts else [])]
    return "| " + " | ".join(map(str, cells)) + " |"


def row_compiled(number, head_dim, found):
    cells = [number, head_dim, *(found[what] for what in ("instructions", "wgmma", "additions", "registers"))]
    return "| " + " | ".join(map(str, cells)) + " |"


def name_of(of, number):
    return "" if number == LATEST[of] else f"{of}-{number}"


def rows_of(build, compiler, thorough):
    """Yields (pass, table, row) in the README's order; raises where a version's results are wrong."""
    cells = [(of, number, dim) for of, versions_of in COUNTED.items() for number, dim in versions_of]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        emulated = {cell: pool.submit(emulate, cell[0], name_of(*cell[:2]), cell[2], build, thorough) for cell in cells}
        seen = {(of, name_of(of, number), dim) for of, number, dim in cells}
        rest = [pool.submit(emulate, "backward", name, dim, build, True) for name in versions() for dim in (64, 128)
                if thorough and name and ("backward", name, dim) not in seen]
        machine = {cell: pool.submit(compiled, cell[0], name_of(*cell[:2]), cell[2], compiler)
                   for cell in cells if compiler}
        for cell in cells:
            yield cell[0], "emulated", row_emulated(*cell[1:], emulated[cell].result())
        for cell, found in machine.items():
            yield cell[0], "compiled", row_compiled(*cell[1:], found.result())
        for future in rest:
            future.result()


def check(build):
    with open(os.path.join(LAB, "README.md"), encoding="utf-8") as file:
        said = file.read()
    compiler = nvcc() if FULL else None
    wrong = 0
    if compiler and not refused(compiler[0]):
        wrong += 1
        print("the build takes kernels that spill")
    if compiler and f"nvcc {compiler[1]}" not in said:
        print(f"the README's are of another nvcc than {compiler[1]}: not compared")
        compiler = None
    for of, table, row in rows_of(build, compiler and compiler[0], FULL):
        good = row in said.splitlines()
        wrong += not good
        print(f"{of:9} {table:9} {row}{'' if good else '  <-- the README has another'}")
    without = [name for name in versions() if name and f"`{name}.patch`" not in said]
    print(f"{len(versions()) - 1} versions, {wrong} rows wrong, not in the README: {', '.join(without) or 'none'}")
    return 1 if wrong or without else 0


def tables(build):
    compiler = nvcc()
    for of, table, row in rows_of(build, compiler and compiler[0], False):
        print(f"{of:9} {table:9} {row}")
    return 0


def devices(to, build):
    """Each from a tree of its own, so that everything that is hashed and included is the version's."""
    for version in versions()[1:]:
        with tempfile.TemporaryDirectory() as folder:
            tree = os.path.join(folder, "ballast")
            shutil.copytree(SOURCE, tree, symlinks=True, ignore=shutil.ignore_patterns("build", ".git"))
            patched.put_in(tree, version, changes_of_patch(os.path.join(LAB, version + ".patch")))
            print(f"building {version}", flush=True)
            for command in (["cmake", "--preset", "release", "-DBALLAST_TESTS=ON"],
                            ["cmake", "--build", "--preset", "release", "--target", "attn_device"]):
                subprocess.run(command, cwd=tree, stdout=subprocess.DEVNULL, check=True)
            shutil.copy(os.path.join(tree, "build/release/bin/attn_device"), os.path.join(to, f"attn_device.{version}"))
    return 0


def main():
    what, *rest = sys.argv[1:] or [""]
    if what == "devices" and rest:
        return devices(rest[0], None)
    if what not in ("check", "tables"):
        sys.exit(__doc__)
    build = os.path.abspath(rest[0] if rest else os.path.join(SOURCE, "build/release"))
    return check(build) if what == "check" else tables(build)


if __name__ == "__main__":
    sys.exit(main())
