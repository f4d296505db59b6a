"""clang-tidy over the library's and the programs' C++ sources in compile_commands.json, in minutes.

Four things make it quick. The headers of others (LibTorch's take 10 s a source) are parsed once for all sources that
are compiled with the same definitions, into a precompiled header. clang-tidy reads such headers but cannot write them;
libclang can. Two versions of clang may not understand each other's, so an empty source is tried first; if that fails,
the headers are parsed for each source. Headers of others are not analysed, and the static analyser follows calls less
far than it could, which would double the time. Sources with the same flags are read several at a time, as one source
that includes them: most of the time goes to what they all include. If that finds something, each is read by itself.
(What clang says of a main file alone, as of unused functions, GCC says when it compiles.) A source that was found
clean is skipped until it, a header of ours that it includes, .clang-tidy, its flags or the tools change;
build/lint/clean remembers it.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINT = ROOT / "build" / "lint"
TOOLS = LINT / "tools"
TIDY = TOOLS / "clang_tidy" / "data" / "bin" / "clang-tidy"
FOLDERS = ("accountant", "bench", "bindings", "dp", "examples", "fsdp", "kernels")
# As in cmake/GhostShardOptions.cmake: fields that a designated initialiser leaves out have their defaults.
WARNINGS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-missing-designated-field-initializers")
HEAVY = ("torch/", "pybind11/")  # headers that take as long as all the others
TOGETHER = 8  # sources at a time; in none of our libraries do two have something of the same name
MOST_LINES = 30  # of one finding: its notes can be every overload of an operator
SHALLOW = ("-Xclang", "-analyzer-config", "-Xclang", "mode=shallow")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


class Source:
    """One source with the flags that decide what it means. Code generation's flags are left out: clang does not know
    all of GCC's, and a precompiled header must have been made with the same ones."""

    def __init__(self, entry):
        self.path = Path(entry["file"])
        self.name = str(self.path.relative_to(ROOT))
        words = iter(shlex.split(entry["command"])[1:])
        self.definitions, self.folders, self.system = [], [], []
        for word in words:
            if word == "-isystem":
                self.system.append(next(words))
            elif word.startswith("-isystem"):
                self.system.append(word[len("-isystem"):])
            elif word.startswith("-I"):
                folder = os.path.normpath(word[2:])
                if folder not in self.folders:
                    self.folders.append(folder)
            elif word.startswith("-D") and not word.startswith("-DGTEST_"):  # GoogleTest finds them out itself
                self.definitions.append(word)
        self.definitions = sorted(set(self.definitions))

    def group(self):
        """The definitions that headers of others ask for; those of single targets would only make more groups. Device
        code is a group of its own: what it calls CUDA's header is our emulation of it."""
        if self.is_device_code():
            return ("device",)
        return tuple(d for d in self.definitions if not re.match(r"-D(GHOSTSHARD_|\w+_EXPORTS)", d))

    def family(self):
        """Sources that share a precompiled header: clang-tidy reads all of it for each of them, so those few that need
        torch/ or Python have one of their own."""
        heavy = any(name.startswith(HEAVY) for name in included(self.path)[1])
        return (*self.group(), "heavy" if heavy else "light")

    def is_device_code(self):
        return self.path.suffix == ".cu"

    def flags(self):
        # Device code is read as the tests compile it.
        language = ["-xc++"] if self.is_device_code() else []
        return ([*language, "-std=c++20", *WARNINGS, *self.definitions, *(f"-I{f}" for f in self.folders)] +
                [word for folder in self.system for word in ("-isystem", folder)])


_INCLUDED = {}


def included(path, known=_INCLUDED):
    """The project's files that a file includes, itself among them, and the names of the headers of others."""
    if path not in known:
        ours, others = {path}, set()
        known[path] = (ours, others)
        for bracket, name in INCLUDE.findall(path.read_text()):
            if bracket == "<":
                others.add(name)
            elif (ROOT / name).is_file():
                more_ours, more_others = included(ROOT / name)
                ours |= more_ours
                others |= more_others
    return known[path]


def precompiled_header(sources):
    """Flags that make clang-tidy read the group's headers of others from one file; none if that does not work."""
    from clang import cindex

    cindex.Config.libcxx_dir = ""  # its own standard library; clang-tidy reads the compiler's
    system = list(dict.fromkeys(f for s in sources for f in s.system))
    names = sorted(set().union(*(included(s.path)[1] for s in sources)))
    text = "".join(f"#if __has_include(<{n}>)\n#include <{n}>\n#endif\n" for n in names)
    flags = ["-std=c++20", *WARNINGS, *sources[0].group(), *(w for f in system for w in ("-isystem", f))]
    resource = next((TIDY.parent.parent / "lib" / "clang").iterdir())
    incomplete, for_serialization = 0x02, 0x10
    meaning = hashlib.sha256("\n".join([text, *flags, libtorch_version(system), tools_identity(header=True)]).encode()).hexdigest()
    folder = LINT / "headers"
    folder.mkdir(parents=True, exist_ok=True)
    header, output = folder / f"{meaning[:16]}.h", folder / f"{meaning[:16]}.pch"
    use = ["-include-pch", str(output)]
    if output.is_file():
        return use
    header.write_text(text)
    partial = output.with_suffix(".partial")
    try:
        unit = cindex.Index.create().parse(str(header), args=[*flags, "-x", "c++-header", "-resource-dir", str(resource)],
                                           options=incomplete | for_serialization)
        errors = [str(d) for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
        if errors:
            raise RuntimeError(errors[0])
        unit.save(str(partial))
    except (cindex.LibclangError, cindex.TranslationUnitLoadError, cindex.TranslationUnitSaveError, RuntimeError) as error:
        print(f"lint: no precompiled header, every source parses its own: {error}")
        return []
    probe = folder / "probe.cpp"
    probe.write_text("#include <string>\nint main() { return std::to_string(1).size() == 1 ? 0 : 1; }\n")
    tried = subprocess.run([TIDY, "--quiet", "--checks=-*,modernize-use-nullptr", str(probe), "--", *flags, "-include-pch",
                            str(partial)], capture_output=True, text=True)
    if tried.returncode:
        print(f"lint: the precompiled header is not readable, every source parses its own:\n{tried.stdout}{tried.stderr}")
        return []
    partial.rename(output)
    return use


def libtorch_version(folders):
    files = (Path(f) / "torch" / "csrc" / "api" / "include" / "torch" / "version.h" for f in folders)
    return "".join(f.read_text() for f in files if f.is_file())


def tools_identity(header=False):
    """What decides a result beside the source and its flags; for a precompiled header, the tools alone."""
    parts = [(ROOT / name).read_text() for name in ("tools/lint-requirements.txt", ".clang-tidy")[:1 if header else 2]]
    parts.append(subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout)
    return "\n".join([*parts, *SHALLOW])


def clean_marker(source, identity):
    digest = hashlib.sha256(identity.encode())
    for word in source.flags():
        digest.update(word.replace(str(ROOT), "").encode())
    for file in sorted(included(source.path)[0]):
        digest.update(str(file.relative_to(ROOT)).encode())
        digest.update(file.read_bytes())
    digest.update(libtorch_version(source.system).encode())
    return LINT / "clean" / digest.hexdigest()


def changed_since(commit):
    """Files of the tree that are not what they were at this commit. None, all of them: if git does not know it, or if it is the rules that changed."""
    names = set()
    for words in (["diff", "--name-only", commit, "--"], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        if done.returncode:
            print(f"lint: git does not know {commit}, so every source is read: {done.stderr.strip().splitlines()[-1]}")
            return None
        names.update(done.stdout.split("\n"))
    if any(name.startswith((".clang-tidy", "cmake/GhostShardOptions.cmake", "tools/lint-requirements.txt")) for name in names):
        return None
    return {ROOT / name for name in names if name}


def check(source, use, extra):
    began = time.monotonic()
    code, output, errors = tidied(source.path, source, use, extra)
    return source, code, output, errors, time.monotonic() - began


def tidied(path, source, use, extra):
    """clang-tidy over this file with the flags of a source: its exit status, and what it printed."""
    run = subprocess.run([TIDY, "--quiet", *extra, str(path), "--", *source.flags(), *use, *SHALLOW],
                         capture_output=True, text=True, cwd=ROOT)
    return run.returncode, run.stdout, run.stderr


def check_together(sources, use, extra):
    """`check` of each source."""
    if len(sources) > 1:
        began = time.monotonic()
        text = "".join(f'#include "{source.path}"\n' for source in sources)
        together = LINT / "together" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.cpp"
        together.parent.mkdir(parents=True, exist_ok=True)
        together.write_text(text)
        code, output, _ = tidied(together, sources[0], use, ["--checks=-bugprone-suspicious-include", *extra])
        together.unlink()
        if code == 0 and not output.strip():
            seconds = (time.monotonic() - began) / len(sources)
            return [(source, 0, "", "", seconds) for source in sources]
    return [check(source, use, extra) for source in sources]


def read_together(sources, jobs):
    """The sources in lists of those that are read as one: with the same flags, and so many lists that no job is idle. Programs and
    device code are read by themselves."""
    alike = {}
    for source in sources:
        alone = source.is_device_code() or re.search(r"^int main\(", source.path.read_text(), re.M)
        alike.setdefault(source.name if alone else tuple(source.flags()), []).append(source)
    most = max(1, min(TOGETHER, -(-len(sources) // jobs)))
    for group in alike.values():
        yield from (group[i : i + most] for i in range(0, len(group), most))


def findings(text):
    """The diagnostics of clang-tidy's output, each with its notes."""
    found = []
    for line in text.splitlines():
        if re.match(r"\S.*: (warning|error): ", line) or not found:
            found.append(line)
        else:
            found[-1] += "\n" + line
    whole = [f.replace(f"{ROOT}/", "").splitlines() for f in found if f.strip()]
    return ["\n".join(f if len(f) <= MOST_LINES else [*f[:MOST_LINES], "    …"]) for f in whole]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tree", type=Path, required=True, help="the build tree with compile_commands.json")
    parser.add_argument("--tests", action="store_true", help="the sources of tests/ as well")
    parser.add_argument("--only", help="a regular expression on the sources' paths")
    parser.add_argument("--since", metavar="COMMIT", help="only sources that have changed since, or of which a header of ours has")
    parser.add_argument("tidy", nargs="*", help="more arguments for clang-tidy, after --")
    arguments = parser.parse_args()

    began = time.monotonic()
    entries = json.loads((ROOT / arguments.tree / "compile_commands.json").read_text())
    sources, folders = {}, FOLDERS + (("tests",) if arguments.tests else ())
    for entry in entries:
        path = Path(entry["file"])
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in folders:
            source = Source(entry)
            if not arguments.only or re.search(arguments.only, source.name):
                sources[source.name] = source

    changed = changed_since(arguments.since) if arguments.since else None
    if changed is not None:
        kept = {name: source for name, source in sources.items() if included(source.path)[0] & changed}
        print(f"lint: {len(kept)} of {len(sources)} sources have changed since {arguments.since}")
        sources = kept

    identity = tools_identity() + " ".join(arguments.tidy)
    due = [s for s in sources.values() if not clean_marker(s, identity).is_file()]
    groups = {}
    for source in due:
        groups.setdefault(source.family(), []).append(source)

    def header_of(family):
        if groups[family][0].is_device_code():  # few headers, and quick ones
            return [], 0.0
        # Of all sources, not of those that are due: the file is kept for the next call.
        return precompiled_header([s for s in sources.values() if s.family() == family]), time.monotonic() - began

    seen, failed = set(), 0
    (LINT / "clean").mkdir(parents=True, exist_ok=True)
    took, headers_seconds = [], 0.0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        # The largest group's header takes longest, so it is begun first; its sources' turn comes when it is there, and
        # sources of groups without one fill the time.
        order = sorted(groups, key=lambda family: -len(groups[family]))
        headers = {pool.submit(header_of, family): family for family in order}
        runs = []
        for header in concurrent.futures.as_completed(headers):
            use, ready = header.result()
            headers_seconds = max(headers_seconds, ready)
            runs += [pool.submit(check_together, some, use, arguments.tidy)
                     for some in read_together(groups[headers[header]], arguments.jobs)]
        for run in concurrent.futures.as_completed(runs):
            for source, code, output, errors, seconds in run.result():
                took.append((seconds, source.name))
                if code == 0 and not output.strip():
                    clean_marker(source, identity).touch()
                    continue
                failed += 1
                new = [f for f in findings(output) if f.splitlines()[0] not in seen]
                seen.update(f.splitlines()[0] for f in new)
                if new:
                    print("\n".join(new), flush=True)
                elif not output.strip():
                    print(f"{source.name}: clang-tidy ended with {code}\n{errors}", flush=True)
    seconds = time.monotonic() - began
    print(f"lint: clang-tidy read {len(due)} of {len(sources)} sources ({len(sources) - len(due)} clean since before) "
          f"in {seconds:.0f} s, {sum(s for s, _ in took):.0f} s of work and {headers_seconds:.0f} s until the last header was "
          f"there: {len(seen)} findings in {failed} sources")
    if took:
        print("lint: longest: " + ", ".join(f"{name} {s:.0f} s" for s, name in sorted(took, reverse=True)[:5]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
