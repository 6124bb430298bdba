"""The kernels with changes put in, compiled for the emulator: for bugs.py and versions.py.

A change is (file of gpu_attn, text that is there, what stands there instead[, how often it is there]). One whose text
is not there exactly that often ends the program: changes follow the kernels."""
import os
import shutil
import subprocess
import sys

KERNELS = ("forward.h", "backward.h", "backward_queries.h", "rows.h")


def copy_sources(folder, source):
    shutil.copytree(os.path.join(source, "gpu_attn"), os.path.join(folder, "gpu_attn"))


def put_in(folder, name, changes):
    """Returns the files that are no longer as they were."""
    for file, there, instead, *times in changes:
        path = os.path.join(folder, "gpu_attn", file)
        with open(path, encoding="utf-8") as old:
            text = old.read()
        if text.count(there) != (times or [1])[0]:
            sys.exit(f"{name}: its text is in {file} {text.count(there)} times, not {(times or [1])[0]}; mend it")
        with open(path, "w", encoding="utf-8") as new:
            new.write(text.replace(there, instead))
    return {file for file, *_ in changes}


def compile_c(compiler, folder, source, path, output, *flags):
    subprocess.run([compiler, "-std=gnu17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-D_GNU_SOURCE", "-I", folder,
                    "-I", source, *flags, "-x", "c", "-c", path, "-o", output], check=True)
    return output


def compile_kernels(compiler, folder, source, head_dim, changed):
    """Objects of the kernels that any changed file is part of."""
    return [compile_c(compiler, folder, source, os.path.join(folder, "gpu_attn", name),
                      os.path.join(folder, f"{name}.{head_dim}.o"), f"-DHEAD_DIM={head_dim}")
            for name in KERNELS
            if any(file == name or (file not in KERNELS and file.endswith(".h")) for file in changed)]


def link_libcuda(compiler, folder, base, kernels, sound):
    """A kernel that is among `kernels` is that one, any other as the `sound` objects have it."""
    path = os.path.join(folder, "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-z,muldefs,-z,defs", "-o", path,
                    "-Wl,--whole-archive", base, "-Wl,--no-whole-archive", *kernels, *sound, "-lm"], check=True)
    return path
